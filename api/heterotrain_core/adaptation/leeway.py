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
from typing import Final, NamedTuple

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


class Last(NamedTuple):
    """The last of some workers to be done."""

    seconds: float
    """Expected until then."""
    chances: tuple[float, ...]
    """Of each worker to be the last one."""


def expected_last(means: Sequence[float], deviations: Sequence[float]) -> Last:
    """Who is done last, and when, of independent normal times; the largest mean if nothing varies.

    ``E[max] = low + integral from low of 1 - P(all done by t)``, with `low` before which the last one is surely not.
    ``P(k last) = integral of dF_k x P(all others done by t)``: of what `P(all done)` rises by, the part of the rise of
    its own logarithm. So the chances sum up to 1 however narrow a distribution is against the steps in time.
    """
    times = list(zip(means, deviations, strict=True))
    low = max((mean - REACH * deviation for mean, deviation in times), default=0.0)
    high = max((mean + REACH * deviation for mean, deviation in times), default=0.0)
    varying = [i for i, (mean, deviation) in enumerate(times) if deviation > 0 and mean + REACH * deviation > low]
    chances, waits, width = [0.0] * len(times), 0.0, (high - low) / POINTS
    before = _done([times[i] for i in varying], low)
    for point in range(POINTS if varying else 0):
        done = _done([times[i] for i in varying], low + (point + 1) * width)
        all_before, all_done = math.prod(before), math.prod(done)
        waits += (1.0 - (all_before + all_done) / 2) * width
        rises = [math.log(now / then) for now, then in zip(done, before, strict=True)]
        rise = (all_done - all_before) / (sum(rises) or 1.0)  # or: none rises where all are done
        for i, own in zip(varying, rises, strict=True):
            chances[i] += rise * own
        before = done
    if times:  # whose time is constant is the last one whenever all that vary are done by then
        constant = max(range(len(times)), key=lambda i: (times[i][1] <= 0, times[i][0]))
        chances[constant] += max(0.0, 1.0 - sum(chances))
    return Last(low + waits, tuple(chances))


def _done(times: Sequence[tuple[float, float]], by: float) -> list[float]:
    """Probability of each to be done by then; above 0 where `REACH` deviations are enough for each."""
    root = math.sqrt(2.0)
    return [0.5 * math.erfc((mean - by) / (deviation * root)) for mean, deviation in times]
