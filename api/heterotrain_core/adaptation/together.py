"""What workers have in common: the ups and downs of a machine or a network that they share. Pure.

Workers of one machine become slower and faster together: with four of them on two cores single steps varied by 15 to
20 %, but each against the others by 4 to 12 % only. Shares follow from how fast workers are against each other, so what
all of them share is taken out where models are compared (control variates), and is no reason to change anything.

Steps are laid side by side in *cells*: stretches of time as long as two steps of the slowest worker, counted backwards
from the newest step. A worker's value in a cell is the mean logarithm of its measured over its expected times.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple

from heterotrain_core.adaptation.estimate import NOISE_FLOOR, OUTLIER_Z, Point, SpeedModel, present_size
from heterotrain_core.adaptation.track import REFERENCE_STEPS, Track, point_of, steps_with
from heterotrain_core.adaptation.values import WorkerSeen

CELL_STEPS: Final = 2
"""Steps of the slowest worker in a cell: with one, those that run side by side often lie in two cells."""
LEAST_CELLS: Final = 6
"""That two workers must share before it is said how alike they are."""
RECENT_CELLS: Final = 10
"""What they tell is how fast all are now."""
LATELY: Final = 6
"""Steps beside the new ones that tell what others do at the same time."""
MOST_SHARED: Final = math.log(2.0)
"""Logarithm of the largest change that may be shared by all without being one of each."""

Cells = Mapping[int, float]
"""By cell, 0 the newest."""


class _Step(NamedTuple):
    """A step of one worker in the middle of its computing, against its model."""

    at: float
    off: float
    """Logarithm of measured over expected time."""


class _Grid(NamedTuple):
    """Where cells begin, and how long each lasts."""

    newest: float
    width: float

    def cell(self, step: _Step) -> int:
        """That a step lies in, 0 the newest."""
        return int((self.newest - step.at) // self.width) if self.width > 0 else 0


def aligned(tracks: Mapping[str, Track]) -> dict[str, Track]:
    """Tracks whose models can be compared: all of them tell times of now, and errors without what all share.

    A model of the last ten steps and one of the last hundred are of different times; what the others did meanwhile,
    against their own longer past, is taken out of the shorter one, as far as workers vary together at all.
    """
    known = {name: steps for name, track in tracks.items() if (steps := _steps(track))}
    if len(known) < 2:
        return dict(tracks)
    cells = _cells(known, _grid(known))
    others = _others(cells)
    alike = _alike(cells, others)
    levels = _levels(cells, alike)
    now = alike * _now(cells, levels)
    return {
        name: _with(track, now - levels[name], _against_others(cells[name], others[name], alike))
        if name in cells
        else track
        for name, track in tracks.items()
    }


def shared(tracks: Mapping[str, Track], workers: Iterable[WorkerSeen]) -> dict[str, dict[int, float]]:
    """What new records have in common with what all others do at the same time: by worker and sequence, a logarithm.

    It is the part that every one of the others shows at least, of which there must be half at that time and with models
    of some steps; 0 as soon as one of them does not.
    """
    steps: dict[str, list[_Step]] = {}
    new: dict[str, dict[int, _Step]] = {}
    for worker in workers:
        track = tracks.get(worker.name)
        if not worker.live or track is None or track.model is None or track.model.steps < REFERENCE_STEPS:
            continue
        points = [p for r in worker.records if r.sequence > track.seen and (p := point_of(r)) is not None]
        told = _against(points, track.model)
        steps[worker.name] = [*_against(track.points[-LATELY:], track.model).values(), *told.values()]
        new[worker.name] = told
    steps = {name: all_ for name, all_ in steps.items() if all_}
    if len(steps) < 2:
        return {}
    grid = _grid(steps)
    needed = _half_of_the_others(len(steps))
    by_cell = _by_cell(_cells(steps, grid))
    least = {cell: _least(values) if len(values) - 1 >= needed else {} for cell, values in by_cell.items()}
    return {
        name: {sequence: least[grid.cell(step)].get(name, 0.0) for sequence, step in told.items()}
        for name, told in new.items()
    }


def _with(track: Track, level: float, own: _Own) -> Track:
    if track.model is None:
        return track
    model = replace(track.model.times(math.exp(level)), error=min(track.model.error, own.error), own=own.part)
    return replace(track, model=model)


def _steps(track: Track) -> list[_Step]:
    """Its steps of its present size: the model passes through their mean, not through that of others."""
    if track.model is None:
        return []
    most = OUTLIER_Z * track.model.noise
    found = _against(steps_with(track.points, present_size(track.points)), track.model).values()
    return [_Step(step.at, max(-most, min(most, step.off))) for step in found]


def _against(points: Sequence[Point], model: SpeedModel) -> dict[int, _Step]:
    """The points against a model, by sequence, without those of which it is not known when they were."""
    expected = {size: model.seconds(size) for size in {point.samples for point in points}}
    return {
        p.sequence: _Step(p.ended - p.busy / 2, math.log(p.busy / expected[p.samples]))
        for p in points
        if p.ended > 0 and p.busy > 0 and expected[p.samples] > 0
    }


def _grid(steps: Mapping[str, Sequence[_Step]]) -> _Grid:
    """That of workers of whom each has a step."""
    # Medians: a worker may have been away, or all in an evaluation.
    gaps = [median([b.at - a.at for a, b in pairwise(all_)]) for all_ in steps.values() if len(all_) > 1]
    newest = max(step.at for all_ in steps.values() for step in all_)
    return _Grid(newest, CELL_STEPS * max(gaps, default=0.0))


def _cells(steps: Mapping[str, Sequence[_Step]], grid: _Grid) -> dict[str, Cells]:
    """Each worker's mean by cell."""
    cells: dict[str, Cells] = {}
    for name, all_ in steps.items():
        by_cell: dict[int, list[float]] = {}
        for step in all_:
            by_cell.setdefault(grid.cell(step), []).append(step.off)
        cells[name] = {cell: _mean(offs) for cell, offs in by_cell.items()}
    return cells


def _mean(values: Collection[float]) -> float:
    """As `statistics.fmean`, which takes ten times as long for two values."""
    return sum(values) / len(values)


def _by_cell(cells: Mapping[str, Cells]) -> dict[int, dict[str, float]]:
    turned: dict[int, dict[str, float]] = {}
    for name, values in cells.items():
        for cell, value in values.items():
            turned.setdefault(cell, {})[name] = value
    return turned


def _others(cells: Mapping[str, Cells]) -> dict[str, Cells]:
    """The mean of all others in each worker's cells, where at least half of them have a value."""
    sums = {cell: (sum(values.values()), len(values)) for cell, values in _by_cell(cells).items()}
    needed = _half_of_the_others(len(cells))
    found: dict[str, Cells] = {}
    for name, values in cells.items():
        rest = {cell: (sums[cell][0] - value, sums[cell][1] - 1) for cell, value in values.items()}
        found[name] = {cell: total / count for cell, (total, count) in rest.items() if count and count >= needed}
    return found


def _half_of_the_others(workers: int) -> float:
    return (workers - 1) / 2


def _alike(cells: Mapping[str, Cells], others: Mapping[str, Cells]) -> float:
    """How much of what the others do a worker does too: the slope of its values over theirs, of all workers, 0 to 1."""
    both = spread = 0.0
    for name, theirs in others.items():
        if len(theirs) < LEAST_CELLS:
            continue
        own = cells[name]
        mean_own, mean_theirs = _mean([own[cell] for cell in theirs]), _mean(theirs.values())
        both += sum((own[cell] - mean_own) * (value - mean_theirs) for cell, value in theirs.items())
        spread += sum((value - mean_theirs) ** 2 for value in theirs.values())
    return max(0.0, min(1.0, both / spread)) if spread > 0 else 0.0


def _levels(cells: Mapping[str, Cells], alike: float) -> dict[str, float]:
    """How slow all were in the time of each worker's model, against that of the oldest: logarithm.

    From the oldest model to the newest: what those before tell of its cells, each at the level of its own model.
    """
    levels: dict[str, float] = {}
    sums: dict[int, tuple[float, int]] = {}
    for name in sorted(cells, key=lambda name: max(cells[name]), reverse=True):
        own = cells[name]
        older = [sums[cell][0] / sums[cell][1] for cell in own if cell in sums]
        levels[name] = level = alike * _mean(older) if older else 0.0
        for cell, value in own.items():
            total, count = sums.get(cell, (0.0, 0))
            sums[cell] = total + value + level, count + 1
    return levels


class _Own(NamedTuple):
    """How a worker varies against the others."""

    error: float
    """Standard error of its mean against theirs, relative; infinite if there are too few cells."""
    part: float
    """Of its own variation, what is not shared; 1 if there are too few cells."""


def _against_others(own: Cells, theirs: Cells, alike: float) -> _Own:
    if len(theirs) < LEAST_CELLS:
        return _Own(math.inf, 1.0)
    spread = _spread([own[cell] - alike * value for cell, value in theirs.items()])
    whole = _spread([own[cell] for cell in theirs])
    part = min(1.0, spread / whole) if whole > 0 else 1.0
    return _Own(max(NOISE_FLOOR, spread) / math.sqrt(len(theirs) - 1), part)


def _spread(values: Collection[float]) -> float:
    mean = _mean(values)
    return math.sqrt(_mean([(value - mean) ** 2 for value in values]))


def _now(cells: Mapping[str, Cells], levels: Mapping[str, float]) -> float:
    """Where all are now, against the level at which the models are compared: logarithm, the median of the workers."""
    recent = {name: [value for cell, value in own.items() if cell < RECENT_CELLS] for name, own in cells.items()}
    known = [_mean(values) + levels[name] for name, values in recent.items() if values]
    return median(known) if known else 0.0


def _least(values: Mapping[str, float]) -> dict[str, float]:
    """For each worker of a cell: the part that all the others there have in common."""
    found: dict[str, float] = {}
    for sign in (1, -1):
        two = sorted((sign * value, name) for name, value in values.items())[:2]
        if len(two) == 2 and two[1][0] > 0:
            if two[0][0] > 0:
                found |= {name: sign * min(two[0][0], MOST_SHARED) for name in values}
            found[two[0][1]] = sign * min(two[1][0], MOST_SHARED)
    return found
