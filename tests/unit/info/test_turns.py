"""Long work and the event loop: how long a slice is, who comes next, how long the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from heterotrain_operator.info.turns import LONGEST_REST_SECONDS, SLICE_SECONDS, Turns
from support.virtual_time import run_virtual


class Work:
    """Steps that take time of a clock, and tell in a common log."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def clock(self) -> float:
        return self.now

    def steps(self, name: str, count: int, seconds: float) -> Iterator[None]:
        for _ in range(count):
            self.now += seconds
            self.log.append(name)
            yield


def test_work_rests_as_long_as_it_has_worked() -> None:
    async def main() -> float:
        work = Work()
        await Turns(work.clock).work(work.steps("a", 40, SLICE_SECONDS / 4))
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(40 * SLICE_SECONDS / 4)


def test_a_slow_step_is_followed_by_a_rest_of_bounded_length() -> None:
    async def main() -> float:
        work = Work()
        await Turns(work.clock).work(work.steps("a", 1, 5.0))
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(LONGEST_REST_SECONDS)


def test_little_work_does_not_rest_before_it_adds_up() -> None:
    async def main() -> list[float]:
        work, times = Work(), []
        turns = Turns(work.clock)
        for _ in range(6):
            await turns.work(work.steps("a", 1, SLICE_SECONDS / 2.5))
            times.append(round(asyncio.get_running_loop().time() / SLICE_SECONDS, 3))
        return times

    assert run_virtual(main()) == [0, 0, 1.2, 1.2, 1.2, 2.4]


def test_two_works_take_turns_and_what_waits_for_the_loop_comes_between() -> None:
    async def main() -> list[str]:
        work = Work()
        turns = Turns(work.clock)

        async def requests() -> None:
            for _ in range(3):
                await asyncio.sleep(1.5 * SLICE_SECONDS)
                work.log.append("request")

        await asyncio.gather(
            turns.work(work.steps("a", 3, SLICE_SECONDS)), turns.work(work.steps("b", 3, SLICE_SECONDS)), requests()
        )
        return work.log

    assert run_virtual(main()) == ["a", "b", "request", "a", "request", "b", "a", "request", "b"]


def test_what_a_step_raises_is_raised_and_others_go_on() -> None:
    def broken() -> Iterator[None]:
        yield
        raise ZeroDivisionError

    async def main() -> list[str]:
        work = Work()
        turns = Turns(work.clock)
        with pytest.raises(ZeroDivisionError):
            await turns.work(broken())
        await turns.work(work.steps("a", 2, 0.0))
        return work.log

    assert run_virtual(main()) == ["a", "a"]
