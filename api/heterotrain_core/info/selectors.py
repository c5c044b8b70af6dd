"""Which entities are meant, and how one entity's name is made from another's or from a source's labels. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from heterotrain_core.info.values import Entity

_PLACE: Final = re.compile(r"\{([A-Za-z0-9_:.-]+)((?:\|[a-z]+)*)\}")

FILTERS: Final[Mapping[str, Callable[[str], str]]] = {
    "host": lambda text: re.sub(r":\d+$", "", text).strip("[]"),
    "short": lambda text: text.partition(".")[0],
    "lower": str.lower,
}
"""``{instance|host}`` drops the port, ``{node|short}`` all from the first dot, ``{x|lower}`` makes small letters."""


@lru_cache(maxsize=4096)
def _pattern(glob: str) -> re.Pattern[str]:
    if glob in ("", "*"):
        return re.compile("")
    if "/" not in glob:
        glob += "/**"
    pieces = re.split(r"(\*\*|\*)", glob)
    text = "".join({"**": ".*", "*": "[^/]*"}.get(piece, re.escape(piece)) for piece in pieces)
    return re.compile(text + r"\Z")


def matches(glob: str, entity: str) -> bool:
    """Whether `entity` is meant by `glob`.

    ``*`` stands for anything inside one part, ``**`` for anything; a kind alone (``node``) means all of the kind, an
    empty text or ``*`` alone everything.
    """
    return _pattern(glob).match(entity) is not None


def label_matches(glob: str, text: str) -> bool:
    """Whether a label's value is meant: ``*`` for anything, ``a|b`` for either, ``!a|b`` for neither.

    A label that is absent counts as empty, as in Prometheus.
    """
    if glob.startswith("!"):
        return not label_matches(glob[1:], text)
    return _label_pattern(glob).match(text) is not None


@lru_cache(maxsize=4096)
def _label_pattern(glob: str) -> re.Pattern[str]:
    choices = (".*".join(re.escape(piece) for piece in choice.split("*")) for choice in glob.split("|"))
    return re.compile(f"(?:{'|'.join(choices)})\\Z", re.DOTALL)


def labels_match(wanted: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether every label of `wanted` is met."""
    return all(label_matches(glob, labels.get(name, "")) for name, glob in wanted.items())


def template_faults(template: str) -> str | None:
    """What is wrong with a template, `None` if nothing: unknown filter, or braces that are no place holder."""
    for match in _PLACE.finditer(template):
        for name in match[2].split("|")[1:]:
            if name not in FILTERS:
                return f"unknown filter {name!r}; there are {', '.join(FILTERS)}"
    if set("{}") & set(_PLACE.sub("", template)):
        return "a brace that opens or closes nothing; write {label} or {label|host}"
    return None


def names_in(template: str) -> frozenset[str]:
    """Labels that a template names."""
    return frozenset(match[1] for match in _PLACE.finditer(template))


def render(template: str, labels: Mapping[str, str]) -> str | None:
    """`template` with every ``{label}`` filled in; `None` if one of them is absent or empty."""
    complete = True

    def fill(match: re.Match[str]) -> str:
        nonlocal complete
        text = labels.get(match[1], "")
        for name in match[2].split("|")[1:]:
            text = FILTERS[name](text)
        complete = complete and text != ""
        return text

    rendered = _PLACE.sub(fill, template)
    return rendered if complete else None


def places_of(entity: Entity, labels: Mapping[str, str]) -> dict[str, str]:
    """What a template over an entity may name: ``{kind}``, the parts ``{1}``, ``{2}`` …, ``{label:zone}``."""
    places = {str(index): part for index, part in enumerate(entity.parts, start=1)}
    places["kind"] = entity.kind
    places |= {f"label:{name}": value for name, value in labels.items()}
    return places
