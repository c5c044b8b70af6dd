"""``--set spec.workers.cpu.replicas=3``: values of a manifest changed from the command line. Pure.

A path is checked against the resource's schema, so that a slip of the pen is refused instead of ignored.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from heterotrain_operator.yaml_documents import YamlError, load_value

JsonSchema = Mapping[str, Any]


class OverrideError(ValueError):
    """An override cannot be applied; the text names its path, what is there, and the remedy."""


@dataclass(frozen=True, slots=True)
class Override:
    """One ``path=value``."""

    path: tuple[str, ...]
    value: Any
    text: str = field(default="", compare=False)
    """The value as written."""

    @property
    def dotted(self) -> str:
        """The path as written."""
        return ".".join(self.path)


def parse_override(text: str) -> Override:
    """Read ``spec.seed=9``; the value's type is the one YAML gives it (``7`` a number, ``"7"`` a text, ``[a, b]`` a
    list).
    """
    path, equals, value = text.partition("=")
    parts = tuple(path.strip().split("."))
    if not equals or not all(parts):
        raise OverrideError(f"--set {text}: write it as path=value, for example spec.globalBatchSize=256")
    try:
        return Override(parts, load_value(value), value.strip())
    except YamlError as error:
        raise OverrideError(f"--set {text[:80]}: the value is not YAML that can be taken: {error}") from None


def apply_overrides(document: Mapping[str, Any], overrides: Sequence[Override], schema: JsonSchema) -> dict[str, Any]:
    """Return a copy of the manifest with the overrides applied in order.

    Items of a list are named by index, or by their ``name``. Mappings on the way that are not there yet are made.
    `schema` is the JSON schema of the resource; what it leaves open (a pod template) is not checked here. Raises
    `OverrideError`.
    """
    changed: dict[str, Any] = copy.deepcopy(dict(document))
    for override in overrides:
        target = _check_path(override, schema)
        # One of a few words is meant as written: YAML reads Off as false.
        word = override.text in target.get("enum", ())
        _apply(changed, replace(override, value=override.text) if word else override)
    return changed


def _apply(document: dict[str, Any], override: Override) -> None:
    node: Any = document
    for depth, part in enumerate(override.path):
        last = depth == len(override.path) - 1
        if isinstance(node, list):
            key: Any = _item(node, part, override, depth)
        elif isinstance(node, dict):
            key = part
        else:
            here = ".".join(override.path[:depth])
            raise OverrideError(f"--set {override.dotted}: {here} is {node!r} in the manifest, it has no fields")
        if last:
            node[key] = override.value
        elif isinstance(node, dict):
            if node.get(key) is None:
                node[key] = {}
            node = node[key]
        else:
            node = node[key]


def _item(items: list[Any], part: str, override: Override, depth: int) -> int:
    here = ".".join(override.path[:depth])
    if part.isascii() and part.isdecimal() and len(part) < 10:
        if int(part) < len(items):
            return int(part)
        raise OverrideError(f"--set {override.dotted}: {here} has {len(items)} items; {part} must be below that")
    names = [str(item.get("name")) if isinstance(item, dict) else "" for item in items]
    if part in names:
        return names.index(part)
    raise OverrideError(
        f"--set {override.dotted}: {here} has no item {part!r}; its items: {', '.join(filter(None, names)) or 'none'}"
    )


def _check_path(override: Override, schema: JsonSchema) -> JsonSchema:
    """Raise `OverrideError` for a path that the schema does not have; returns the field's schema, empty if open."""
    here = schema
    for depth, part in enumerate(override.path):
        node = _resolved(here, schema)
        properties = node.get("properties")
        if properties is not None:
            if part in properties:
                here = properties[part]
                continue
            if not node.get("additionalProperties"):
                where = ".".join(override.path[:depth])
                raise OverrideError(f"--set {override.dotted}: {_no_field(where, part, sorted(properties))}")
            return {}
        if "items" in node:
            here = node["items"]
        elif isinstance(node.get("additionalProperties"), Mapping):
            here = node["additionalProperties"]
        else:
            return {}
    return _resolved(here, schema)


def _resolved(node: JsonSchema, root: JsonSchema) -> JsonSchema:
    """Follow ``$ref`` and take the branch of ``anyOf`` that has parts of its own (the other is null)."""
    while True:
        if "$ref" in node:
            target: Any = root
            for part in str(node["$ref"]).removeprefix("#/").split("/"):
                target = target[part]
            node = target
        elif "anyOf" in node:
            branches = [branch for branch in node["anyOf"] if branch.get("type") != "null"]
            if len(branches) != 1:
                return {}
            node = branches[0]
        else:
            return node


def _no_field(here: str, part: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(part, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"it has: {', '.join(known)}"
    return f"{here or 'the manifest'} has no field {part!r}; {hint}"
