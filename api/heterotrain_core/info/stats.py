"""Order statistics and the robust line, over lists. Empty lists have none: the functions need at least one value."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Final, NamedTuple

MAD_TO_SIGMA: Final = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


def quantile(values: Sequence[float], q: float) -> float:
    """Linear interpolation between order statistics at position ``q (n - 1)``; `q` from 0 to 1."""
    return quantile_sorted(sorted(values), q)


def quantile_sorted(ordered: Sequence[float], q: float) -> float:
    """As `quantile`, of values in order."""
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    part = position - low
    return ordered[low] if part == 0 else ordered[low] + part * (ordered[low + 1] - ordered[low])


def median(values: Sequence[float]) -> float:
    """The 0.5 quantile."""
    return quantile(values, 0.5)


def mad(values: Sequence[float]) -> float:
    """Median absolute deviation around the median."""
    middle = median(values)
    return median([abs(value - middle) for value in values])


def robust_z(value: float, values: Sequence[float]) -> float:
    """``(value - median) / (1.4826 mad)``; with a mad of 0: 0 at the median, else infinite."""
    middle, spread = median(values), mad(values)
    if spread == 0:
        return 0.0 if value == middle else math.inf
    return (value - middle) / (MAD_TO_SIGMA * spread)


class Line(NamedTuple):
    """``y = intercept + slope x``."""

    intercept: float
    slope: float


def theil_sen(points: Sequence[tuple[float, float]]) -> Line | None:
    """The line of the median of pair slopes and the median residual; `None` without two different x.

    Theil 1950, Sen 1968: a wrong minority (up to 29 %) does not move it.
    """
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if a[0] != b[0]]
    if not slopes:
        return None
    slope = median(slopes)
    return Line(median([y - slope * x for x, y in points]), slope)


AGGREGATES: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "mean": fmean,
    "sum": math.fsum,
    "min": min,
    "max": max,
    "median": median,
    "mad": mad,
    "count": lambda values: float(len(values)),
}
"""What many values at once may be reduced by."""
