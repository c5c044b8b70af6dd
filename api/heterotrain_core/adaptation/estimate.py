"""How long a worker takes for a share: ``a + c b``, from its step records (algorithms.md B2, C4). Pure.

Only compute and data scale with the share; what the worker does beside them (it pushes, receives, talks) is a part of
`a`. Waiting for others is a result and never counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, pstdev, quantiles
from typing import Final

from heterotrain_core.curve import Curve, line, through
from heterotrain_core.info.stats import MAD_TO_SIGMA, mad, theil_sen

KEPT: Final = 100
"""Records that a model rests on at most."""
TRUSTED: Final = 3
"""Records needed before a worker is given another share."""
OUTLIER_Z: Final = 4.0
NOISE_FLOOR: Final = 0.01
"""Of the median: paced steps vary by less, and any step would be an outlier."""
CHANGE_PART: Final = 0.25
"""More outliers than this part are a change, not noise."""
SPREAD: Final = 1.2
"""Largest over smallest size from which on `a` and `c` can be told apart."""
CERTAINTY: Final = 3.0
"""Standard errors beyond which a difference is none of chance."""
ANCHORED: Final = 8
"""With so many records of the present size the model passes through their mean: shares are moved from there."""
LEAST_SLOPE: Final = 0.1
"""Of ``t / b``: a device that is not full yet takes no longer for more samples, but it will not stay so."""
SLOPE_SPREAD: Final = 0.25
"""How far slopes lie from ``t / b``, relative: what is assumed of a worker before two of its sizes are compared.

Not far, since what is beside computing is known by itself.
"""


@dataclass(frozen=True, slots=True)
class Point:
    """One step that counts. Times in seconds."""

    sequence: int
    samples: int
    busy: float
    """Compute and data: what scales with the share."""
    beside: float
    """Pushing, receiving and what else it does itself: in no relation to the share."""
    step: float
    """From the end of one iteration to that of the next, waits included."""
    cpu: float = 0.0
    """Processor time of the computing; 0: not known."""
    ended: float = 0.0
    """When the coordinator had it, on its own clock; 0: not known."""


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """Seconds of a worker for a share."""

    fixed: float
    per_sample: float
    error: float = 0.0
    """Standard error at the present share, relative."""
    noise: float = NOISE_FLOOR
    """Standard deviation of single steps around the model, relative."""
    own: float = 1.0
    """Part of the variation of its steps that other workers do not show at the same time."""
    identified: bool = False
    """`fixed` and `per_sample` were told apart by sizes that differ; else `fixed` is a guess (0 at first)."""
    steps: int = 0
    dropped: int = 0
    knots: tuple[tuple[int, float], ...] = ()
    """Sizes and their measured times, where more samples take more than in proportion: no line passes through them."""

    @property
    def curve(self) -> Curve:
        """Time for any share, without what is beside computing."""
        return through(self.knots) if self.knots else line(self.fixed, self.per_sample)

    def seconds(self, samples: float) -> float:
        """Time for a share, without what is beside computing."""
        return self.curve.seconds(samples) if self.knots else self.fixed + self.per_sample * samples

    def times(self, factor: float) -> SpeedModel:
        """The model of a worker that takes `factor` times as long for everything."""
        knots = tuple((size, seconds * factor) for size, seconds in self.knots)
        return replace(self, fixed=self.fixed * factor, per_sample=self.per_sample * factor, knots=knots)


def fit(
    points: Sequence[Point], prior: SpeedModel | None = None, remembered: Mapping[int, float] | None = None
) -> SpeedModel | None:
    """The model of a worker; `None` with fewer than `TRUSTED` points.

    With one size seen, the ratio of ``a`` to ``c`` is that of `prior` (a model that was identified before a change of
    speed), and without one ``t = b / v``. Outliers (robust z above 4) are left out unless they are too many.
    """
    if len(points) < TRUSTED:
        return None
    sizes = _by_size(points)
    kept = {size: without_outliers(times) for size, times in sizes.items()}
    means = {size: _centre(sizes[size], times) for size, times in kept.items()}
    present = present_size(points)
    knots = _knots(means, kept, present, remembered or {})
    told = None if knots else _line(means, kept, present)
    even = (0.0, means[present] / present)
    fixed, per_sample = even if knots else told or _through(present, means[present], prior)
    curve = through(knots) if knots else line(fixed, per_sample)
    residuals = [t / curve.seconds(size) - 1.0 for size, times in kept.items() for t in times]
    noise = max(NOISE_FLOOR, MAD_TO_SIGMA * median([abs(r) for r in residuals]))
    if len(sizes[present]) < ANCHORED:  # two stalls among three steps look like agreement
        noise = max(noise, pstdev(sizes[present]) / means[present])
    identified = bool(knots) or told is not None or (prior is not None and prior.identified)
    return SpeedModel(
        fixed=fixed,
        per_sample=per_sample,
        error=noise / math.sqrt(len(kept[present])),
        noise=noise,
        identified=identified,
        steps=len(points),
        dropped=len(points) - sum(map(len, kept.values())),
        knots=knots,
    )


def _knots(
    means: Mapping[int, float], kept: Mapping[int, Sequence[float]], present: int, remembered: Mapping[int, float]
) -> tuple[tuple[int, float], ...]:
    """Where more samples take more than in proportion, by more than single steps vary and than so few can tell: the
    sizes; else nothing.
    """
    told = {**remembered, **{size: means[size] for size, times in kept.items() if len(times) >= TRUSTED}}
    even, spread = means[present] / present, pstdev(kept[present]) / means[present]
    off = {size: math.log(told[size] / (even * size)) for size in told if not is_near(size, present)}

    def certain(size: int) -> float:
        """Told by few steps, a size is off by chance; how many a remembered one rested on is not known."""
        counts = len(kept.get(size, ())), len(kept[present])
        return spread * max(1.0, CERTAINTY * math.sqrt(sum(1 / max(count, TRUSTED) for count in counts)))

    if not any(abs(by) > certain(size) and (by > 0) == (size > present) for size, by in off.items()):
        return ()
    times = {present: means[present]}
    for size, by in off.items():  # nearer to the time in proportion the less it differs from that for how steps vary
        times[size] = even * size * math.exp(by * (by**2 / (by**2 + 2 * spread**2) if by else 1.0))
    sizes = sorted(times)
    return tuple(zip(sizes, _pooled([(times[size], 1) for size in sizes]), strict=True))


def is_near(size: int, other: int) -> bool:
    """Whether two sizes are too near each other to tell how time depends on the size."""
    return max(size, other) < SPREAD * min(size, other)


def means(points: Sequence[Point]) -> dict[int, float]:
    """Time of each size that has been measured often enough."""
    told = {size: times for size, times in _by_size(points).items() if len(times) >= TRUSTED}
    return {size: _centre(times, without_outliers(times)) for size, times in told.items()}


def _by_size(points: Sequence[Point], seconds: Callable[[Point], float] = lambda p: p.busy) -> dict[int, list[float]]:
    sizes: dict[int, list[float]] = {}
    for point in points:
        sizes.setdefault(point.samples, []).append(seconds(point))
    return sizes


def step_spread(points: Sequence[Point]) -> float | None:
    """Standard deviation of single steps, all that a worker does itself included, relative; `None`: too few to tell.

    Half of what lies between the 16th and the 84th percentile, which stalls do not move. Of the steps with the present
    size if there are enough, else of all sizes around their own medians; what exceeds `NOISE_FLOOR`.
    """
    sizes = _by_size(points, lambda p: p.busy + p.beside)
    present = sizes[present_size(points)] if points else []
    told = [present] if len(present) >= ANCHORED else [times for times in sizes.values() if len(times) >= TRUSTED]
    ratios = [t / middle for times in told if (middle := median(times)) > 0 for t in times]
    if len(ratios) < ANCHORED:
        return None
    twentyfifths = quantiles(ratios, n=25, method="inclusive")
    return math.sqrt(max(0.0, ((twentyfifths[20] - twentyfifths[3]) / 2) ** 2 - NOISE_FLOOR**2))


def without_outliers(times: Sequence[float]) -> list[float]:
    """Times whose robust z is at most 4, with a spread of 1 % at least; all of them if too many would go."""
    middle = median(times)
    spread = MAD_TO_SIGMA * max(mad(times), NOISE_FLOOR * middle)
    kept = [t for t in times if abs(t - middle) <= OUTLIER_Z * spread]
    return kept if len(times) - len(kept) <= CHANGE_PART * len(times) else list(times)


def _centre(times: Sequence[float], kept: Sequence[float]) -> float:
    """The mean without outliers; of few times the median, since one of three is not seen to be an outlier."""
    return fmean(kept) if len(times) >= ANCHORED else median(times)


def present_size(points: Sequence[Point]) -> int:
    """The size that is worked with now: of the last ten points' sizes the most frequent, the newer of two."""
    recent = [p.samples for p in points[-10:]]
    return max(reversed(recent), key=recent.count)


def _line(means: dict[int, float], kept: dict[int, list[float]], present: int) -> tuple[float, float] | None:
    """``a`` and ``c`` from sizes that differ; `None` if they do not, or only by single steps."""
    told = sorted(size for size, times in kept.items() if len(times) >= TRUSTED)
    if len(told) < 2 or told[-1] < SPREAD * told[0]:
        return None
    pooled = dict(zip(told, _pooled([(means[size], len(kept[size])) for size in told]), strict=True))
    fitted = theil_sen([(float(size), seconds) for size, seconds in pooled.items()])
    if fitted is None:
        return None
    at = present if present in pooled and len(kept[present]) >= ANCHORED else told[len(told) // 2]
    even = pooled[at] / at
    trust = _slope_trust({size: kept[size] for size in told}, fitted.intercept, fitted.slope, at)
    slope = max(trust * fitted.slope + (1 - trust) * even, LEAST_SLOPE * even)
    fixed = pooled[at] - slope * at
    return (fixed, slope) if fixed >= 0 else (0.0, even)


def _slope_trust(kept: Mapping[int, Sequence[float]], intercept: float, slope: float, at: int) -> float:
    """How much a measured slope counts against ``t / b``, 0 to 1.

    Sizes are computed one after the other, and whatever else the machine did meanwhile is in their difference: that
    does not become less with more steps. So a mean is taken to be as uncertain as a single step, and one that lies off
    the line as uncertain as it is off. Without this a fast worker on a loaded machine, which the load left just when
    its share grew, seems to take the same time for any share; then it is given the smallest.
    """
    spreads = [pstdev(times) / fmean(times) for times in kept.values()]
    misfits = [fmean(times) / max(intercept + slope * size, 1e-12) - 1.0 for size, times in kept.items()]
    spread = math.hypot(max(spreads), max(map(abs, misfits)))
    reach = (max(kept) - min(kept)) / at
    return SLOPE_SPREAD**2 / (SLOPE_SPREAD**2 + 2 * (spread / reach) ** 2)


def _pooled(weighted: Sequence[tuple[float, int]]) -> list[float]:
    """Means that never fall with the size: neighbours that do are pooled, by weight (isotonic regression)."""
    blocks: list[tuple[float, int, int]] = []
    for value, weight in weighted:
        mean, total, count = value, weight, 1
        while blocks and blocks[-1][0] > mean:
            before, weight_before, count_before = blocks.pop()
            mean = (before * weight_before + mean * total) / (weight_before + total)
            total, count = total + weight_before, count + count_before
        blocks.append((mean, total, count))
    return [mean for mean, _, count in blocks for _ in range(count)]


def _through(size: int, seconds: float, prior: SpeedModel | None) -> tuple[float, float]:
    """A line through one point: with the shape of `prior`, else in proportion."""
    if prior is None or not prior.identified or prior.knots:
        return 0.0, seconds / size
    factor = seconds / prior.seconds(size)
    return prior.fixed * factor, prior.per_sample * factor


@dataclass(frozen=True, slots=True)
class LinkModel:
    """Seconds of a transfer: ``delay + bytes / rate``."""

    delay: float
    rate: float

    def seconds(self, size: float) -> float:
        """Time for `size` bytes."""
        return self.delay + size / self.rate


def fit_link(transfers: Sequence[tuple[int, float]]) -> LinkModel | None:
    """The model from (bytes, seconds); `None` unless two sizes differ and more bytes take longer (A-9)."""
    fitted = theil_sen([(float(size), seconds) for size, seconds in transfers])
    if fitted is None or fitted.slope <= 0:
        return None
    return LinkModel(max(0.0, fitted.intercept), 1.0 / fitted.slope)
