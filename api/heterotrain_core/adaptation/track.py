"""What the loop remembers of one worker: the steps that count, and whether its speed has changed since. Pure.

The change is a two-sided cusum on the ratio of predicted and measured time (A-8, B-2) with its increments capped, so
that it takes three slow steps whatever their size: a single stall is noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from types import MappingProxyType
from typing import Final, NamedTuple

from heterotrain_core.adaptation.estimate import (
    KEPT,
    SPREAD,
    TRUSTED,
    Point,
    SpeedModel,
    fit,
    is_near,
    means,
    step_spread,
)
from heterotrain_core.telemetry import StepRecord

COLD_STEPS: Final = 2
"""First steps of a process: lazy initialisation, allocator growth."""
DRIFT: Final = 0.05
THRESHOLD: Final = 0.3
LARGEST_DRIFT: Final = 0.2
"""Of a sum that is to notice a speed twice as high, whose steps add no more than 0.5, however much they vary."""
REFERENCE_STEPS: Final = 5
"""Records that a model must rest on before steps are held against it."""
REMEMBERED: Final = 16
"""Shares."""
REMEMBERED_SECONDS: Final = 240.0
"""What a share took may have been another program's doing: by then it may be tried again."""
_TINY: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Change:
    """A worker's speed has changed."""

    worker: str
    factor: float
    """Time now over time before, for the same share."""
    steps: int
    """Since when, in steps."""
    samples: int = 0
    """A share that no line foretold: the worker is as fast as before. 0: it is not."""
    cores: float = 0.0
    """Processor time per second of computing, now over before; 0: not known."""
    work: float = 0.0
    """Processor time per sample, now over before; 0: not known."""


class Former(NamedTuple):
    """How fast a worker was before a change of speed."""

    model: SpeedModel
    until: int
    """Sequence of the step that showed the change."""


class Known(NamedTuple):
    """What a share takes at the present speed."""

    seconds: float
    at: float
    """When it was among the kept steps last."""


@dataclass(frozen=True, slots=True)
class Sum:
    """One side of a cusum."""

    value: float = 0.0
    steps: int = 0
    """Since it left 0."""

    def add(self, increment: float) -> Sum:
        """The sum after one more step."""
        value = max(0.0, self.value + increment)
        return Sum(value, self.steps + 1 if value > 0 else 0)


@dataclass(frozen=True, slots=True)
class Track:
    """One worker. `points` are of one speed: those from before a change are forgotten, its shape stays in `prior`."""

    points: tuple[Point, ...] = ()
    model: SpeedModel | None = None
    prior: SpeedModel | None = None
    """The newest model with `a` and `c` told apart."""
    former: tuple[Former, ...] = ()
    """Models from before the newest changes of speed, oldest first."""
    spread: float = 0.0
    """Standard deviation of single steps, relative, as last known: it outlives a change of speed."""
    first_speed: float = 0.0
    """Samples a second when first known: tells slowness that was there from the beginning."""
    seen: int = 0
    """Sequence of the newest record."""
    remembered: Mapping[int, Known] = field(default_factory=dict)
    """The newest shares computed and their times at this speed, from steps older than `points` too."""
    sizes: frozenset[int] = frozenset()
    """Shares computed so far; the first step of each is left out."""
    slow: Sum = Sum()
    fast: Sum = Sum()
    news_at: float | None = None
    """When the newest usable record came."""
    bad: int = 0
    """Records without a usable time since then."""
    unfitted: int = 0
    """Points since `model` was fitted."""
    changes: int = 0
    last_factor: float = 1.0
    """Of the newest change."""

    @property
    def largest(self) -> int:
        """Largest share computed so far."""
        return max(self.sizes, default=0)


def follow(
    track: Track,
    worker: str,
    records: Sequence[StepRecord],
    now: float,
    shared: Mapping[int, float] = MappingProxyType({}),
) -> tuple[Track, list[Change]]:
    """Take in what is new in `records`; returns the changes of speed that show in it.

    `shared`: by sequence, the logarithm of what all other workers' steps of the same time deviate by: no change of this
    one.
    """
    changes: list[Change] = []
    if records and records[-1].sequence < track.seen:
        track = Track(prior=track.prior, first_speed=track.first_speed, news_at=now)  # it counts anew: started again
    for record in records:
        if record.sequence <= track.seen:
            continue
        track = replace(track, seen=record.sequence)
        point = point_of(record)
        if point is None:
            track = replace(track, bad=track.bad + 1)
            continue
        known = point.samples in track.sizes
        track = replace(track, sizes=track.sizes | {point.samples}, news_at=now, bad=0)
        if record.sequence <= COLD_STEPS or not known:
            continue
        track, change = _take(track, worker, point, shared.get(record.sequence, 0.0))
        changes += change
    return (_refit(track) if _is_stale(track) else track), changes


def point_of(record: StepRecord) -> Point | None:
    """The record as a point; `None` if its times mean nothing (0, negative, not finite)."""
    t = record.timings
    busy = t.compute + max(0.0, t.data)
    beside = t.push + max(0.0, t.receive) + max(0.0, t.other) + _late(record)
    times = (busy, t.push, beside, t.step)
    if record.samples < 1 or t.compute <= 0 or not all(math.isfinite(x) and x >= 0 for x in times):
        return None
    cpu = t.cpu if math.isfinite(t.cpu) else 0.0
    return Point(record.sequence, record.samples, busy, beside, t.step, cpu, record.ended)


def _late(record: StepRecord) -> float:
    """What of a worker's wait for its next version was its own: from when it could have had it.

    The answer comes while it is held up itself (by a CPU limit, which its step has used up, or on a slow link).
    """
    waited = record.timings.pull - max(0.0, record.timings.receive)
    return 0.0 if record.withheld is None or not math.isfinite(waited) else max(0.0, waited - record.withheld)


def _take(track: Track, worker: str, point: Point, shared: float) -> tuple[Track, list[Change]]:
    points = (*track.points, point)
    before, lately = points[-2 * TRUSTED : -TRUSTED], points[-TRUSTED:]
    if len(before) == TRUSTED and _sizes(lately) == {point.samples} and point.samples not in _sizes(before):
        # It is back at a size, and not for the one ragged round of an epoch: what that takes now counts.
        points = (*(p for p in points[:-TRUSTED] if p.samples != point.samples), *lately)
    track = replace(track, points=points[-KEPT:], unfitted=track.unfitted + 1)
    model = track.model
    if model is None or model.steps < REFERENCE_STEPS:
        return track, []
    drift, threshold = _allowance(model.noise)
    cap = drift + threshold / 2
    expected = _expected(model.seconds(point.samples), point.busy, shared)
    slow = track.slow.add(min(1.0 - expected / point.busy, cap) - drift)
    fast = track.fast.add(min(1.0 - point.busy / expected, cap) - drift)
    track = replace(track, slow=slow, fast=fast)
    alarmed = max(slow, fast, key=lambda sum_: sum_.value)
    if alarmed.value <= threshold + _TINY:
        return track, []
    fresh = _since_change(track.points[-alarmed.steps :], model)
    factor = median([p.busy / model.seconds(p.samples) for p in fresh])
    cores, work = _processor(track.points[: -len(fresh)], fresh)
    changed = replace(track, slow=Sum(), fast=Sum(), changes=track.changes + 1, last_factor=factor)
    if _is_size(track, model, fresh, factor):
        return _refit(changed), [Change(worker, factor, len(fresh), point.samples, cores, work)]
    remembered = _at_new_speed(track.remembered, fresh, factor)
    former = (*_lately(track.former, point.sequence), Former(model, point.sequence))
    changed = replace(changed, points=fresh, model=None, former=former, remembered=remembered)
    return _refit(changed), [Change(worker, factor, len(fresh), 0, cores, work)]


def _expected(seconds: float, measured: float, shared: float) -> float:
    """What was to be expected of a step whose deviation is `shared` by all others, at most up to what was measured."""
    off = math.log(measured / seconds)
    return seconds * math.exp(max(0.0, min(off, shared)) if off > 0 else min(0.0, max(off, shared)))


def _allowance(noise: float) -> tuple[float, float]:
    """Drift and threshold of the cusum for steps with this standard deviation, relative."""
    if noise <= LARGEST_DRIFT:
        return max(DRIFT, noise), max(THRESHOLD, 6 * noise)
    return LARGEST_DRIFT, 10 * noise


def _at_new_speed(remembered: Mapping[int, Known], fresh: Sequence[Point], factor: float) -> dict[int, Known]:
    """What is remembered, after a change of speed by `factor`: changed with it, but left where that is in proportion.

    A change of speed that came with a new share was taken for that share's effect (`_is_size`). When it goes, or shows
    with the old share too, the shares of before are as they were, and the new one is no dearer than others.
    """
    even = median([p.busy / p.samples for p in fresh])

    def off(size: int, seconds: float) -> float:
        return abs(math.log(seconds / (even * size)))

    def now(size: int, seconds: float) -> float:
        stays = off(size, seconds) < min(math.log(SPREAD), off(size, seconds * factor))
        return seconds if stays else seconds * factor

    return {size: known._replace(seconds=now(size, known.seconds)) for size, known in remembered.items()}


def _sizes(points: Iterable[Point]) -> set[int]:
    return {p.samples for p in points}


def _processor(before: Sequence[Point], now: Sequence[Point]) -> tuple[float, float]:
    """Processor time per second of computing and per sample, now over before; 0: not known."""
    known, new = ([p for p in points if p.cpu > 0] for points in (before, now))
    if not known or not new:
        return 0.0, 0.0
    cores = median([p.cpu / p.busy for p in new]) / median([p.cpu / p.busy for p in known])
    return cores, median([p.cpu / p.samples for p in new]) / median([p.cpu / p.samples for p in known])


def _is_size(track: Track, model: SpeedModel, fresh: Sequence[Point], factor: float) -> bool:
    """Whether what seems a change of speed is how a new size is: so are all of its steps, and none near it is known.

    Not where the worker is as it was before a change of not long ago: what had slowed it down is gone again.
    """
    size = fresh[-1].samples
    for former in _lately(track.former, fresh[-1].sequence):
        before = median([p.busy / former.model.seconds(p.samples) for p in fresh])
        if max(before, 1.0 / before) < SPREAD:
            return False
    times = [p.busy for p in track.points if p.samples == size]
    times += [track.remembered[size].seconds] if size in track.remembered else []
    ratios = [t / model.seconds(size) for t in times]
    others = {*_sizes(track.points), *track.remembered} - {size}
    return all(abs(r - factor) <= abs(r - 1.0) for r in ratios) and not any(is_near(size, other) for other in others)


def _lately(former: Sequence[Former], sequence: int) -> tuple[Former, ...]:
    """Those of not long before a step."""
    return tuple(f for f in former if sequence - f.until < KEPT)


def _since_change(points: tuple[Point, ...], model: SpeedModel) -> tuple[Point, ...]:
    """Without the first points that still fit the old model better: noise may have begun the sum too early."""
    factor = median([p.busy / model.seconds(p.samples) for p in points[-TRUSTED:]])
    while len(points) > TRUSTED:
        ratio = points[0].busy / model.seconds(points[0].samples)
        if abs(ratio - factor) <= abs(ratio - 1.0):
            break
        points = points[1:]
    return points


def _is_stale(track: Track) -> bool:
    """Whether the points since the last fit matter: an eighth of them, or another size."""
    if track.model is None or not track.unfitted:
        return track.unfitted > 0
    new = track.points[-track.unfitted :]
    return track.unfitted > track.model.steps // 8 or len(_sizes(new)) > 1 or len(new) == len(track.points)


def _refit(track: Track) -> Track:
    track = replace(track, unfitted=0)
    now = track.news_at or 0.0
    recent = {size: known for size, known in track.remembered.items() if now - known.at < REMEMBERED_SECONDS}
    model = fit(track.points, track.prior, {size: known.seconds for size, known in recent.items()})
    if model is None:
        return replace(track, model=None)
    measured = {size: Known(seconds, now) for size, seconds in means(track.points).items()}
    older = {size: known for size, known in recent.items() if size not in measured}
    track = replace(track, remembered=dict([*older.items(), *measured.items()][-REMEMBERED:]))
    spread = step_spread(track.points)
    track = track if spread is None else replace(track, spread=spread)
    speed = track.first_speed
    if not speed and model.steps >= REFERENCE_STEPS:
        speed = track.points[-1].samples / model.seconds(track.points[-1].samples)
    return replace(track, model=model, prior=model if model.identified else track.prior, first_speed=speed)


def forget(track: Track, share: int) -> Track:
    """The track without what it knows of one share: it is computed in another way from now on."""
    points = tuple(p for p in track.points if p.samples != share)
    remembered = {size: known for size, known in track.remembered.items() if size != share}
    return _refit(replace(track, points=points, remembered=remembered, slow=Sum(), fast=Sum()))


def cpu_per_sample(track: Track, share: int, after: int = -1) -> float:
    """Processor seconds that a sample took with exactly this share, later than sequence `after`; 0: not known."""
    known = [p.cpu / p.samples for p in steps_with(track.points, share, after) if p.cpu > 0]
    return median(known) if known else 0.0


def steps_with(points: Iterable[Point], share: int, after: int = -1) -> list[Point]:
    """The points with exactly this share, later than sequence `after`."""
    return [p for p in points if p.samples == share and p.sequence > after]
