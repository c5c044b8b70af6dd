"""Whether a better plan is put in force now: dead band, windows, cool-down, oscillation, roll back (B3). Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final, NamedTuple

from heterotrain_core.adaptation.estimate import CERTAINTY, KEPT, NOISE_FLOOR, Point, SpeedModel
from heterotrain_core.adaptation.track import Track, steps_with
from heterotrain_core.adaptation.values import Settings, Verification, WorkerSeen
from heterotrain_core.info.stats import MAD_TO_SIGMA, mad

SETTLED_BAND: Final = 1.2
"""Times the dead band once nothing has changed for long."""
ROUGH_BAND: Final = 1.5
"""The same where models are rough."""
FINE_BAND: Final = 1 / 3
"""Of the dead band, for the one correction of shares that were chosen from few steps, once many are there."""
FEW: Final = KEPT // 2
"""Steps: shares chosen from fewer are looked at once more when as many as are kept are there."""
OPPOSITE: Final = -0.5
"""Cosine of two changes of shares below which the second undoes the first."""
REVERSALS: Final = 3
"""So many in a row freeze the shares."""
MEMORY_COOLDOWNS: Final = 4
"""A change that comes so many cool-downs after the last, or later, undoes nothing."""
LEAST_PART: Final = 0.5
"""Of the way after a reversal. Smaller steps would stay within the dead band for ever."""
THAW_GAIN: Final = 0.1
"""A gain above it ends a freeze early."""
THAW_WINDOWS: Final = 6
"""Windows in a row for which it must have lasted."""
VERIFY_STEPS: Final = 8
MOST_DOUBT: Final = 0.5
"""Whatever predictions came to, larger gains are still taken."""
DOUBT_SECONDS: Final = 120.0
"""Half of the doubt is gone after so long: without a change there is nothing that could come true."""
AS_PREDICTED: Final = 0.1
"""A prediction that is wrong by no more has come true."""
RECENT: Final = 20


@dataclass(frozen=True, slots=True)
class Made:
    """A change of shares that was agreed."""

    generation: int
    effective_round: int
    before: Mapping[str, int]
    after: Mapping[str, int]
    predicted_seconds: float
    speed_before: float
    """Measured, samples a second; 0: not known."""
    noise_before: float
    """Standard error of it, relative."""
    changes: Mapping[str, int]
    """Changes of speed seen until then, by worker."""
    paces: Mapping[str, float] = field(default_factory=dict)
    """Seconds per sample with the shares from before, by the models of then."""
    foretold: Mapping[str, float] = field(default_factory=dict)
    """Seconds per sample with the new shares, by the same models."""
    cpus: Mapping[str, float] = field(default_factory=dict)
    """Processor seconds that a sample took with the shares from before; 0: not known."""
    parts: Mapping[str, int] = field(default_factory=dict)
    """Workers that compute their share in parts since this change, with the size of a part."""
    marks: Mapping[str, int] | None = None
    """Newest step of each worker when it came into force; `None`: it has not yet."""
    verified: bool = False
    held: bool = False
    """The trust region held shares of it back: better ones may lie further the same way."""
    blind: bool = False
    """Made before any speed was known: nothing is learned from it, and nothing waits for it."""
    steps: int = 0
    """Of the model that rested on the fewest when it was made."""
    refined: bool = False
    """Its shares need no second look (see `Guard.refined`)."""


@dataclass(frozen=True, slots=True)
class Guard:
    """What holds changes back."""

    over: int = 0
    """Windows in a row with a gain beyond the band."""
    part: float = 1.0
    """Of the way to the wanted shares; half of it after a reversal."""
    widen: int = 1
    """Windows and cool-down are this many times as long; doubled by each reversal."""
    reversals: int = 0
    frozen_until: float = -math.inf
    frozen_why: str = ""
    made: Made | None = None
    doubt: float = 0.0
    """How much longer than predicted rounds took of late, relative: a gain within it is not believed."""
    doubted_at: float = 0.0
    """When that was."""
    missed: Made | None = None
    """The change whose prediction missed by that."""
    refined: bool = False
    """The shares were chosen, or found good to the fine band, by models that rest on many steps."""
    generation: int = 0
    """Of the newest plan that is known; one beyond it is somebody else's."""


class Verdict(NamedTuple):
    """Whether to act now, and why (not), as the end of a sentence."""

    act: bool
    words: str


def band(
    settings: Settings,
    models: Iterable[SpeedModel],
    doubt: float = 0.0,
    uncertainty: float | None = None,
    *,
    refined: bool = True,
) -> float:
    """What a gain must exceed: the dead band, three standard errors of it, or `doubt`.

    `uncertainty`: standard error of the gain, relative; `None`, where models are rough: that of the worst model.
    More of it once all models rest on as many steps as are kept, most with rough ones: what is left to gain has been
    there all the time and was within the band; with noise it will be beyond, one day. Less of it just before that, for
    shares that are not `refined` yet: what few steps are wrong by stays within the dead band, for as long as the job.
    """
    known = list(models)
    error = max((m.error for m in known), default=0.0) if uncertainty is None else uncertainty
    settled = bool(known) and min(m.steps for m in known) >= KEPT
    if settled and not refined and uncertainty is not None:
        return max(settings.dead_band * FINE_BAND, CERTAINTY * error, doubt)
    limit = max(settings.dead_band, CERTAINTY * error, doubt)
    return limit * (ROUGH_BAND if uncertainty is None else SETTLED_BAND) if settled else limit


def of_plan(guard: Guard, generation: int) -> Guard:
    """With the newest plan; one that somebody else has made (by hand) has had no look yet."""
    return replace(guard, generation=generation, refined=False) if generation > guard.generation else guard


def judge(
    guard: Guard, settings: Settings, *, gain: float, limit: float, version: int, now: float, urgent: str, window: bool
) -> tuple[Guard, Verdict]:
    """Decide on a plan with this `gain`. `urgent`: why windows and cool-down are passed over; `window`: one is over."""
    if gain <= limit:
        words = f"new shares would gain {gain:.1%}, within the dead band of {limit:.1%}"
        return replace(guard, over=0), Verdict(False, words)
    if now < guard.frozen_until:
        return _frozen(guard, gain=gain, limit=limit, now=now, urgent=urgent, window=window)
    if urgent:
        return replace(guard, over=0), Verdict(True, urgent)
    guard = replace(guard, over=guard.over + 1) if window else guard
    widen = 1 if is_calm(guard, settings, version) else guard.widen
    cooldown, windows = settings.cooldown_rounds * widen, settings.windows * widen
    if guard.made is not None and version - guard.made.effective_round < cooldown:
        since = version - guard.made.effective_round
        return guard, Verdict(False, f"new shares would gain {gain:.1%}; cool-down: round {since} of {cooldown}")
    if guard.over < windows:
        words = f"new shares would gain {gain:.1%}; this must last: window {guard.over} of {windows}"
        return guard, Verdict(False, words)
    return replace(guard, over=0), Verdict(True, f"the gain lasted for {windows} windows")


def _frozen(guard: Guard, *, gain: float, limit: float, now: float, urgent: str, window: bool) -> tuple[Guard, Verdict]:
    """A freeze ends early for a large gain that has lasted since the last change of any speed."""
    over = 0 if urgent or gain <= max(limit, THAW_GAIN) else guard.over + window
    if over >= THAW_WINDOWS:
        thawed = replace(guard, over=0, frozen_until=now, frozen_why="")
        return thawed, Verdict(True, f"the gain lasted for {over} windows without any change of speed")
    left = guard.frozen_until - now
    return replace(guard, over=over), Verdict(False, f"shares are frozen for {left:.0f} s more: {guard.frozen_why}")


def after_change(guard: Guard, settings: Settings, made: Made, now: float) -> Guard:
    """Remember an agreed change; after one that undoes the last, half steps and twice the windows."""
    last, guard = guard.made, replace(guard, refined=made.refined, generation=made.generation)
    if last is None or is_calm(guard, settings, made.effective_round):
        return replace(guard, made=made, over=0, part=1.0, widen=1, reversals=0)
    if not undoes(made, last):
        return replace(guard, made=made, over=0)
    reversals = guard.reversals + 1
    guard = replace(guard, made=made, over=0, reversals=reversals, part=LEAST_PART, widen=guard.widen * 2)
    if reversals < REVERSALS:
        return guard
    why = f"they went to and fro {reversals} times within {MEMORY_COOLDOWNS * settings.cooldown_rounds} rounds each"
    return replace(guard, frozen_until=now + settings.freeze_seconds, frozen_why=why, reversals=0, part=1.0, widen=1)


def is_calm(guard: Guard, settings: Settings, version: int) -> bool:
    """Whether the last change is so long ago that what was learned of going to and fro is forgotten."""
    if guard.made is None:
        return True
    return version - guard.made.effective_round > MEMORY_COOLDOWNS * settings.cooldown_rounds * guard.widen


def undoes(made: Made, last: Made) -> bool:
    """Whether a change goes back at least half of the way that the last one went."""
    names = made.after.keys() & made.before.keys() & last.after.keys() & last.before.keys()
    new = [made.after[n] - made.before[n] for n in sorted(names)]
    old = [last.after[n] - last.before[n] for n in sorted(names)]
    size_new, size_old = math.hypot(*new), math.hypot(*old)
    if size_new == 0 or size_old == 0 or size_new < 0.5 * size_old:
        return False
    return sum(a * b for a, b in zip(new, old, strict=True)) / (size_new * size_old) < OPPOSITE


class Speed(NamedTuple):
    """What rounds with certain shares came to."""

    seconds: float
    """Median step time, of the worker with the longest."""
    samples_per_second: float
    error: float
    """Standard error, relative."""


def fair(after: Speed, made: Made, tracks: Mapping[str, Track]) -> Speed:
    """What rounds would have come to if the machines had not become slower since the change.

    A pace that is slower than foretold for every worker is not the plan's doing. One that is faster excuses nothing,
    and accuses of nothing: what a round takes beside computing need not have become less.
    """
    factor = max(1.0, min((_lateness(made, name, tracks) for name in made.foretold), default=1.0))
    return after._replace(seconds=after.seconds / factor, samples_per_second=after.samples_per_second * factor)


def _lateness(made: Made, name: str, tracks: Mapping[str, Track]) -> float:
    """Seconds per sample since a change over those foretold for its share; 1, no excuse, where they are not known."""
    track, mark = tracks.get(name), -1 if made.marks is None else made.marks.get(name, -1)
    points = steps_with(track.points, made.after.get(name, 0), mark) if track is not None else []
    foretold = made.foretold[name]
    if not points or foretold <= 0 or any(point.ended <= 0 for point in points):
        return 1.0
    return median([point.busy / point.samples for point in points]) / foretold


def measured(
    workers: Sequence[WorkerSeen], tracks: Mapping[str, Track], marks: Mapping[str, int] | None, least: int
) -> Speed | None:
    """Speed of the newest rounds with the present shares; `None` with fewer than `least` records of any worker."""
    groups: list[list[Point]] = []
    for worker in workers:
        track, mark = tracks.get(worker.name), -1 if marks is None else marks.get(worker.name, -1)
        points = [p for p in steps_with(track.points, worker.share, mark) if p.step > 0] if track is not None else []
        if len(points) < least:
            return None
        groups.append(points)
    if not groups:
        return None
    # Of a worker whose speed has changed only what came after is kept: from before it there is nobody to be compared.
    same = min(RECENT, *map(len, groups))
    groups = [points[-same:] for points in groups]
    return Speed(
        seconds=max(median([p.step for p in points]) for points in groups),
        samples_per_second=sum(median([p.samples / p.step for p in points]) for points in groups),
        error=max(_error([p.step for p in points]) for points in groups),
    )


def _error(times: Sequence[float]) -> float:
    spread = MAD_TO_SIGMA * mad(times) / median(times)
    return 1.25 * max(spread, NOISE_FLOOR) / math.sqrt(len(times))  # of a median


def verify(made: Made, after: Speed) -> Verification:
    """A change that is in force against what was predicted."""
    return Verification(
        generation=made.generation,
        predicted_seconds=made.predicted_seconds,
        measured_seconds=after.seconds,
        speed_before=made.speed_before,
        speed_after=after.samples_per_second,
    )


def reach(before: Mapping[str, int], after: Mapping[str, int]) -> float:
    """How far a plan goes beyond what has been measured: logarithm of the largest growth of any share."""
    times = (share / before[name] for name, share in after.items() if before.get(name))
    return math.log(max(1.0, max(times, default=1.0)))


def doubted(guard: Guard, verified: Verification, now: float, made: Made) -> Guard:
    """After a verification of `made`: as doubtful as that was late, and at least half as much as before."""
    late = verified.measured_seconds / verified.predicted_seconds - 1.0 if verified.predicted_seconds > 0 else 0.0
    new, old = min(late, MOST_DOUBT), doubt(guard, now) / 2
    if new < old:
        return replace(guard, doubt=old, doubted_at=now)
    return replace(guard, doubt=max(new, 0.0), doubted_at=now, missed=made)


def doubt(guard: Guard, now: float, steps: int = 0, far: float = math.inf) -> float:
    """What is left of the doubt against a plan that reaches `far`, from models of `steps` steps at least (0: unknown).

    A prediction misses by how far it goes beyond what was measured, and from few steps as their mean does, by the
    square root of their number. Without this a plan made from three steps in a bad moment, or one that doubled a share,
    would keep small corrections from being made from a hundred.
    """
    left = guard.doubt * math.exp2((guard.doubted_at - now) / DOUBT_SECONDS)
    missed = guard.missed
    if missed is None:
        return left
    if 0 < missed.steps < steps:
        left *= math.sqrt(missed.steps / steps)
    grown = reach(missed.before, missed.after)
    return left * min(1.0, far / grown) if grown > 0 else left


def is_as_predicted(made: Made, after: Speed, settings: Settings) -> bool:
    """Whether a change came to what its prediction said, and rounds are not slower than before."""
    error = verify(made, after).error
    return error <= max(AS_PREDICTED, settings.dead_band) and not made_worse(made, after, settings)


def made_worse(made: Made, after: Speed, settings: Settings) -> bool:
    """Whether rounds are slower than before the change, beyond dead band and noise."""
    if made.speed_before <= 0:
        return False
    limit = max(settings.dead_band, CERTAINTY * math.hypot(made.noise_before, after.error))
    return after.samples_per_second < made.speed_before * (1 - limit)
