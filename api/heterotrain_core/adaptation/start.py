"""Shares before any step, from what the information service says of the nodes: better than equal ones, and once only.

They replace the coordinator's first plan, if that holds equal parts: shares that a manifest names stay. Whatever they
come to, the first plan by measured speeds does not wait for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from heterotrain_core.adaptation.values import Observation, WorkerSeen
from heterotrain_core.plan import reachable_total
from heterotrain_core.plan_desk import FIRST_GENERATION
from heterotrain_core.shares import allocate, start_shares

NAMED: Final = 4
"""Workers that the reason names."""


class StartPlan(NamedTuple):
    """Shares to begin with, and why."""

    shares: Mapping[str, int]
    why: str


def start_plan(seen: Observation, global_batch: int, grain: int) -> StartPlan | None:
    """Shares in proportion to `NodeFact.training_speed` of each worker's node, exact within bounds and on the grid.

    `None`: another plan is in force, the manifest names shares, a node says nothing, or the present ones are those.
    """
    live = [w for w in seen.workers if w.live]
    speeds = [_speed(w) for w in live]
    total = reachable_total([w.bounds for w in live], global_batch, grain) if live else None
    if seen.generation != FIRST_GENERATION or total is None or not all(speeds):
        return None
    low, high = [w.bounds.minimum for w in live], [w.bounds.maximum for w in live]
    try:
        equal = start_shares([None] * len(live), low, high, total, grain)
        wanted = allocate([0.0] * len(live), [1 / speed for speed in speeds], total, low, high, grain)
    except ValueError:  # the bounds allow none
        return None
    present = [w.share for w in live]
    if present != equal or [seen.start_shares.get(w.name) for w in live] != equal or wanted == present:
        return None
    return StartPlan(dict(zip((w.name for w in live), wanted, strict=True)), _words(live, speeds, wanted))


def _speed(worker: WorkerSeen) -> float:
    """Of the worker's node; 0: not known."""
    speed = None if worker.node is None else worker.node.training_speed
    return speed if speed is not None and math.isfinite(speed) and speed > 0 else 0.0


def _words(live: Sequence[WorkerSeen], speeds: Sequence[float], wanted: Sequence[int]) -> str:
    told = [
        f"{w.name} {w.share}→{share} (node {w.node.name}: {speed:.4g})"
        for w, speed, share in zip(live, speeds, wanted, strict=True)
        if w.node is not None
    ]
    more = f" and {len(told) - NAMED} more" if len(told) > NAMED else ""
    return f"before any step, by node_training_speed: {', '.join(told[:NAMED])}{more}"
