"""One task per job: wakes coalesce, failures wait longer each time, and nobody waits for somebody else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from heterotrain_operator.errors import ApiError, ApiUnreachableError
from heterotrain_operator.job.memory import JobKey
from heterotrain_operator.metrics import Metrics
from heterotrain_operator.settings import OperatorSettings
from heterotrain_operator.supervisor import Pass, Supervisor
from support.virtual_time import run_virtual, virtual_now

A, B = JobKey("default", "a"), JobKey("default", "b")
PassFn = Callable[[JobKey], Awaitable[Pass]]


class Stage:
    """A supervisor over passes that are noted down as (seconds, job)."""

    def __init__(self, run_pass: PassFn | None = None, jobs: list[JobKey] | None = None, **settings: float) -> None:
        self.passes: list[tuple[float, str]] = []
        self.jobs = jobs if jobs is not None else []
        self.lists: list[float] = []
        self.list_error: Exception | None = None
        self.metrics = Metrics()
        self._run_pass = run_pass
        self.supervisor = Supervisor(
            self._pass,
            self._list,
            settings=OperatorSettings(**settings),  # type: ignore[arg-type]
            metrics=self.metrics,
            now=virtual_now,
            random=lambda: 0.5,
        )

    async def _pass(self, key: JobKey) -> Pass:
        self.passes.append((round(asyncio.get_running_loop().time(), 3), key.name))
        return Pass() if self._run_pass is None else await self._run_pass(key)

    async def _list(self) -> list[JobKey]:
        self.lists.append(asyncio.get_running_loop().time())
        if self.list_error is not None:
            raise self.list_error
        return list(self.jobs)

    def errors(self, reason: str) -> float:
        value = self.metrics.registry.get_sample_value("heterotrain_operator_pass_errors_total", {"reason": reason})
        return value or 0.0

    def times(self, name: str = "a") -> list[float]:
        return [at for at, who in self.passes if who == name]


def scene(play: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await play()

    run_virtual(main())


def test_a_burst_of_wakes_is_one_pass_now_and_one_after() -> None:
    async def play() -> None:
        stage = Stage()
        for _ in range(30):
            stage.supervisor.wake(A)
        await asyncio.sleep(0.1)
        for _ in range(30):
            stage.supervisor.wake(A)
        await asyncio.sleep(30)
        assert stage.times() == [0.0, 0.5]
        await stage.supervisor.stop()

    scene(play)


def test_a_job_that_nobody_wakes_gets_a_pass_a_minute() -> None:
    async def play() -> None:
        stage = Stage()
        stage.supervisor.wake(A)
        await asyncio.sleep(125)
        assert stage.times() == [0.0, 60.5, 121.0]
        await stage.supervisor.stop()

    scene(play)


def test_a_pass_comes_when_the_one_before_asked_for_it() -> None:
    async def ask(_: JobKey) -> Pass:
        return Pass(wake_at=virtual_now() + timedelta(seconds=7))

    async def play() -> None:
        stage = Stage(ask)
        stage.supervisor.wake(A)
        await asyncio.sleep(15)
        assert stage.times() == [0.0, 7.0, 14.0]
        await stage.supervisor.stop()

    scene(play)


def test_a_wish_in_the_past_is_no_busy_loop() -> None:
    async def ask(_: JobKey) -> Pass:
        return Pass(wake_at=virtual_now() - timedelta(seconds=7))

    async def play() -> None:
        stage = Stage(ask)
        stage.supervisor.wake(A)
        await asyncio.sleep(2.2)
        assert stage.times() == [0.0, 0.5, 1.0, 1.5, 2.0]
        await stage.supervisor.stop()

    scene(play)


def test_two_passes_of_a_job_never_overlap() -> None:
    running: set[JobKey] = set()

    async def slow(key: JobKey) -> Pass:
        assert key not in running
        running.add(key)
        await asyncio.sleep(3)
        running.remove(key)
        return Pass()

    async def play() -> None:
        stage = Stage(slow)
        for _ in range(20):
            stage.supervisor.wake(A)
            stage.supervisor.wake(B)
            await asyncio.sleep(1)
        assert stage.times("a") == stage.times("b") == [0.0, 3.5, 7.0, 10.5, 14.0, 17.5]
        assert stage.errors("AssertionError") == 0
        await stage.supervisor.stop()

    scene(play)


def test_at_most_so_many_passes_run_at_the_same_time() -> None:
    most = [0, 0]

    async def slow(_: JobKey) -> Pass:
        most[0] += 1
        most[1] = max(most)
        await asyncio.sleep(1)
        most[0] -= 1
        return Pass()

    async def play() -> None:
        stage = Stage(slow, concurrent_passes=3)
        for number in range(10):
            stage.supervisor.wake(JobKey("default", f"job-{number}"))
        await asyncio.sleep(5)
        assert len(stage.passes) == 10
        assert most[1] == 3
        await stage.supervisor.stop()

    scene(play)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ApiUnreachableError("down"), "Unreachable"),
        (ApiError(503, "ServiceUnavailable", "starting"), "ServiceUnavailable"),
        (ZeroDivisionError("a defect"), "ZeroDivisionError"),
    ],
    ids=["no answer", "a server error", "a defect"],
)
def test_failures_wait_twice_as_long_each_time_but_never_longer_than_half_a_minute(
    error: Exception, reason: str
) -> None:
    async def fail(_: JobKey) -> Pass:
        raise error

    async def play() -> None:
        stage = Stage(fail)
        stage.supervisor.wake(A)
        await asyncio.sleep(90)
        assert stage.times() == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 51.5, 71.5]
        assert stage.errors(reason) == 9
        await stage.supervisor.stop()

    scene(play)


def test_a_wake_does_not_shorten_the_wait_after_a_failure() -> None:
    async def fail(_: JobKey) -> Pass:
        raise ApiUnreachableError("down")

    async def play() -> None:
        stage = Stage(fail)
        for _ in range(80):
            stage.supervisor.wake(A)
            await asyncio.sleep(0.1)
        assert stage.times() == [0.0, 0.5, 1.5, 3.5, 7.5]
        await stage.supervisor.stop()

    scene(play)


def test_a_refused_pass_waits_for_the_longest_time_at_once() -> None:
    async def refuse(_: JobKey) -> Pass:
        raise ApiError(403, "Forbidden", "no right")

    async def play() -> None:
        stage = Stage(refuse)
        stage.supervisor.wake(A)
        await asyncio.sleep(50)
        assert stage.times() == [0.0, 20.0, 40.0]
        await stage.supervisor.stop()

    scene(play)


def test_a_pass_that_never_ends_is_given_up() -> None:
    async def hang(_: JobKey) -> Pass:
        await asyncio.Event().wait()
        return Pass()

    async def play() -> None:
        stage = Stage(hang)
        stage.supervisor.wake(A)
        await asyncio.sleep(130)
        assert stage.times() == [0.0, 120.5]
        assert stage.errors("PassTimeout") == 1
        await stage.supervisor.stop()

    scene(play)


def test_one_failing_job_never_holds_up_another() -> None:
    async def mixed(key: JobKey) -> Pass:
        if key == A:
            raise ApiUnreachableError("down")
        return Pass(wake_at=virtual_now() + timedelta(seconds=5))

    async def play() -> None:
        stage = Stage(mixed)
        stage.supervisor.wake(A)
        stage.supervisor.wake(B)
        await asyncio.sleep(21)
        assert stage.times("b") == [0.0, 5.0, 10.0, 15.0, 20.0]
        await stage.supervisor.stop()

    scene(play)


def test_what_a_pass_learned_is_acted_on_soon_and_if_it_goes_on_later_and_later() -> None:
    async def learn(_: JobKey) -> Pass:
        return Pass(again=True)

    async def play() -> None:
        stage = Stage(learn)
        stage.supervisor.wake(A)
        await asyncio.sleep(16)
        assert stage.times() == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5]
        await stage.supervisor.stop()

    scene(play)


def test_the_task_of_a_job_that_is_gone_ends_and_a_new_job_of_that_name_gets_another() -> None:
    exists = [False]

    async def look(_: JobKey) -> Pass:
        return Pass(gone=not exists[0])

    async def play() -> None:
        stage = Stage(look)
        stage.supervisor.wake(A)
        await asyncio.sleep(1)
        assert stage.metrics.registry.get_sample_value("heterotrain_operator_jobs") == 0
        exists[0] = True
        stage.supervisor.wake(A)
        await asyncio.sleep(1)
        assert stage.metrics.registry.get_sample_value("heterotrain_operator_jobs") == 1
        assert stage.times() == [0.0, 1.0]
        await stage.supervisor.stop()

    scene(play)


def test_a_job_created_while_the_pass_that_missed_it_ends_is_not_forgotten() -> None:
    stages: list[Stage] = []

    async def look(key: JobKey) -> Pass:
        if len(stages[0].passes) == 1:
            await asyncio.sleep(0.01)
            stages[0].supervisor.wake(key)  # after the API server said that there is no such job
            return Pass(gone=True)
        return Pass()

    async def play() -> None:
        stages.append(Stage(look))
        stages[0].supervisor.wake(A)
        await asyncio.sleep(5)
        assert stages[0].times() == [0.0, 0.51]
        await stages[0].supervisor.stop()

    scene(play)


def test_the_list_of_all_jobs_finds_what_no_event_told_of() -> None:
    async def play() -> None:
        stage = Stage(jobs=[A])
        loop = asyncio.create_task(stage.supervisor.run())
        await asyncio.sleep(1)
        assert stage.supervisor.listed
        stage.jobs.append(B)
        await asyncio.sleep(60)
        assert stage.times("b") == [60.0]
        loop.cancel()
        await stage.supervisor.stop()

    scene(play)


def test_the_list_is_tried_again_soon_after_an_outage_of_an_hour() -> None:
    async def play() -> None:
        stage = Stage(jobs=[A])
        stage.list_error = ApiUnreachableError("down")
        loop = asyncio.create_task(stage.supervisor.run())
        await asyncio.sleep(3600)
        assert not stage.supervisor.listed
        assert max(b - a for a, b in zip(stage.lists, stage.lists[1:], strict=False)) <= 30
        stage.list_error = None
        await asyncio.sleep(30)
        assert stage.supervisor.listed
        assert len(stage.times()) == 1
        loop.cancel()
        await stage.supervisor.stop()

    scene(play)


def test_after_stop_nothing_runs_any_more() -> None:
    async def play() -> None:
        stage = Stage()
        stage.supervisor.wake(A)
        await asyncio.sleep(1)
        await stage.supervisor.stop()
        stage.supervisor.wake(B)
        await asyncio.sleep(300)
        assert stage.passes == [(0.0, "a")]

    scene(play)
