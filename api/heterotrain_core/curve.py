"""How long a worker takes for a share where that is no line: straight pieces, one after the other. Pure.

A container that is held to a part of a core (CFS bandwidth control: so much processor time in each period, then it is
stopped until the next) computes a small share without a stop and a larger one with several: twice the samples may take
ten times as long. No line through measured sizes says that, and one that is forced through them moves shares too far.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

STEEPEST: Final = 4.0
"""Of ``t / b`` at the largest size that was measured: more is not assumed beyond it."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Piece `i` begins at a share of ``starts[i]`` and takes ``fixed[i] + slopes[i] x share`` seconds.

    `starts` rise, `slopes` are at least 0 and pieces meet: more samples never take less.
    """

    starts: tuple[float, ...]
    fixed: tuple[float, ...]
    slopes: tuple[float, ...]

    def seconds(self, samples: float) -> float:
        """Time for a share."""
        at = max(0, bisect_right(self.starts, samples) - 1)
        return self.fixed[at] + self.slopes[at] * samples

    def samples_by(self, seconds: float) -> float:
        """About the largest share that takes no longer; infinite if any does."""
        for at in reversed(range(len(self.starts))):
            if at and self.fixed[at] + self.slopes[at] * self.starts[at] > seconds:
                continue
            end = self.starts[at + 1] if at + 1 < len(self.starts) else math.inf
            return min((seconds - self.fixed[at]) / self.slopes[at], end) if self.slopes[at] > 0 else end
        return 0.0

    def later(self, seconds: float) -> Curve:
        """The same with so many seconds more for any share."""
        return Curve(self.starts, tuple(fixed + seconds for fixed in self.fixed), self.slopes)

    def times(self, factor: float) -> Curve:
        """The same, but `factor` times as long for any share."""
        return Curve(self.starts, tuple(factor * f for f in self.fixed), tuple(factor * s for s in self.slopes))


def line(fixed: float, per_sample: float) -> Curve:
    """One piece."""
    return Curve((0.0,), (fixed,), (per_sample,))


def through(knots: Sequence[tuple[int, float]]) -> Curve:
    """Straight from knot (size, seconds) to knot; below the first in proportion, beyond the last as steep as before it.

    Sizes rise, seconds do not fall.
    """
    first, least = knots[0]
    pieces = [(0.0, 0.0, least / first)]
    for (size, seconds), (further, then) in itertools.pairwise(knots):
        slope = (then - seconds) / (further - size)
        pieces.append((float(size), seconds - slope * size, slope))
    last, most = knots[-1]
    slope = min(max(most / last, pieces[-1][2]), STEEPEST * most / last)
    pieces.append((float(last), most - slope * last, slope))
    starts, fixed, slopes = zip(*pieces, strict=True)
    return Curve(starts, fixed, slopes)
