"""The rules of the packs that are switched on, as resources that anybody can see and change.

Applied when the operator starts, with a field manager of their own and without force: a rule that somebody else has
changed, or that was there before, stays as it is. Rules of packs that are switched off are deleted: they are known by
their label.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from heterotrain_api.contract import GROUP
from heterotrain_operator.errors import ApiError
from heterotrain_operator.info.cluster.book import RuleBook
from heterotrain_operator.info.cluster.door import PLURALS, RuleKube
from heterotrain_operator.info.packs import pack_text
from heterotrain_operator.info.rule_state import KINDS, RuleKind

logger = logging.getLogger(__name__)

PACK_LABEL: Final = f"{GROUP}/pack"
"""On each rule that came with the operator: the pack's name."""
KIND_OF: Final = {name: kind for kind, name in KINDS.items()}

Document = Mapping[str, Any]
Key = tuple[RuleKind, str]


@dataclass(frozen=True, slots=True)
class PackChanges:
    """What to do so that just the wanted rules of packs are there."""

    apply: tuple[tuple[RuleKind, Document], ...]
    delete: tuple[tuple[RuleKind, Document], ...]
    """As they were seen."""
    strangers: tuple[Key, ...]
    """Wanted, but rules of these names are somebody else's: left alone."""


def pack_documents(names: Iterable[str], without: Iterable[str] = ()) -> list[tuple[RuleKind, Document]]:
    """The rules of some packs, labelled, but those whose names are in `without`. Raises `ValueError`: no such pack."""
    left_out = set(without)
    return [
        (KIND_OF[document["kind"]], document | {"metadata": document["metadata"] | {"labels": {PACK_LABEL: name}}})
        for name in names
        for document in yaml.safe_load_all(pack_text(name))
        if document["metadata"]["name"] not in left_out
    ]


def pack_changes(
    wanted: Sequence[tuple[RuleKind, Document]], present: Sequence[tuple[RuleKind, Document]]
) -> PackChanges:
    """What to do. Pure."""
    there = {_key(kind, document): document for kind, document in present}
    asked = {_key(kind, document) for kind, document in wanted}
    strangers = tuple(key for key in asked if key in there and not _is_packs(there[key]))
    return PackChanges(
        apply=tuple((kind, document) for kind, document in wanted if _key(kind, document) not in strangers),
        delete=tuple((key[0], document) for key, document in there.items() if _is_packs(document) and key not in asked),
        strangers=tuple(sorted(strangers)),
    )


async def keep_packs(kube: RuleKube, book: RuleBook, wanted: Sequence[tuple[RuleKind, Document]]) -> None:
    """Make it so. Raises what the API server raises but for rules that somebody has changed."""
    changes = pack_changes(wanted, [(kind, entry.document) for kind, _, entry in book.entries()])
    for kind, name in changes.strangers:
        logger.info("%s/%s of a rule pack is left out: a rule of that name is there.", PLURALS[kind], name)
    for kind, document in changes.apply:
        try:
            book.saw(kind, await kube.apply_rule(kind, document))
        except ApiError as error:
            if error.status != 409:
                raise
            name = document["metadata"]["name"]
            logger.info("%s/%s of a rule pack was changed by somebody, and stays so.", PLURALS[kind], name)
    for kind, document in changes.delete:
        name = document["metadata"]["name"]
        logger.info("%s/%s is deleted: its rule pack is switched off.", PLURALS[kind], name)
        try:
            await kube.delete_rule(kind, name)
        except ApiError as error:
            if error.status != 404:
                raise
        book.gone(kind, document)


def _key(kind: RuleKind, document: Document) -> Key:
    return kind, document["metadata"]["name"]


def _is_packs(document: Document) -> bool:
    return PACK_LABEL in (document["metadata"].get("labels") or {})
