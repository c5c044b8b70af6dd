"""A term's work: in which order it leaves, and that it ends with the term."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from heterotrain.coordinator.shard_work import ShardWork
from heterotrain.coordinator.shards import Commits, ShardError, Shards, _all
from heterotrain_core import run_effects as out
from heterotrain_core import run_events as ev
from heterotrain_core.run_values import Clip


def spawning(running: list[asyncio.Task[None]]) -> Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]:
    """Starts tasks and keeps them in `running`."""

    def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        running.append(asyncio.create_task(work))
        return running[-1]

    return spawn


class LosesOne:
    """Two shards of which one is lost during an export, while the other still works on it."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    async def watch(self) -> None:
        await asyncio.Event().wait()

    async def export(self, version: int, file: str) -> str:
        del version, file
        await _all([self._fails(), asyncio.Event().wait()])
        raise AssertionError("the first one fails")

    async def _fails(self) -> None:
        await self.lost.wait()
        raise ShardError("ps-0", "gone")


@pytest.mark.parametrize(
    ("stops", "want"),
    [
        pytest.param(False, [ev.ShardFailed("ps-0", "gone")], id="while the term goes on it is told"),
        pytest.param(True, [], id="not after the term's end, although the call had failed before it was cancelled"),
    ],
)
def test_a_loss_is_told_to_the_term_it_belongs_to(stops: bool, want: list[ev.RunEvent]) -> None:
    told: list[ev.RunEvent] = []

    async def story() -> None:
        shards, running = LosesOne(), []

        async def stop() -> None:
            await shards.lost.wait()  # as the failing call, right after it
            if stops:
                work.stop()

        work = ShardWork(cast("Shards", shards), None, told.append, spawning(running))
        work.put(out.Export(3, "model.safetensors"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stopping = asyncio.create_task(stop())
        await asyncio.sleep(0)
        shards.lost.set()
        await stopping
        await asyncio.wait(running[2:])
        work.stop()
        await asyncio.gather(*running, return_exceptions=True)

    asyncio.run(story())
    assert told == want


class Calls:
    """A shard that answers each call when it is let; notes what has left."""

    def __init__(self) -> None:
        self.left: list[int] = []
        self.answers: asyncio.Queue[None] = asyncio.Queue()

    async def watch(self) -> None:
        await asyncio.Event().wait()

    def begin_commit(self, commit: out.CommitRound) -> Commits | None:
        if commit.clip is not None:
            return None
        self.left.append(commit.version)
        return []

    async def commit(self, commit: out.CommitRound, begun: Commits | None) -> None:
        if begun is None:
            self.left.append(commit.version)
        await self.answers.get()


def commit(version: int, clip: Clip | None = None) -> out.CommitRound:
    return out.CommitRound(version, (), 1.0, (), (), (), clip, ())


@pytest.mark.parametrize(
    ("clip", "first"),
    [
        pytest.param(None, [0], id="a commit leaves at once: all workers wait for it"),
        pytest.param(Clip(1.0, 2.0), [], id="one that is clipped needs an answer before it"),
    ],
)
def test_commits_leave_in_order_and_the_first_without_delay(clip: Clip | None, first: list[int]) -> None:
    told: list[ev.RunEvent] = []

    async def story() -> None:
        shards, running, both = Calls(), [], asyncio.Event()

        def tell(event: ev.RunEvent) -> None:
            told.append(event)
            if len(told) == 2:
                both.set()

        work = ShardWork(cast("Shards", shards), None, tell, spawning(running))
        work.put(commit(0, clip))
        assert shards.left == first
        work.put(commit(1))
        assert shards.left == first, "the one before it is not answered"
        for _ in range(2):
            shards.answers.put_nowait(None)
        async with asyncio.timeout(10.0):
            await both.wait()
        assert shards.left == [0, 1]
        work.put(commit(2))
        assert shards.left == [0, 1, 2], "nothing is under way any more"
        work.stop()
        await asyncio.gather(*running, return_exceptions=True)

    asyncio.run(story())
    assert told == [ev.Committed(0), ev.Committed(1)]
