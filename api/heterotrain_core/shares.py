"""How a global batch is cut into shares, in whole samples (algorithms.md C1). Pure.

A share lies on its worker's *grid*: ``minimum + k x grain``, not above the maximum.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction

from heterotrain_core.curve import Curve, line

MIN_SECONDS_PER_SAMPLE = 1e-15
"""Smaller slopes are refused: their inverses lose the meaning of a speed."""


class InfeasibleError(ValueError):
    """No shares on the grid have the wanted sum."""


class MinimumTooLargeError(InfeasibleError):
    """Even the smallest shares sum to more than the total."""


class MaximumTooSmallError(InfeasibleError):
    """Even the largest shares sum to less than the total."""


class OffGridError(InfeasibleError):
    """What is left after the minimums is not a multiple of the grain."""


def allocate(  # noqa: PLR0917 - two tables of speeds, two of bounds: the order of the formula
    fixed_seconds: Sequence[float],
    seconds_per_sample: Sequence[float],
    total: int,
    minimum: Sequence[int],
    maximum: Sequence[int],
    grain: int,
) -> list[int]:
    """Shares that minimise the largest of ``fixed + per_sample x share``, exactly, with sum `total`.

    Min-max greedy: every grain in turn goes to the worker that would finish earliest with it (ties: the lower index).
    Raises a subclass of `InfeasibleError` if no shares fit, `ValueError` for arguments out of range.
    """
    _check_speeds(fixed_seconds, seconds_per_sample, len(minimum))
    check_grid(total, minimum, maximum, grain)
    curves = [line(fixed, slope) for fixed, slope in zip(fixed_seconds, seconds_per_sample, strict=True)]
    speed = sum(1 / slope for slope in seconds_per_sample)
    free = sum(a / c for a, c in zip(fixed_seconds, seconds_per_sample, strict=True))
    return _allocate(curves, total, minimum, maximum, grain, about=(total + free) / speed if curves else 0.0)


def allocate_along(
    curves: Sequence[Curve], total: int, minimum: Sequence[int], maximum: Sequence[int], grain: int
) -> list[int]:
    """As `allocate`, for workers whose times are no lines. Raises a subclass of `InfeasibleError` if no shares fit."""
    check_grid(total, minimum, maximum, grain)
    about = max((curve.seconds(total / len(curves)) for curve in curves), default=0.0)
    return _allocate(curves, total, minimum, maximum, grain, about=about)


def _allocate(
    curves: Sequence[Curve], total: int, minimum: Sequence[int], maximum: Sequence[int], grain: int, *, about: float
) -> list[int]:
    """`about`: when they will be done, as far as is known; the nearer, the sooner this is."""
    capacity = [(high - low) // grain for low, high in zip(minimum, maximum, strict=True)]
    workers = _Workers(curves, minimum, capacity, grain)
    grains = (total - sum(minimum)) // grain
    counts = workers.safe_start(grains, about)
    heap = [(workers.seconds(i, k + 1), i) for i, k in enumerate(counts) if k < capacity[i]]
    heapq.heapify(heap)
    for _ in range(grains - sum(counts)):
        _, i = heap[0]
        counts[i] += 1
        if counts[i] < capacity[i]:
            heapq.heapreplace(heap, (workers.seconds(i, counts[i] + 1), i))
        else:
            heapq.heappop(heap)
    return [low + k * grain for low, k in zip(minimum, counts, strict=True)]


def check_grid(total: int, minimum: Sequence[int], maximum: Sequence[int], grain: int) -> None:
    """Raise the fitting `InfeasibleError` if no shares on the grid sum to `total`, `ValueError` for wrong bounds."""
    if grain < 1:
        raise ValueError(f"grain must be at least 1, not {grain}")
    for i, (low, high) in enumerate(zip(minimum, maximum, strict=True)):
        if not 0 <= low <= high:
            raise ValueError(f"worker {i}: 0 <= minimum <= maximum must hold, not minimum {low} and maximum {high}")
    smallest = sum(minimum)
    largest = sum(low + (high - low) // grain * grain for low, high in zip(minimum, maximum, strict=True))
    if smallest > total:
        raise MinimumTooLargeError(
            f"the minimum shares sum to {smallest}, more than the {total} samples to share out: "
            f"lower the minimums by {smallest - total}, or take more samples or fewer workers"
        )
    if largest < total:
        raise MaximumTooSmallError(
            f"the maximum shares (on the grain of {grain}) sum to {largest}, "
            f"less than the {total} samples to share out: "
            f"raise the maximums by {total - largest}, or take fewer samples or more workers"
        )
    if (total - smallest) % grain:
        raise OffGridError(
            f"{total} samples less the minimum shares ({smallest}) leave {total - smallest}, "
            f"not a multiple of the grain {grain}: "
            f"change the minimums or the total by {(total - smallest) % grain}, or take another grain"
        )


def proportional(weights: Sequence[int] | Sequence[float], total: int) -> list[int]:
    """Whole numbers in proportion to `weights` with sum `total`, by largest remainder (ties: the lower index).

    Computed in exact fractions. Raises `ValueError` for a negative total or weight, or if all weights are 0.
    """
    if total < 0:
        raise ValueError(f"total must be at least 0, not {total}")
    exact = [Fraction(w) for w in weights]
    whole = sum(exact)
    if any(w < 0 for w in exact) or (whole == 0 and total > 0):
        raise ValueError(f"weights must be at least 0 and one of them above 0, not {list(weights)}")
    if total == 0:
        return [0] * len(exact)
    ideal = [w * total / whole for w in exact]
    parts = [math.floor(x) for x in ideal]
    by_remainder = sorted(range(len(parts)), key=lambda i: (parts[i] - ideal[i], i))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts


def start_shares(
    initial: Sequence[int | None],
    minimum: Sequence[int],
    maximum: Sequence[int],
    total: int,
    grain: int,
    *,
    names: Sequence[str] | None = None,
) -> list[int]:
    """Shares of the first round: given ones are kept, the others get equal parts of the rest within their bounds.

    `names` are for messages. Raises `ValueError` naming the worker whose given share is out of bounds or off the grain,
    a subclass of `InfeasibleError` if the others cannot make up the total.
    """
    for i, share in enumerate(initial):
        if share is not None:
            _check_initial(names[i] if names else str(i), share, minimum[i], maximum[i], grain)
    given = sum(share for share in initial if share is not None)
    unset = [i for i, share in enumerate(initial) if share is None]
    if not unset and given != total:
        raise InfeasibleError(f"the initial shares sum to {given}, not to {total}: change them, or leave one out")
    try:
        equal = iter(
            allocate(
                [0.0] * len(unset),
                [1.0] * len(unset),
                total - given,
                [minimum[i] for i in unset],
                [maximum[i] for i in unset],
                grain,
            )
        )
    except InfeasibleError as error:
        who = ", ".join(names[i] if names else str(i) for i in unset)
        raise type(error)(
            f"workers without initial share ({who}), initial shares of the others {given}: {error}"
        ) from None
    return [next(equal) if share is None else share for share in initial]


def _check_initial(worker: str, share: int, low: int, high: int, grain: int) -> None:
    if not low <= share <= high:
        raise ValueError(f"worker {worker}: initial share {share} is not between its bounds {low} and {high}")
    if (share - low) % grain:
        raise ValueError(
            f"worker {worker}: initial share {share} is not its minimum {low} plus a multiple of the grain {grain}: "
            f"take {share - (share - low) % grain}"
        )


def _check_speeds(fixed_seconds: Sequence[float], seconds_per_sample: Sequence[float], num_workers: int) -> None:
    for i, (a, c) in enumerate(zip(fixed_seconds, seconds_per_sample, strict=True)):
        if not (math.isfinite(a) and a >= 0):
            raise ValueError(f"worker {i}: fixed_seconds must be finite and at least 0, not {a}")
        if not (math.isfinite(c) and c >= MIN_SECONDS_PER_SAMPLE):
            raise ValueError(
                f"worker {i}: seconds_per_sample must be finite and at least {MIN_SECONDS_PER_SAMPLE}, not {c}"
            )
    if len(fixed_seconds) != num_workers:
        raise ValueError(f"{len(fixed_seconds)} workers have speeds, {num_workers} have bounds")


class _Workers:
    """The times of all workers as a function of the grains they hold beyond their minimum."""

    def __init__(self, curves: Sequence[Curve], minimum: Sequence[int], capacity: Sequence[int], grain: int) -> None:
        self._rows = list(zip(curves, minimum, capacity, strict=True))
        self._grain = grain

    def seconds(self, worker: int, grains: int) -> float:
        """Step time; never decreases with `grains`, but by rounding where the pieces of a curve meet."""
        curve, low, _ = self._rows[worker]
        return curve.seconds(low + grains * self._grain)

    def safe_start(self, grains: int, about: float) -> list[int]:
        """Grains that the greedy rule surely gives before it has given `grains`; nearly all of them.

        All grains that end by some time T come before all that end later. So T is bisected until the grains that end by
        then are not more than `grains`, and less by at most one a worker (or T cannot be told apart any more).
        """
        if grains == 0:
            return [0] * len(self._rows)
        low, high, counts = 0.0, about, [0] * len(self._rows)
        while sum(reached := self._grains_by(high)) < grains:
            low, counts, high = high, reached, 2 * high
        while grains - sum(counts) > len(self._rows):
            middle = (low + high) / 2
            if not low < middle < high:
                break
            if sum(reached := self._grains_by(middle)) <= grains:
                low, counts = middle, reached
            else:
                high = middle
        return counts

    def _grains_by(self, time: float) -> list[int]:
        """Largest number of grains with which each worker ends by `time` (by the same arithmetic as `seconds`)."""
        grain = self._grain
        counts: list[int] = []
        for curve, low, capacity in self._rows:
            guess = min(curve.samples_by(time) - low, capacity * grain + 1.0)
            k = max(0, min(capacity, int(guess / grain)))
            while k < capacity and curve.seconds(low + (k + 1) * grain) <= time:
                k += 1
            while k > 0 and curve.seconds(low + k * grain) > time:
                k -= 1
            counts.append(k)
        return counts
