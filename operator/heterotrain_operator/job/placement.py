"""Where pods had better run: preferences that the scheduler weighs, never demands. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_AVOID_WEIGHT: Final = 100
"""The largest that Kubernetes takes."""
_CAPABLE_WEIGHT: Final = 50
"""Of the most capable node, others in proportion. Lower than the largest: spreading and free requests count too."""
_PREFERRED: Final = 16
"""Nodes that a pod names; a larger cluster has enough good ones among them."""
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Wish:
    """Of one pod."""

    avoid: str = ""
    """Node that it had better not run on; empty: none."""
    capabilities: Mapping[str, float] = field(default_factory=dict)
    """Cores that it could count on, by node; empty: nothing is known."""


def placed(spec: Mapping[str, Any], wish: Wish) -> dict[str, Any]:
    """The pod spec with the wish; what the template prefers or demands stays."""
    terms = [_term(_CAPABLE_WEIGHT * share, "In", node) for node, share in _best(wish.capabilities)]
    if wish.avoid:
        terms.append(_term(_AVOID_WEIGHT, "NotIn", wish.avoid))
    return _preferring(spec, terms) if terms else dict(spec)


def preference_words(capabilities: Mapping[str, float]) -> str:
    """Which nodes workers prefer, and why: ``a (3.8 cores free for trainers), b (2.1)``; empty: none."""
    best = sorted(capabilities.items(), key=lambda item: (-item[1], item[0]))
    if not _best(capabilities):
        return ""
    named = [f"{node} ({cores:.1f})" for node, cores in best[:_NAMED]]
    more = f" and {len(best) - _NAMED} more" if len(best) > _NAMED else ""
    return f"workers prefer nodes by the cores that are free for them: {', '.join(named)}{more}"


def _best(capabilities: Mapping[str, float]) -> list[tuple[str, float]]:
    """The most capable nodes and their part of the best one's cores; none if all are alike."""
    best = sorted(capabilities.items(), key=lambda item: (-item[1], item[0]))[:_PREFERRED]
    if len(best) < 2 or best[0][1] <= 0 or best[0][1] == best[-1][1]:
        return []
    return [(node, cores / best[0][1]) for node, cores in best]


def _term(weight: float, operator: str, node: str) -> dict[str, Any]:
    fields = [{"key": "metadata.name", "operator": operator, "values": [node]}]
    return {"weight": max(1, round(weight)), "preference": {"matchFields": fields}}


def _preferring(spec: Mapping[str, Any], terms: list[dict[str, Any]]) -> dict[str, Any]:
    affinity = dict(spec.get("affinity") or {})
    nodes = dict(affinity.get("nodeAffinity") or {})
    key = "preferredDuringSchedulingIgnoredDuringExecution"
    nodes[key] = [*(nodes.get(key) or ()), *terms]
    return {**spec, "affinity": {**affinity, "nodeAffinity": nodes}}
