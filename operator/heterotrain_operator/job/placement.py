"""Where pods had better run: preferences that the scheduler weighs, never demands. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_AVOID_WEIGHT: Final = 100
"""The largest that Kubernetes takes."""


def elsewhere(spec: Mapping[str, Any], node: str) -> dict[str, Any]:
    """The pod spec, with the wish not to run on `node` (empty: no wish); what the template prefers stays."""
    if not node:
        return dict(spec)
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]}]
    return _preferring(spec, [{"weight": _AVOID_WEIGHT, "preference": {"matchFields": fields}}])


def _preferring(spec: Mapping[str, Any], terms: list[dict[str, Any]]) -> dict[str, Any]:
    affinity = dict(spec.get("affinity") or {})
    nodes = dict(affinity.get("nodeAffinity") or {})
    key = "preferredDuringSchedulingIgnoredDuringExecution"
    nodes[key] = [*(nodes.get(key) or ()), *terms]
    return {**spec, "affinity": {**affinity, "nodeAffinity": nodes}}
