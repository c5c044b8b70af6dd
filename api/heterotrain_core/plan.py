"""Plans as values: check what was proposed, fill in what was left out, make one when a worker goes. Pure.

The coordinator calls these before a plan reaches `BspPolicy.on_plan`; the command line uses the same checks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from heterotrain_core.shares import allocate
from heterotrain_core.types import Bounds, Plan, Share

_LAST_SERVED = 1e9
"""Seconds per sample of a worker whose share is 0: in proportion it stays at 0 while any other can take more."""


@dataclass(frozen=True, slots=True)
class PlanFault:
    """Why a plan is refused."""

    worker: str
    """The worker whose entry is at fault; empty if it is the plan as a whole."""
    message: str
    """For users: names the value, what is allowed, and the remedy."""

    def __str__(self) -> str:
        return f"{self.worker}: {self.message}" if self.worker else self.message


def check_plan(
    plan: Plan,
    *,
    bounds: Mapping[str, Bounds],
    grain: int,
    total: int,
    live: Collection[str],
    current_generation: int,
) -> tuple[PlanFault, ...]:
    """All faults of `plan`: the plan's own first, then by worker name; empty if it can be proposed.

    `bounds` holds every worker of the job, `live` those that take part now, `total` is the global batch in samples
    (after a loss that leaves too little room: `reachable_total`).
    """
    faults: list[PlanFault] = []
    if plan.generation <= current_generation:
        faults.append(
            PlanFault(
                "",
                f"generation {plan.generation} is not newer than {current_generation}, which is in force: "
                f"read the present plan and propose generation {current_generation + 1} or higher",
            )
        )
    if (wrong := _sum_fault(plan, total)) is not None:
        faults.append(wrong)
    for worker in sorted({*plan.shares, *live}):
        share = plan.shares.get(worker)
        if worker not in bounds:
            faults.append(PlanFault(worker, f"unknown worker; the job's workers are {', '.join(sorted(bounds))}"))
        elif share is None:
            faults.append(PlanFault(worker, "the worker has no share in the plan: every live worker needs one"))
        elif worker not in live:
            faults.append(
                PlanFault(worker, "the worker is not there (left, lost or drained): leave it out of the plan")
            )
        else:
            faults.extend(PlanFault(worker, message) for message in _share_faults(share, bounds[worker], grain))
    return tuple(faults)


def complete_plan(requested: Mapping[str, Share], current: Plan, *, generation: int = 0, reason: str = "") -> Plan:
    """The plan that `requested` asks for: shares that it does not name stay as in `current`.

    `generation` 0 takes the next one. A requested share without a micro-batch keeps the worker's present one.
    Nothing is checked (`check_plan` does); unknown names stay in so that it sees them.
    """
    shares = dict(current.shares)
    for worker, share in requested.items():
        present = current.shares.get(worker)
        if share.micro_batch is None and present is not None:
            shares[worker] = replace(share, micro_batch=present.micro_batch)
        else:
            shares[worker] = share
    return Plan(generation or current.generation + 1, shares, reason)


def reachable_total(bounds: Collection[Bounds], total: int, grain: int) -> int | None:
    """Largest sum of shares on the grid that is not above `total`; None if even the minimums are, or nobody is left."""
    smallest = sum(b.minimum for b in bounds)
    if not bounds or smallest > total:
        return None
    room = sum((b.maximum - b.minimum) // grain for b in bounds)
    return smallest + min(room, (total - smallest) // grain) * grain


def joined_plan(
    current: Plan,
    worker: str,
    weights: Mapping[str, float],
    micro_batch: int | None,
    *,
    bounds: Mapping[str, Bounds],
    total: int,
    grain: int,
) -> Plan | None:
    """The plan after `worker` has joined: all shares in proportion to `weights` (of all workers), within bounds.

    None if the minimums exceed `total`. Micro-batches of the others stay.
    """
    shares = {**current.shares, worker: Share(0, micro_batch)}
    reached = reachable_total([bounds[name] for name in shares], total, grain)
    if reached is None:
        return None
    samples = allocate(
        [0.0] * len(shares),
        [1 / weights[name] if weights[name] > 0 else _LAST_SERVED for name in shares],
        reached,
        [bounds[name].minimum for name in shares],
        [bounds[name].maximum for name in shares],
        grain,
    )
    joined = {name: replace(share, samples=n) for (name, share), n in zip(shares.items(), samples, strict=True)}
    reason = f"{worker} takes part with a share of {joined[worker].samples}"
    return Plan(current.generation + 1, joined, reason, derived=True)


def derive_plan(current: Plan, worker: str, *, bounds: Mapping[str, Bounds], total: int, grain: int) -> Plan | None:
    """The plan after `worker` left, was lost or is drained: the others' shares scaled in proportion, within bounds.

    Workers of the plan are those of `current` less `worker`; `total` is the global batch. If their bounds or the grain
    do not allow it, the round is as large as they allow and the plan's reason says so: a smaller batch for a while
    is better than no training, and whoever proposes the next plan sees it. None if nobody is left or even the
    minimums exceed `total`. Micro-batches stay.
    """
    others = {name: share for name, share in current.shares.items() if name != worker}
    reached = reachable_total([bounds[name] for name in others], total, grain)
    if reached is None:
        return None
    samples = allocate(
        [0.0] * len(others),
        [1 / s.samples if s.samples > 0 else _LAST_SERVED for s in others.values()],
        reached,
        [bounds[name].minimum for name in others],
        [bounds[name].maximum for name in others],
        grain,
    )
    reason = f"{worker} is out; its share goes to the others in proportion"
    if reached < total:
        reason += f"; their bounds allow rounds of {reached} samples instead of {total}"
    shares = {name: replace(share, samples=n) for (name, share), n in zip(others.items(), samples, strict=True)}
    return Plan(current.generation + 1, shares, reason, derived=True)


def _sum_fault(plan: Plan, total: int) -> PlanFault | None:
    planned = sum(share.samples for share in plan.shares.values())
    if planned == total:
        return None
    remedy = f"add {total - planned}" if planned < total else f"take {planned - total} away"
    return PlanFault("", f"the shares sum to {planned} samples, the global batch is {total}: {remedy}")


def _share_faults(share: Share, bounds: Bounds, grain: int) -> list[str]:
    faults: list[str] = []
    low, high = bounds.minimum, bounds.maximum
    if not low <= share.samples <= high:
        faults.append(f"share {share.samples} is out of bounds: it must be between {low} and {high} samples")
    elif (share.samples - low) % grain:
        below = share.samples - (share.samples - low) % grain
        above = f" or {below + grain}" if below + grain <= high else ""
        faults.append(
            f"share {share.samples} is off the grain: it must be the minimum {low} plus a multiple of {grain}, "
            f"such as {below}{above}"
        )
    if share.micro_batch is not None and share.micro_batch < 1:
        faults.append(f"micro-batch {share.micro_batch} is too small: it must be at least 1, or left out")
    return faults
