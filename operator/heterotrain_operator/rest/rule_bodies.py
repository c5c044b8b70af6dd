"""A rule in the body of a request: what ``GET`` gives, a manifest, or a spec alone. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from heterotrain_api.contract import API_VERSION
from heterotrain_api.validation import Fault
from heterotrain_operator.info.rule_state import KINDS, RuleKind
from heterotrain_operator.rest.errors import invalid

_FIELDS: Final = ("apiVersion", "kind", "metadata", "name", "generation", "spec", "status")
_MAX_GENERATION: Final = 2**53


@dataclass(frozen=True, slots=True)
class GivenRule:
    """A rule as it was sent."""

    spec: object
    generation: int | None
    """That the sender has seen, if the body says it."""


def given_rule(kind: RuleKind, name: str, document: object) -> GivenRule:
    """The rule of a body for the path's kind and name; raises `RestError` with what contradicts it.

    ``status`` and what servers write into ``metadata`` may be there, since answers have them; they change nothing.
    """
    if not isinstance(document, dict) or "spec" not in document:
        return GivenRule(document, None)
    faults = list(_faults(kind, name, document))
    if faults:
        raise invalid(faults)
    metadata = document.get("metadata") or {}
    generation = document.get("generation")
    return GivenRule(document["spec"], metadata.get("generation") if generation is None else generation)


def _faults(kind: RuleKind, name: str, document: Mapping[str, Any]) -> Iterator[Fault]:
    for field in document:
        if field not in _FIELDS:
            yield Fault(field, f"does not exist here; there are {', '.join(_FIELDS)}")
    wanted = {"apiVersion": API_VERSION, "kind": KINDS[kind], "name": name}
    for field, want in wanted.items():
        if document.get(field, want) != want:
            yield Fault(field, f"must be {want} or left out")
    metadata = document.get("metadata", {})
    if not isinstance(metadata, dict):
        yield Fault("metadata", "must be an object (key: value)")
        return
    if metadata.get("name", name) != name:
        yield Fault("metadata.name", f"must be {name} or left out: the path names the rule")
    for field, generation in (("generation", document), ("metadata.generation", metadata)):
        given = generation.get("generation")
        if given is not None and not _is_generation(given):
            yield Fault(field, "must be an integer from 1 on")
    # Only of what is one: anything may have been sent, and an object has no place in a set.
    both = {given for given in (document.get("generation"), metadata.get("generation")) if _is_generation(given)}
    if len(both) > 1:
        yield Fault("generation", "differs from metadata.generation: leave one out")


def _is_generation(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= _MAX_GENERATION
