"""A term's work ends with the term: what fails just then is not told to the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from heterotrain.coordinator.shard_work import ShardWork
from heterotrain.coordinator.shards import ShardError, Shards, _all
from heterotrain_core import run_effects as out
from heterotrain_core import run_events as ev


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

        def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            running.append(asyncio.create_task(work))
            return running[-1]

        async def stop() -> None:
            await shards.lost.wait()  # as the failing call, right after it
            if stops:
                work.stop()

        work = ShardWork(cast("Shards", shards), None, told.append, spawn)
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
