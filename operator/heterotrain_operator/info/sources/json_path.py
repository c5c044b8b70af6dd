"""Places in JSON values: ``status.allocatable.cpu``, ``conditions[type=Ready].status``, ``a[*].b``, ``a["b.c"]``.

A place that is not there is no value; ``[*]`` gives each item of a list or each value of an object. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

_SEGMENT: Final = re.compile(
    r"(?:^|\.)(?P<name>[A-Za-z0-9_$-]+)"
    r"|\[(?P<index>\d+)\]|\[(?P<all>\*)\]"
    r"|\[\"(?P<quoted>[^\"\]]+)\"\]"
    r"|\[(?P<key>[A-Za-z0-9_.-]+)=(?P<want>[^\]]*)\]"
)
_Segment = tuple[str, str, str]
"""Kind, text, wanted value."""


@lru_cache(maxsize=1024)
def parse_path(path: str) -> tuple[_Segment, ...]:
    """The path's segments; raises `ValueError`. An empty path or ``$`` alone is the whole value."""
    if path in ("", "$"):
        return ()
    path = path.removeprefix("$.")
    segments: list[_Segment] = []
    place = 0
    while place < len(path):
        match = _SEGMENT.match(path, place)
        if match is None:
            raise ValueError(
                f"{path[place : place + 20]!r} of path {path!r} is not understood: write a.b, [*], [0], "
                '["a.b"] or [key=value]'
            )
        kind = str(match.lastgroup if match.lastgroup != "want" else "key")
        segments.append((kind, match[kind], match["want"] or ""))
        place = match.end()
    return tuple(segments)


def find(value: Any, path: str) -> list[Any]:
    """All values at `path`; empty if there is none."""
    found: Iterable[Any] = (value,)
    for segment in parse_path(path):
        found = [inner for outer in found for inner in _step(outer, segment)]
    return list(found)


def _step(value: Any, segment: _Segment) -> Iterator[Any]:
    kind, text, want = segment
    match kind:
        case "name" | "quoted" if isinstance(value, dict) and text in value:
            yield value[text]
        case "index" if isinstance(value, list) and int(text) < len(value):
            yield value[int(text)]
        case "all" if isinstance(value, list):
            yield from value
        case "all" if isinstance(value, dict):
            yield from value.values()
        case "key" if isinstance(value, list):
            yield from (item for item in value if isinstance(item, dict) and as_text(item.get(text)) == want)


def as_text(value: Any) -> str:
    """A scalar as a label's value; anything else is empty."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else ""
