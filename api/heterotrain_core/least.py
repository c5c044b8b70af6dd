"""Samples that a model needs at once: shares and rests below that are not handed out (algorithms.md C3). Pure.

BatchNorm cannot normalise over one value, so that a model with it needs `least` = 2. With `least` 1 nothing here
changes anything. Whoever hands out by `amounts` never leaves fewer than `least` samples over, so that every grant, and
hence whatever a lost worker gives back, can be trained on. A data set that is smaller is the exception.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from heterotrain_core.shares import InfeasibleError, allocate, proportional
from heterotrain_core.types import Bounds, Plan


def amounts(planned: Sequence[int], remaining: int, least: int) -> list[int]:
    """How many samples each of those who ask now gets; `planned` are their shares, at least 1 each.

    All in all as many as planned, or `remaining` if that is less: then in proportion, bounds waived. Each gets 0 or at
    least `least`: who would get fewer goes without, and the others get that. If so few would be left over, this
    hand-out is smaller by what they lack, or takes them along.
    """
    wanted = sum(planned)
    total = min(wanted, remaining)
    if least > 1 and total:
        total = _leaving_enough(max(total, min(least, remaining)), remaining, least)
    parts = list(planned) if total == wanted else proportional(planned, total)
    return _gathered(parts, planned, least) if least > 1 and any(0 < p < least for p in parts) else parts


def round_sizes(samples: int, batch: int, least: int) -> tuple[int, int]:
    """How the end of an epoch of `samples` is cut for one worker: the number of rounds, and the size of the last.

    All others have `batch` samples, the one before the last all that is left.
    """
    rounds, rest = -(-samples // batch), samples % batch or batch
    if rest >= least or rounds == 1:
        return rounds, rest
    return (rounds, least) if batch + rest >= 2 * least else (rounds - 1, batch + rest)


def raise_minimum(bounds: Bounds, least: int, grain: int) -> Bounds:
    """`bounds` whose minimum is the first share on the grid that `least` fits in; as they are if none does.

    A worker that may be without work (minimum 0) still may.
    """
    if bounds.minimum == 0:
        return bounds
    low = bounds.minimum + max(0, -(-(least - bounds.minimum) // grain)) * grain
    return replace(bounds, minimum=low) if low <= bounds.maximum else bounds


def raise_shares(plan: Plan, bounds: Mapping[str, Bounds], total: int, grain: int, reason: str) -> Plan | None:
    """`plan` with all shares within (raised) `bounds`, in proportion, with the same sum; `None`: they do not allow it.

    The very same plan if its shares are within already.
    """
    shares = plan.shares
    if all(share.samples >= bounds[name].minimum for name, share in shares.items()):
        return plan
    try:
        samples = allocate(
            [0.0] * len(shares),
            [1 / max(1, share.samples) for share in shares.values()],
            total,
            [bounds[name].minimum for name in shares],
            [bounds[name].maximum for name in shares],
            grain,
        )
    except InfeasibleError:
        return None
    raised = {name: replace(share, samples=n) for (name, share), n in zip(shares.items(), samples, strict=True)}
    return Plan(plan.generation + 1, raised, reason, derived=True, synchronization=plan.synchronization)


def _leaving_enough(total: int, remaining: int, least: int) -> int:
    rest = remaining - total
    if not 0 < rest < least:
        return total
    shorter = remaining - least
    return shorter if shorter >= least else remaining


def _gathered(parts: Sequence[int], planned: Sequence[int], least: int) -> list[int]:
    """Take what is below `least` together, and give it to whom it makes up a whole, the largest shares first."""
    gathered = [part if part >= least else 0 for part in parts]
    loose = sum(parts) - sum(gathered)
    by_share = sorted(range(len(parts)), key=lambda i: (-planned[i], i))
    for i in by_share:
        if 0 < parts[i] < least <= loose:
            gathered[i] = least
            loose -= least
    if loose:
        room = [i for i in by_share if gathered[i]] or by_share
        gathered[max(room, key=lambda i: planned[i] - gathered[i])] += loose
    return gathered
