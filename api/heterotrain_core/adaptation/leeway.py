"""How much earlier than the others a worker is planned to finish whose steps vary, and what such a round takes. Pure.

A round ends with its last worker, and single steps vary: with equal mean times whoever varies most, or is slowest, is
last too often. One sample less costs the others little and saves a slow worker much, so the least expected round is not
that of equal means. Where it is least, moving a sample between any two workers changes nothing: the chance of being
last, times the seconds of a sample, is the same for all. So a worker should be last as often as its part of all speed.

With independent normal times, and a deadline that all meet in every second round, that is so (exactly for hazards,
``-log P(in time)``) where a worker of the part ``w`` of all speed meets it with the probability ``2 ** -w``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

LARGEST: Final = 0.25
"""Of a worker's time, beyond what all have: what is lost if its steps do not vary as they seemed to stays small."""
SURE: Final = 1 - 1e-9
"""Probability beyond which nobody is asked to be in time."""
REACH: Final = 4.0
"""Standard deviations beyond which nothing is expected."""
POINTS: Final = 128
"""At which the distribution of the last one's time is taken: as far apart as a sixteenth of the largest deviation."""
_NORMAL: Final = NormalDist()


def leeways(seconds_per_sample: Sequence[float], spreads: Sequence[float]) -> list[float]:
    """How much longer than its mean each worker's time is to be planned, relative; 0 for whoever needs least.

    `spreads`: standard deviations of single steps, relative to their mean.
    """
    speeds = [1.0 / pace for pace in seconds_per_sample]
    total = sum(speeds)
    late = [spread * _quantile(speed / total) for speed, spread in zip(speeds, spreads, strict=True)]
    least = min(late, default=0.0)
    return [min(LARGEST, (1.0 + part) / (1.0 + least) - 1.0) for part in late]


def _quantile(part: float) -> float:
    """Standard deviations after which a worker with this part of all speed is to be done in time."""
    return _NORMAL.inv_cdf(min(2.0**-part, SURE))


def expected_last(means: Sequence[float], deviations: Sequence[float]) -> float:
    """Expected seconds until the last one is done, of independent normal times; the largest mean if nothing varies.

    ``E[max] = low + integral from low of 1 - P(all done by t)``, with `low` before which the last one is surely not.
    """
    times = list(zip(means, deviations, strict=True))
    low = max((mean - REACH * deviation for mean, deviation in times), default=0.0)
    high = max((mean + REACH * deviation for mean, deviation in times), default=0.0)
    varying = [(mean, deviation) for mean, deviation in times if deviation > 0 and mean + REACH * deviation > low]
    width = (high - low) / POINTS
    return low + width * sum(1.0 - _all_done(low + (i + 0.5) * width, varying) for i in range(POINTS if varying else 0))


def _all_done(at: float, varying: Sequence[tuple[float, float]]) -> float:
    """Probability."""
    return math.prod(0.5 * math.erfc((mean - at) / (deviation * math.sqrt(2.0))) for mean, deviation in varying)
