"""Which fields the API server dropped because its schema does not know them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def pruned_fields(sent: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """Paths of fields of `sent` that `stored` lacks, sorted; of lists the first entry of each kind stands for all."""
    return sorted(set(_missing(sent, stored, "")))


def _missing(sent: Any, stored: Any, path: str) -> list[str]:
    if isinstance(sent, Mapping) and isinstance(stored, Mapping):
        found: list[str] = []
        for field, value in sent.items():
            where = f"{path}.{field}" if path else str(field)
            if field in stored:
                found += _missing(value, stored[field], where)
            elif value is not None:
                found.append(where)
        return found
    if isinstance(sent, list | tuple) and isinstance(stored, list) and len(sent) == len(stored):
        return [lost for a, b in zip(sent, stored, strict=True) for lost in _missing(a, b, f"{path}[]")]
    return []
