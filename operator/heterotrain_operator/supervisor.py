"""One supervised task per job makes its passes: when it is woken, when the pass before asked for it, and now and then.

Wakes while a pass runs become one more pass. A pass that fails is tried again at growing distances, and never touches
another job. All jobs are listed periodically, whatever the watch delivers: a job that nobody told of gets its task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from heterotrain_operator.errors import Kind, verdict
from heterotrain_operator.job.memory import JobKey
from heterotrain_operator.metrics import Metrics
from heterotrain_operator.settings import OperatorSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pass:
    """What came of a pass."""

    gone: bool = False
    """There is no such job: its task ends."""
    wake_at: datetime | None = None
    """Next pass at the latest; `None`: the periodic one."""
    again: bool = False
    """The pass learned something that the next one should act on at once."""


@dataclass(slots=True)
class _Attended:
    """A job with a task."""

    woken: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    failures: int = 0


class Supervisor:
    """Used on one event loop. `run_pass`: one pass over a job. `list_jobs`: all jobs that there are."""

    def __init__(
        self,
        run_pass: Callable[[JobKey], Awaitable[Pass]],
        list_jobs: Callable[[], Awaitable[Sequence[JobKey]]],
        *,
        settings: OperatorSettings,
        metrics: Metrics,
        now: Callable[[], datetime],
        random: Callable[[], float],
    ) -> None:
        self._run_pass = run_pass
        self._list_jobs = list_jobs
        self._settings: Final = settings
        self._metrics: Final = metrics
        self._now = now
        self._random = random
        self._jobs: dict[JobKey, _Attended] = {}
        self._slots = asyncio.Semaphore(settings.concurrent_passes)
        self._beat = asyncio.get_running_loop().time()
        self._listed = False
        self._stopping = False

    @property
    def beat(self) -> float:
        """When the periodic loop last came round, in the event loop's time."""
        return self._beat

    @property
    def listed(self) -> bool:
        """Whether all jobs are known: the first list has succeeded."""
        return self._listed

    def wake(self, key: JobKey) -> None:
        """See to it that a pass begins after now; cheap, from handlers and links."""
        if self._stopping:
            return
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = _Attended()
            job.task = asyncio.create_task(self._attend(key, job), name=f"job {key}")
            self._metrics.jobs.set(len(self._jobs))
        job.woken.set()

    async def run(self) -> None:
        """List all jobs for ever and wake each; after a failure again, sooner."""
        failures = 0
        while True:
            self._beat = asyncio.get_running_loop().time()
            try:
                for key in await self._list_jobs():
                    self.wake(key)
                self._listed, failures = True, 0
                wait = self._settings.full_pass_seconds
            except Exception as error:  # noqa: BLE001  # judged and logged in one place; the loop must go on
                failures += 1
                wait = self._judge("the list of all jobs", error, failures)
            await asyncio.sleep(wait)

    async def stop(self) -> None:
        """End all tasks; a pass that runs is cut off, which the next operator makes good."""
        self._stopping = True
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._jobs.clear()
        self._metrics.jobs.set(0)

    async def _attend(self, key: JobKey, job: _Attended) -> None:
        while True:
            job.woken.clear()
            outcome, pause = await self._try_pass(key, job)
            # No await between here and the end: a wake in between would be lost.
            if outcome is not None and outcome.gone and not job.woken.is_set():
                del self._jobs[key]
                self._metrics.jobs.set(len(self._jobs))
                return
            await asyncio.sleep(pause)
            if outcome is not None and not outcome.again:
                await self._until_woken(job, outcome.wake_at)

    async def _try_pass(self, key: JobKey, job: _Attended) -> tuple[Pass | None, float]:
        """Make a pass; returns it, or `None` if it failed, and how long to pause before the next one at least."""
        try:
            async with self._slots:
                self._metrics.passes.inc()
                with self._metrics.pass_seconds.time():
                    async with asyncio.timeout(self._settings.pass_timeout_seconds):
                        outcome = await self._run_pass(key)
        except Exception as error:  # noqa: BLE001  # judged and logged in one place; other jobs must not notice
            job.failures += 1
            return None, self._judge(f"job {key}", error, job.failures)
        # What was learned is acted on soon; if each pass learns something new, at growing distances.
        job.failures = job.failures + 1 if outcome.again else 0
        return outcome, self._settings.pass_spacing_seconds * 2 ** min(max(job.failures - 1, 0), 6)

    async def _until_woken(self, job: _Attended, wake_at: datetime | None) -> None:
        wait = self._settings.full_pass_seconds
        if wake_at is not None:
            wait = min(wait, (wake_at - self._now()).total_seconds())
        if wait <= 0:
            return
        try:
            async with asyncio.timeout(wait):
                await job.woken.wait()
        except TimeoutError:
            return

    def _judge(self, what: str, error: Exception, failures: int) -> float:
        """Count and log a failure once; returns the seconds until it is tried again."""
        judged = verdict(error, failures, self._random(), self._settings.retry_seconds)
        self._metrics.pass_errors.labels(judged.reason).inc()
        match judged.kind:
            case Kind.UNKNOWN:
                logger.error("Pass over %s failed.", what, exc_info=error)
            case Kind.NEVER:
                logger.error("Pass over %s was refused: %s", what, error)
            case Kind.AGAIN:
                logger.log(
                    logging.DEBUG if failures == 1 else logging.WARNING,
                    "Pass over %s failed (%d in a row), tried again in %.1f s: %s",
                    what,
                    failures,
                    judged.delay_seconds,
                    error,
                )
        return judged.delay_seconds
