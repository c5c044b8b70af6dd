"""How fast workers and rounds are: medians over the last rounds, totals over the training time. No clock of its own."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from heterotrain_core.progress import Progress
from heterotrain_core.run_values import Timings, Traffic

WINDOW = 20
"""Rounds that a median is taken over."""


@dataclass(frozen=True, slots=True)
class WorkerPace:
    """Medians over the last rounds. Times in seconds; `samples_per_second` is 0 until known."""

    samples_per_second: float
    """Own speed: samples over compute seconds, whatever the worker then waited for."""
    timings: Timings


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One iteration of one worker."""

    sequence: int
    """Counts the worker's iterations from 1: rises by 1, and tells new records from those seen before."""
    samples: int
    timings: Timings
    ended: float = 0.0
    """When the coordinator had it, seconds on its own clock; 0: not known. Tells whose iterations ran side by side."""
    withheld: float | None = None
    """Seconds after its last done for which it had no grant for this iteration, or that needed a version that was not
    there: what of its pull was waiting for others. `None`: not known.
    """


class WorkerTelemetry:
    """What one worker has done. O(1) to feed; medians are only taken when asked for."""

    def __init__(self) -> None:
        self.rounds = 0
        self.samples = 0
        self.refused = 0
        self._recent: deque[StepRecord] = deque(maxlen=WINDOW)

    @property
    def recent(self) -> tuple[StepRecord, ...]:
        """The last iterations, oldest first."""
        return tuple(self._recent)

    def add(self, samples: int, timings: Timings, now: float, withheld: float | None, *, refused: bool) -> None:
        """An iteration is over."""
        self.rounds += 1
        self.samples += samples
        self.refused += refused
        self._recent.append(StepRecord(self.rounds, samples, timings, now, withheld))

    def own_speed(self) -> float:
        """Median of samples over compute seconds; 0 until known."""
        speeds = [r.samples / r.timings.compute for r in self._recent if r.timings.compute > 0 and r.samples > 0]
        return median(speeds or [0.0])

    def pace(self) -> WorkerPace:
        """Medians now."""
        recent = [r.timings for r in self._recent] or [Timings()]
        timings = Timings(
            data=median(t.data for t in recent),
            compute=median(t.compute for t in recent),
            push=median(t.push for t in recent),
            pull=median(t.pull for t in recent),
            step=median(t.step for t in recent),
            receive=median(t.receive for t in recent),
            other=median(t.other for t in recent),
            cpu=median(t.cpu for t in recent),
        )
        return WorkerPace(self.own_speed(), timings)


class RoundTelemetry:
    """When rounds were committed and how many samples they used.

    Speeds leave evaluations out, from the last worker's call to the outcome: nobody trains meanwhile, and a script that
    evaluates often does not train more slowly. Waiting for the last worker to call counts: balance would save it.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self.samples = 0
        self.began: float | None = None
        """First grant."""
        self.ended: float | None = None
        self.evaluation_seconds = 0.0
        """In evaluations that are over and lie within the training."""
        self._computed = 0
        self._traffic = Traffic()
        self._evaluating: float | None = None
        self._recent: deque[tuple[float, int]] = deque(maxlen=WINDOW + 1)

    def begin(self, now: float, restored: Progress | None = None) -> None:
        """The first grant goes out; what a checkpoint holds of the training has been before it."""
        if self.began is None:
            self.began = now
            if restored is not None:
                self.samples = restored.samples
                self.began -= restored.training_seconds
                self.evaluation_seconds = restored.evaluation_seconds
            self._recent.append((now - self.evaluation_seconds, 0))

    def evaluation_begins(self, now: float) -> None:
        """All workers have called."""
        self._evaluating = now

    def evaluation_ends(self, now: float) -> None:
        """Its outcome is known."""
        began, self._evaluating = self._evaluating, None
        if began is not None and self.began is not None and self.ended is None:
            self.evaluation_seconds += now - max(began, self.began)

    def committed(self, samples: int, now: float) -> None:
        """A round's update is published."""
        self.rounds += 1
        self.samples += samples
        # On a clock that stands still in evaluations.
        clock = now if self._evaluating is None else min(now, self._evaluating)
        self._recent.append((clock - self.evaluation_seconds, samples))

    def moved(self, samples: int, traffic: Traffic) -> None:
        """A worker has computed `samples`, with so many bytes."""
        self._computed += samples
        self._traffic = Traffic(self._traffic.pushed + traffic.pushed, self._traffic.pulled + traffic.pulled)

    def bytes_per_sample(self) -> tuple[float, float]:
        """Pushed and pulled, of all samples that were computed since this began; 0 until known."""
        computed = max(1, self._computed)
        return self._traffic.pushed / computed, self._traffic.pulled / computed

    def end(self, now: float) -> None:
        """The last commit of the training is published."""
        if self.began is not None and self.ended is None:
            self.ended = now

    def training_seconds(self, now: float) -> float:
        """Since the first grant, until the end of training."""
        if self.began is None:
            return 0.0
        return max(0.0, (now if self.ended is None else self.ended) - self.began)

    def recent_speed(self) -> float:
        """Samples a second over the last rounds; 0 until known."""
        if len(self._recent) < 2:
            return 0.0
        seconds = self._recent[-1][0] - self._recent[0][0]
        return sum(n for _, n in list(self._recent)[1:]) / seconds if seconds > 0 else 0.0

    def mean_speed(self, now: float) -> float:
        """Samples a second over the whole training time without evaluations; 0 until known."""
        seconds = self.training_seconds(now) - self.evaluation_seconds
        return self.samples / seconds if seconds > 0 else 0.0

    def round_seconds(self) -> float:
        """Median time from one commit to the next; 0 until known."""
        times = [t for t, _ in self._recent]
        return median([b - a for a, b in pairwise(times)] or [0.0])
