"""The shares that the models ask for, and what the present ones cost by the same models. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final, NamedTuple

from heterotrain_core.adaptation.estimate import TRUSTED
from heterotrain_core.adaptation.leeway import expected_last, leeways
from heterotrain_core.adaptation.track import Track
from heterotrain_core.adaptation.values import WorkerPlan, WorkerSeen
from heterotrain_core.curve import Curve, line
from heterotrain_core.plan import reachable_total
from heterotrain_core.shares import InfeasibleError, allocate, allocate_along
from heterotrain_core.types import Bounds

GROWTH: Final = 2
"""A share grows at most so many times beyond the largest that its worker has computed (trust region)."""
CORRIDOR: Final = 2
"""A plan gives a worker at least 1 / so much, at most so much, of what it would get in proportion to its speed now."""
LARGEST_SPREAD: Final = 0.2
"""Of single steps, relative, up to which others reckon with all of it: whose steps vary more has two speeds rather than
one (a CPU limit cuts its steps into pieces of the limit's period, and a share makes one piece or two)."""
ERRATIC: Final = 0.3
"""From here on with none of it; between the two with less and less."""
TRUST: Final = "trust"
"""What limits a share to `GROWTH` and `CORRIDOR`."""
NEARLY: Final = 0.05
"""Of a share: a move by less, or by a sample, is hardly one."""
TOLD_KNOTS: Final = 4
"""Measured shares that a decision tells of a worker whose times are no line."""
UNKNOWN_SLOPE: Final = 1e9
WORTH_SAYING: Final = 1.5
"""How many times faster a job must be without a worker before the loop says so (C-5)."""


@dataclass(frozen=True, slots=True)
class Room:
    """One worker for `allocate`: its times and what its share may be now."""

    name: str
    share: int
    fixed: float
    per_sample: float
    low: int
    high: int
    known: bool
    """Its times are known: it counts in predictions."""
    beside: float = 0.0
    """Part of `fixed` that is no computing: in no relation to the share."""
    limit: str = ""
    """What makes `low` and `high` narrower than its bounds."""
    bent: Curve | None = None
    """Its time, what is beside computing included, where that is no line."""
    spread: float = 0.0
    """Standard deviation of single steps against those of others, relative."""
    reckoned: float = 0.0
    """The part of it that others wait for and that is planned with."""
    leeway: float = 0.0
    """How much longer than its mean its time is planned, relative."""

    def is_rough(self, wanted: int) -> bool:
        """Small differences of its predicted times mean little: steps vary too much, or the share moves along a bend.

        A share that (nearly) stays is not touched by what is known of others.
        """
        moves = abs(wanted - self.share) > max(1.0, NEARLY * self.share)
        return self.spread > LARGEST_SPREAD or (self.bent is not None and moves)

    @property
    def curve(self) -> Curve:
        """Its time by the model, what is beside computing included."""
        return self.bent or line(self.fixed, self.per_sample)

    def seconds(self, share: int) -> float:
        """Its time for a share; 0 if not known."""
        return self.curve.seconds(share) if self.known else 0.0

    def due(self, share: int) -> float:
        """When it is planned to be done with a share: its time and its leeway."""
        return (1 + self.leeway) * self.seconds(share)

    @property
    def even(self) -> float:
        """Seconds per sample with its present share, as if all of its computing were in proportion."""
        return self.pace(max(1, self.share))

    def pace(self, share: int) -> float:
        """Seconds per sample with a share, without what is beside computing."""
        return (self.curve.seconds(share) - self.beside) / share


def rooms(
    workers: Sequence[WorkerSeen],
    tracks: Mapping[str, Track],
    ceilings: Mapping[str, int],
    lost: frozenset[str],
    grain: int,
) -> list[Room]:
    """Live workers with their limits: bounds, memory, trust; who is not known keeps its share."""
    return [_room(w, tracks.get(w.name, Track()), ceilings.get(w.name), w.name in lost, grain) for w in workers]


def with_leeway(found: Sequence[Room], waited_for: float) -> list[Room]:
    """The same, with what each is to finish earlier by since steps vary.

    `waited_for`: the part of a single step's variation that others wait for; 1 where every round waits for everybody.
    """
    counted = [replace(room, reckoned=waited_for * _reckoned(room.spread)) for room in found]
    known = [room for room in counted if room.known]
    parts = leeways([room.even for room in known], [room.reckoned for room in known])
    by_name = {room.name: part for room, part in zip(known, parts, strict=True)}
    return [replace(room, leeway=by_name.get(room.name, 0.0)) for room in counted]


def _reckoned(spread: float) -> float:
    return spread * max(0.0, min(1.0, (ERRATIC - spread) / (ERRATIC - LARGEST_SPREAD)))


def in_corridor(found: Sequence[Room], total: int, grain: int) -> list[Room]:
    """The same, narrowed to shares near those in proportion to the measured speeds.

    That rule (``b t_mean / t``: C2) needs no fitted line and ends at the same shares: where a line is wrong, since the
    workers slow each other down, it is wrong by at most `CORRIDOR` before the next steps are measured.
    """
    even = [replace(r, fixed=r.beside, per_sample=r.even, bent=None) if r.known else r for r in found]
    shares = best_shares(even, total, grain)
    return [_narrowed(room, shares[room.name], grain) if room.known else room for room in found]


def _narrowed(room: Room, even: int, grain: int) -> Room:
    """`room` between 1 / `CORRIDOR` and `CORRIDOR` times `even`, its own share always within."""
    low = room.low + max(0, min(even // CORRIDOR, room.share) - room.low) // grain * grain
    high = min(room.high, room.low + max(0, max(CORRIDOR * even, room.share) - room.low) // grain * grain)
    return replace(room, low=low, high=high, limit=TRUST if high < room.high else room.limit)


def _room(worker: WorkerSeen, track: Track, ceiling: int | None, lost: bool, grain: int) -> Room:
    low, high = worker.bounds.minimum, worker.bounds.maximum
    model = track.model
    if model is None or model.steps < TRUSTED:
        return Room(
            worker.name, worker.share, 0.0, UNKNOWN_SLOPE, worker.share, worker.share, False, limit="too few records"
        )
    beside = median([p.beside for p in track.points])
    fixed, per_sample, limit = model.fixed + beside, model.per_sample, ""
    bent = model.curve.later(beside) if model.knots else None
    spread = model.own * track.spread
    if lost:
        share = worker.share
        return Room(
            worker.name, share, fixed, per_sample, share, share, True, beside, "metrics lost", bent=bent, spread=spread
        )
    if ceiling is not None and ceiling < high:
        high, limit = max(low, ceiling), "memory"
    trusted = max(worker.share, GROWTH * max(worker.share, track.largest))
    if trusted < high:
        high, limit = trusted, TRUST
    high = low + (max(high, worker.share) - low) // grain * grain
    low = min(low, worker.share)
    return Room(worker.name, worker.share, fixed, per_sample, low, high, True, beside, limit, bent=bent, spread=spread)


def best_shares(found: Sequence[Room], total: int, grain: int) -> dict[str, int]:
    """Shares of the smallest largest time, leeway included; the present ones if the limits leave no choice."""
    present = {room.name: room.share for room in found}
    low, high = [room.low for room in found], [room.high for room in found]
    try:
        if any(room.bent for room in found):
            shares = allocate_along([room.curve.times(1 + room.leeway) for room in found], total, low, high, grain)
        else:
            fixed = [(1 + room.leeway) * room.fixed for room in found]
            per_sample = [(1 + room.leeway) * room.per_sample for room in found]
            shares = allocate(fixed, per_sample, total, low, high, grain)
    except InfeasibleError:
        return present
    return dict(zip(present, shares, strict=True))


def total_of(workers: Sequence[WorkerSeen], global_batch: int, grain: int) -> int | None:
    """Samples of a round: the global batch, or what the live workers' bounds reach; `None`: not even the minimums."""
    return reachable_total([w.bounds for w in workers], global_batch, grain)


def slowest(found: Sequence[Room], shares: Mapping[str, int]) -> float:
    """Time of the slowest worker whose times are known; 0 if none is."""
    return max((room.seconds(shares[room.name]) for room in found), default=0.0)


class Expected(NamedTuple):
    """A round of the workers whose times are known, single steps as they vary."""

    seconds: float
    """Until the last one is done; 0 if none is known."""
    weights: Mapping[str, float]
    """By how many seconds that grows with each worker's time, per relative growth: its chance to be last, times it."""


def expected(found: Sequence[Room], shares: Mapping[str, int]) -> Expected:
    """What a round with these shares comes to."""
    known = [room for room in found if room.known]
    seconds = [room.seconds(shares[room.name]) for room in known]
    last = expected_last(seconds, [time * room.reckoned for time, room in zip(seconds, known, strict=True)])
    weights = {r.name: time * chance for r, time, chance in zip(known, seconds, last.chances, strict=True)}
    return Expected(last.seconds, weights)


def part_way(
    present: Mapping[str, int], wanted: Mapping[str, int], *, part: float, found: Sequence[Room], grain: int
) -> dict[str, int]:
    """A `part` of the way to `wanted`, on the grid and with its sum (after an oscillation)."""
    if part >= 1.0:
        return dict(wanted)
    between = [present[room.name] + part * (wanted[room.name] - present[room.name]) for room in found]
    slopes = [1.0 / max(b, 1e-6) for b in between]
    try:
        shares = allocate(
            [0.0] * len(found),
            slopes,
            sum(wanted.values()),
            [room.low for room in found],
            [room.high for room in found],
            grain,
        )
    except InfeasibleError:
        return dict(present)
    return dict(zip(wanted, shares, strict=True))


def rows(found: Sequence[Room], tracks: Mapping[str, Track], wanted: Mapping[str, int]) -> tuple[WorkerPlan, ...]:
    """Every live worker, with the numbers that the decision rests on."""
    return tuple(_row(room, tracks.get(room.name, Track()), wanted[room.name]) for room in found)


def _row(room: Room, track: Track, wanted: int) -> WorkerPlan:
    model = track.model
    at_limit = (wanted >= room.high and room.limit) or (not room.known and room.limit)
    return WorkerPlan(
        name=room.name,
        applied=room.share,
        wanted=wanted,
        fixed_seconds=room.fixed if room.known else 0.0,
        seconds_per_sample=room.per_sample if room.known else 0.0,
        error=model.error if model is not None else 0.0,
        steps=model.steps if model is not None else len(track.points),
        dropped=model.dropped if model is not None else 0,
        seconds_applied=room.seconds(room.share),
        seconds_wanted=room.seconds(wanted),
        knots=_told_knots(model.knots, room.share) if model is not None and room.known else (),
        spread=room.spread if room.known else 0.0,
        limit=room.limit if at_limit or room.limit == "metrics lost" else "",
    )


def _told_knots(knots: Sequence[tuple[int, float]], share: int) -> tuple[tuple[int, float], ...]:
    return tuple(sorted(sorted(knots, key=lambda knot: abs(knot[0] - share))[:TOLD_KNOTS]))


def faster_without(
    found: Sequence[Room], bounds: Mapping[str, Bounds], total: int, grain: int
) -> tuple[str, float] | None:
    """The worker without which the round would be at least 1.5x faster, and how many times (C-5); `None`: nobody.

    Only a worker that its smallest share makes the slowest can be one.
    """
    if len(found) < 2 or not all(room.known for room in found):
        return None
    full = [_wide(room, bounds[room.name]) for room in found]
    now = slowest(full, best_shares(full, total, grain))
    last = max(full, key=lambda room: room.seconds(room.low))
    others = [room for room in full if room is not last]
    reached = reachable_total([bounds[room.name] for room in others], total, grain)
    if reached != total:
        return None
    then = slowest(others, best_shares(others, total, grain))
    times = now / then if then > 0 else 0.0
    return (last.name, times) if times >= WORTH_SAYING else None


def _wide(room: Room, bounds: Bounds) -> Room:
    return replace(room, low=bounds.minimum, high=bounds.maximum, known=True)


def micro_batch(share: int, ceiling: int) -> tuple[int, int]:
    """How a share beyond the memory's ceiling is computed: (micro-batch, number of them); the last may be smaller.

    The micro-batches are as even as can be: one that is nearly empty would cost its fixed part for nothing.
    """
    if ceiling < 1:
        raise ValueError(f"the ceiling must be at least 1 sample, not {ceiling}")
    parts = max(1, -(-share // ceiling))
    return -(-share // parts), parts


def faster_unbound(found: Sequence[Room], best: Mapping[str, int], total: int, grain: int) -> float:
    """How many times faster the round would be without largest shares; at least 1."""
    free = [replace(r, high=r.low + total // grain * grain) for r in found]
    if not all(room.known for room in found):
        return 1.0
    then = slowest(free, best_shares(free, total, grain))
    return max(1.0, slowest(found, best) / then) if then > 0 else 1.0
