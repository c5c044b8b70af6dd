"""Whether an object still says what was applied. Pure.

The API server adds fields (defaults, what it assigns), and others may add theirs: only what we say must stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_WHOLE: Final = frozenset({"selector"})
"""Maps that are one value to the API server: a key more selects other pods."""


def stands(wanted: Any, stored: Any) -> bool:
    """Whether `stored` has every field of `wanted`, and of each list all items (among others)."""
    if isinstance(wanted, Mapping):
        return isinstance(stored, Mapping) and all(
            value == stored.get(name) if name in _WHOLE else stands(value, stored.get(name))
            for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(stored, list) and all(any(stands(item, other) for other in stored) for item in wanted)
    return bool(wanted == stored)
