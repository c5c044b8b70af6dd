"""Makes the steps of a worker as long as its set-up says, and writes them down."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TextIO

from heterotrain_core.lab.pace import burst_factor, lasting_factor, noise_factor, paced_seconds
from heterotrain_core.lab.task import Task
from heterotrain_core.lab.trace import Step, absent, read_trace


@dataclass(frozen=True, slots=True)
class Clock:
    """Seconds, and how to let them pass."""

    now: Callable[[], float] = time.monotonic
    cpu: Callable[[], float] = time.process_time
    """CPU time of this process, all its threads."""
    sleep: Callable[[float], None] = time.sleep
    die: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGKILL)


POLL_SECONDS: Final = 0.1


def wait_to_join(task: Task, worker: int, sleep: Callable[[float], None] = time.sleep) -> None:
    """If the set-up killed this worker before: wait until it may join again. Its trace goes on."""
    churn = task.setup.churn
    if churn is None or churn.worker != worker or not task.trace(worker).exists():
        return
    while len(read_trace(task.trace(0).read_text())) < churn.joins_at:
        sleep(POLL_SECONDS)


class Pacer:
    """One worker's steps: `begin`, compute, `hold`, hand in, `end`.

    Level 2: `hold` sleeps until the step has lasted what the set-up says. Level 3: nothing is padded but an emulated
    link; a stretched step computes its gradient `work` times.
    """

    def __init__(self, task: Task, worker: int, file: TextIO, clock: Clock | None = None) -> None:
        self._task, self._worker, self._file, self._clock = task, worker, file, clock or Clock()
        self._again = file.tell() > 0
        """This worker was killed, and its trace goes on."""
        if self._again:
            self._write(absent(self._clock.now()))
        self._step = 0
        self._samples = 0
        self._began = self._held = self._slept = self._computing = 0.0
        self._cpu_before = self._clock.cpu()

    def begin(self, samples: int) -> None:
        """The samples of the next step are there. Where the set-up says so, this process is killed."""
        churn = self._task.setup.churn
        if churn is not None and not self._again and (self._worker, self._step) == (churn.worker, churn.killed_at):
            self._write(absent(self._clock.now()))
            self._clock.die()
        self._samples, self._slept = samples, 0.0
        self._began = self._clock.now()
        self._computing = self._clock.cpu()

    @property
    def work(self) -> int:
        """How many times this step's gradient is to be computed."""
        return self._factor if self._task.level == 3 else 1

    def hold(self) -> None:
        """The gradient is there: sleep for what is missing."""
        self._computing = self._clock.cpu() - self._computing
        now = self._clock.now()
        link, until = self._task.setup.link(self._worker), self._began + self._target
        missing = link if self._task.level == 3 else until - now
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
        cpu = self._clock.cpu()
        spent = cpu - self._cpu_before
        self._write(Step(self._began, now, self._samples, real, paced, lasting, spent, self._computing))
        self._cpu_before = cpu
        self._step += 1

    def _write(self, step: Step) -> None:
        self._file.write(step.line())
        self._file.flush()

    @property
    def _target(self) -> float:
        setup, worker = self._task.setup, self._worker
        noise = noise_factor(setup, worker, self._step, self._task.seed)
        return paced_seconds(setup, worker, self._samples, self._factor * noise)

    @property
    def _factor(self) -> int:
        task, worker, step = self._task, self._worker, self._step
        return lasting_factor(task.setup, worker, step) * burst_factor(task.setup, worker, step, task.seed)
