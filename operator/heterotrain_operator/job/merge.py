"""Merges parts of pods field by field, as `kubectl` and the API server do: objects by field, some lists by key.

Pure: nothing that is given is changed, nothing of it is shared with the result.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

Document = dict[str, Any]

KEYS: Final[Mapping[str, str]] = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
}
"""Lists whose entries are told apart by a field (the patch merge keys of core/v1). Others are one value."""


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Document:
    """`base` with the fields of `over`, which win; the order of `base` is kept."""
    result = copy.deepcopy(dict(base))
    for name, value in over.items():
        old = result.get(name)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            result[name] = merge(old, value)
        elif name in KEYS and isinstance(value, Sequence) and isinstance(old, Sequence):
            result[name] = merge_lists(old, value, KEYS[name], whole=name in {"env", "volumes", "volumeMounts"})
        else:
            result[name] = copy.deepcopy(value)
    return result


def merge_lists(
    base: Sequence[Mapping[str, Any]], over: Sequence[Mapping[str, Any]], key: str, *, whole: bool
) -> list[Document]:
    """Entries of `base`, each merged with the one of `over` that has the same `key`, then the new ones of `over`.

    `whole`: an entry of `over` replaces that of `base` (a volume is one of many kinds, a variable has one value).
    """
    by_key = {entry[key]: entry for entry in over}
    result = []
    for entry in base:
        other = by_key.pop(entry[key], None)
        if other is None:
            result.append(copy.deepcopy(dict(entry)))
        else:
            result.append(copy.deepcopy(dict(other)) if whole else merge(entry, other))
    return result + [copy.deepcopy(dict(entry)) for entry in by_key.values()]


def without_nulls(value: Any) -> Any:
    """`value` without fields that are null, at any depth: to the API server they are not there."""
    if isinstance(value, Mapping):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(item) for item in value if item is not None]
    return value
