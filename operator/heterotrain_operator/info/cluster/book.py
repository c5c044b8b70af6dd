"""All rules of the operator's namespace as they were last seen, kept in step with the information service.

Whoever sees a rule tells it here: the watch, the list, and the REST API after a write of its own. A rule that cannot be
obeyed is named, with the field, in a state as any other one; it stops no other rule.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from heterotrain_api.info_fields import RuleStatus
from heterotrain_api.rule_conditions import RuleReason
from heterotrain_api.validation import InvalidManifestError
from heterotrain_operator.info.loop import InfoService
from heterotrain_operator.info.rule_state import RuleKind, RuleState
from heterotrain_operator.info.rules import rule_from_document
from heterotrain_operator.rest.desk import RuleView

logger = logging.getLogger(__name__)

MAX_RULES: Final = 512
"""Of each kind; a task runs for each collection rule."""
TOO_MANY: Final = f"there are more than {MAX_RULES} rules of this kind: remove some"

Document = Mapping[str, Any]


@dataclass(slots=True)
class Entry:
    """One rule."""

    document: Document
    """As the API server has it."""
    state: RuleState
    """The service's, or that of a rule which it was not given."""

    @property
    def uid(self) -> str:
        """Of the object: another rule of the name has another one."""
        return str(self.document["metadata"]["uid"])

    @property
    def generation(self) -> int:
        """Grows with each change of the spec."""
        return int(self.document["metadata"]["generation"])

    @property
    def written(self) -> RuleStatus | None:
        """The status that the object has; `None`: none that can be read."""
        try:
            return RuleStatus.model_validate(self.document["status"])
        except (KeyError, ValidationError):
            return None


class RuleBook:
    """Used on one event loop."""

    def __init__(self, service: InfoService) -> None:
        self._service = service
        self._entries: dict[RuleKind, dict[str, Entry]] = {kind: {} for kind in RuleKind}

    def entries(self) -> list[tuple[RuleKind, str, Entry]]:
        """All rules."""
        return [(kind, name, entry) for kind, found in self._entries.items() for name, entry in found.items()]

    def entry(self, kind: RuleKind, name: str) -> Entry | None:
        """One rule; `None` if there is none."""
        return self._entries[kind].get(name)

    def views(self, kind: RuleKind) -> list[RuleView]:
        """The rules of a kind, by name, for the REST API."""
        return [view(kind, entry.document) for _, entry in sorted(self._entries[kind].items())]

    def saw(self, kind: RuleKind, document: Document) -> None:
        """A rule is new, changed, or has been written by us."""
        meta = document["metadata"]
        known = self._entries[kind].get(meta["name"])
        if known is not None and known.uid == meta["uid"]:
            if meta["generation"] < known.generation:
                return  # a watch that comes after an answer to a write
            if meta["generation"] == known.generation and known.state.error != TOO_MANY:
                known.document = document
                return
        if self._is_full(kind, meta["name"]):
            state = self._refuse(kind, document, RuleReason.RULE_CONFLICT, TOO_MANY)
        else:
            state = self._obey(kind, document)
        self._entries[kind][meta["name"]] = Entry(document, state)

    def gone(self, kind: RuleKind, document: Document) -> None:
        """A rule was deleted; an older one of the name means nothing."""
        name = document["metadata"]["name"]
        known = self._entries[kind].get(name)
        if known is not None and known.uid == document["metadata"]["uid"]:
            self._forget(kind, name)

    def listed(self, kind: RuleKind, documents: Sequence[Document]) -> None:
        """These, and no others, are the rules of a kind."""
        present = {document["metadata"]["name"] for document in documents}
        for name in self._entries[kind].keys() - present:
            self._forget(kind, name)
        for document in documents:
            self.saw(kind, document)

    def _is_full(self, kind: RuleKind, name: str) -> bool:
        others = [entry for other, entry in self._entries[kind].items() if other != name]
        return len(others) >= MAX_RULES and sum(entry.state.error != TOO_MANY for entry in others) >= MAX_RULES

    def _forget(self, kind: RuleKind, name: str) -> None:
        del self._entries[kind][name]
        self._service.remove_rule(kind, name)
        logger.info("Rule %s/%s is gone: it is obeyed no longer.", kind, name)

    def _obey(self, kind: RuleKind, document: Document) -> RuleState:
        name = document["metadata"]["name"]
        try:
            rule = rule_from_document(document)
        except InvalidManifestError as error:
            message = "; ".join(str(fault) for fault in error.faults)
            return self._refuse(kind, document, RuleReason.INVALID_SPEC, message)
        try:
            state = self._service.set_rule(rule)
        except Exception as error:  # no rule may stop the others, whatever it does to us
            logger.exception("Rule %s/%s could not be taken up; this was not foreseen.", kind, name)
            return self._refuse(kind, document, RuleReason.UNEXPECTED_ERROR, f"{type(error).__name__}: {error}")
        logger.info("Rule %s/%s is taken up in generation %s.", kind, name, document["metadata"]["generation"])
        return state

    def _refuse(self, kind: RuleKind, document: Document, reason: RuleReason, message: str) -> RuleState:
        meta = document["metadata"]
        logger.warning("Rule %s/%s cannot be obeyed: %s.", kind, meta["name"], message)
        state = RuleState(kind, meta["name"], meta["generation"], ready=False, error=message)
        state.accepted, state.reason = False, reason
        return self._service.refuse_rule(state)


def view(kind: RuleKind, document: Document) -> RuleView:
    """A rule as the REST API shows it."""
    meta = document["metadata"]
    return RuleView(kind, meta["name"], meta["generation"], document["spec"])
