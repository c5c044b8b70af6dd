"""Writes JSON values as block-style YAML, the same text for the same value. Strings are plain where that is safe."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

_PLAIN: Final = re.compile(r"(?!\.[0-9])[A-Za-z./$][A-Za-z0-9_./$()-]*( [A-Za-z0-9_./$()-]+)*")
_UNPRINTABLE: Final = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_AMBIGUOUS: Final = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null", ".nan", ".inf"])


def to_yaml(value: Any) -> str:
    """`value` (a dict of JSON values) as a YAML document."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _entry(f"{_scalar(key)}:", item)
    elif isinstance(value, list | tuple) and value:
        for item in value:
            head, *rest = list(_lines(item))
            yield f"- {head}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _entry(head: str, item: Any) -> Iterator[str]:
    nested = list(_lines(item))
    if not item or not isinstance(item, dict | list | tuple):
        yield f"{head} {nested[0]}"
        return
    indent = "  " if isinstance(item, dict) else ""
    yield head
    yield from (f"{indent}{line}" for line in nested)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _AMBIGUOUS:
        return value
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):  # YAML 1.1 takes a number with exponent only with a point
        return re.sub(r"^(-?\d+)e", r"\1.0e", text)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
