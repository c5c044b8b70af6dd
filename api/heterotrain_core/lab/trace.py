"""The steps of a lab worker, a line each, and what follows from them. Times: seconds of this machine's own clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One step: from having its samples until the next may begin (the update is in, or handed in)."""

    begin: float
    end: float
    samples: int
    real: float
    """What computing really took, without the padding."""
    paced: float
    """What the step was to last by the set-up; at level 3 the same as `real`."""
    factor: int
    """How many times as long as usual this worker's steps last around this one (not chance for a single step); 0: from
    now on the worker is not there.
    """
    cpu: float = 0.0
    """CPU time of the whole process since the step before ended."""
    computing_cpu: float = 0.0
    """The part of it in computing the gradient; under DDP with what it sends meanwhile."""

    def line(self) -> str:
        """As in the file."""
        times = f"{self.begin:.6f} {self.end:.6f} {self.samples} {self.real:.6f} {self.paced:.6f}"
        return f"{times} {self.factor} {self.cpu:.6f} {self.computing_cpu:.6f}\n"


Trace = Sequence[Step]


def absent(now: float) -> Step:
    """Written when a worker goes, and when it comes back: no samples, and none for the time between the two."""
    return Step(now, now, 0, 0.0, 0.0, 0)


def read_trace(text: str) -> tuple[Step, ...]:
    """All whole lines; the last may still be being written, or was when its worker was killed."""
    steps = []
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            begin, end, samples, real, paced, factor, cpu, computing_cpu = line.split()
            steps.append(
                Step(
                    begin=float(begin), end=float(end), samples=int(samples), real=float(real), paced=float(paced),
                    factor=int(factor), cpu=float(cpu), computing_cpu=float(computing_cpu),
                )
            )  # fmt: skip
    return tuple(steps)


@dataclass(frozen=True, slots=True)
class Window:
    """A time that is measured."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.begin


def samples_within(trace: Trace, window: Window) -> float:
    """Samples of the steps in the window; one that is partly in it counts with that part of its time.

    A step's time begins where the one before ended, so that fetching samples and waiting count too.
    """
    total = 0.0
    since = trace[0].begin if trace else 0.0
    for step in trace:
        overlap = min(step.end, window.end) - max(since, window.begin)
        if overlap > 0:
            total += step.samples * overlap / (step.end - since)
        since = step.end
    return total


def capability(trace: Trace, window: Window) -> float:
    """The mean over the window of the part of its first speed that the worker had: 1 unless its steps were stretched.

    What holds for a step holds until the next begins; before the first and after the last as in the nearest.
    """
    total = 0.0
    for step, following in zip(trace, [*trace[1:], None], strict=True):
        since = window.begin if step is trace[0] else step.begin
        until = window.end if following is None else following.begin
        overlap = min(until, window.end) - max(since, window.begin)
        if overlap > 0 and step.factor > 0:
            total += overlap / step.factor
    return total / window.seconds if trace else 1.0


def common_begin(traces: Sequence[Trace]) -> float:
    """When the last of the workers had begun its first step. Raises `ValueError` if one has no step."""
    if not all(traces):
        raise ValueError("a worker has no step")
    return max(trace[0].begin for trace in traces)
