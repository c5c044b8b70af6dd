"""Makes the steps of a worker as long as its set-up says, and writes them down."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from heterotrain_core.lab.pace import burst_factor, lasting_factor, paced_seconds
from heterotrain_core.lab.task import Task
from heterotrain_core.lab.trace import Step


@dataclass(frozen=True, slots=True)
class Clock:
    """Seconds, and how to let them pass."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Pacer:
    """One worker's steps: `begin`, compute, `hold`, hand in, `end`.

    Level 2: `hold` sleeps until the step has lasted what the set-up says. Level 3: nothing is padded but an emulated
    link; a stretched step computes its gradient `work` times.
    """

    def __init__(self, task: Task, worker: int, file: TextIO, clock: Clock | None = None) -> None:
        self._task, self._worker, self._file, self._clock = task, worker, file, clock or Clock()
        self._step = 0
        self._samples = 0
        self._began = self._held = self._slept = 0.0

    def begin(self, samples: int) -> None:
        """The samples of the next step are there."""
        self._samples, self._slept = samples, 0.0
        self._began = self._clock.now()

    @property
    def work(self) -> int:
        """How many times this step's gradient is to be computed."""
        return self._factor if self._task.level == 3 else 1

    def hold(self, reserve: float = 0.0) -> None:
        """The gradient is there, or will be `reserve` seconds from now: sleep for what is missing."""
        now = self._clock.now()
        if self._task.level == 3:
            missing = self._task.setup.link(self._worker)
        else:
            missing = self._began + self._target - reserve - now
        if missing > 0:
            self._clock.sleep(missing)
            self._slept = self._clock.now() - now
        self._held = self._clock.now()

    def end(self) -> None:
        """The next step may begin."""
        now = self._clock.now()
        real = (self._held - self._began) - self._slept
        paced = self._target if self._task.level == 2 else real + self._slept
        lasting = lasting_factor(self._task.setup, self._worker, self._step)
        self._file.write(Step(self._began, now, self._samples, real, paced, lasting).line())
        self._file.flush()
        self._step += 1

    @property
    def _target(self) -> float:
        return paced_seconds(self._task.setup, self._worker, self._samples, self._factor)

    @property
    def _factor(self) -> int:
        task, worker, step = self._task, self._worker, self._step
        return lasting_factor(task.setup, worker, step) * burst_factor(task.setup, worker, step, task.seed)
