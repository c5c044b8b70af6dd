"""A shard's commits over one call: what is answered, refused, broken or late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from heterotrain.coordinator.commit_stream import CommitStream
from heterotrain_rpc.shard_pb2 import CommitReply, CommitRequest
from heterotrain_rpc.shard_pb2_grpc import ShardServicer, ShardStub, add_ShardServicer_to_server

if TYPE_CHECKING:
    from heterotrain_rpc.shard_pb2_grpc import ShardAsyncStub


class Shard(ShardServicer):
    """Answers version v with v + 1; notes which commits came over which call. `END`, `REFUSE`, `SILENT`: versions."""

    END, REFUSE, SILENT = 100, 101, 102

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.ended = asyncio.Event()
        """A call is over, whatever ended it."""
        self.silent = asyncio.Event()

    async def Commit(  # noqa: N802
        self, requests: AsyncIterator[CommitRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[CommitReply]:
        self.calls.append([])
        call = self.calls[-1]
        context.add_done_callback(lambda _: self.ended.set())
        async for request in requests:
            call.append(request.version)
            if request.version == self.REFUSE:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not this one")
            if request.version == self.SILENT:
                self.silent.set()
                await asyncio.Event().wait()
            yield CommitReply(version=request.version + 1)
            if request.version == self.END:
                return


def make_shard() -> Shard:
    return Shard()  # type: ignore[abstract]  # its other calls are not made


@asynccontextmanager
async def commits(shard: Shard) -> AsyncIterator[tuple[CommitStream, grpc.aio.Server]]:
    server = grpc.aio.server()
    add_ShardServicer_to_server(shard, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: ShardAsyncStub = ShardStub(channel)
        stream = CommitStream(stub)
        yield stream, server
        stream.close()
        await server.stop(0)


async def version_after(stream: CommitStream, version: int) -> int | grpc.StatusCode:
    try:
        return (await stream.commit(CommitRequest(version=version))).version
    except grpc.aio.AioRpcError as error:
        return error.code()


async def test_commits_go_over_one_call() -> None:
    shard = make_shard()
    async with commits(shard) as (stream, _):
        assert [await version_after(stream, v) for v in range(3)] == [1, 2, 3]
    assert shard.calls == [[0, 1, 2]]


async def test_after_a_refusal_commits_go_on_over_another_call() -> None:
    shard = make_shard()
    async with commits(shard) as (stream, _):
        got = [await version_after(stream, v) for v in (0, Shard.REFUSE, 1)]
    assert got == [1, grpc.StatusCode.FAILED_PRECONDITION, 2]
    assert shard.calls == [[0, Shard.REFUSE], [1]]


async def test_a_call_that_has_ended_meanwhile_is_made_again() -> None:
    shard = make_shard()
    async with commits(shard) as (stream, _):
        assert [await version_after(stream, v) for v in (Shard.END, 1, 2)] == [Shard.END + 1, 2, 3]
    assert shard.calls == [[Shard.END], [1, 2]]


async def test_a_shard_that_is_gone_is_told_at_once() -> None:
    async with commits(make_shard()) as (stream, server):
        assert await version_after(stream, 0) == 1
        await server.stop(0)
        assert await version_after(stream, 1) is grpc.StatusCode.UNAVAILABLE


async def test_a_commit_without_an_answer_is_given_up_and_its_call_with_it() -> None:
    shard = make_shard()
    async with commits(shard) as (stream, _):
        assert await version_after(stream, 0) == 1
        stream.commit_seconds = 0.2
        assert await version_after(stream, Shard.SILENT) is grpc.StatusCode.DEADLINE_EXCEEDED
        await asyncio.wait_for(shard.ended.wait(), 10.0)
        stream.commit_seconds = 30.0
        assert await version_after(stream, 1) == 2
    assert shard.calls == [[0, Shard.SILENT], [1]]


async def test_close_ends_the_call() -> None:
    shard = make_shard()
    async with commits(shard) as (stream, _):
        assert await version_after(stream, 0) == 1
        stream.close()
        await asyncio.wait_for(shard.ended.wait(), 10.0)
        assert await version_after(stream, 1) == 2
    assert shard.calls == [[0], [1]]


async def test_close_ends_the_commit_that_is_under_way() -> None:
    shard = make_shard()
    async with commits(shard) as (stream, _):
        commit = asyncio.ensure_future(version_after(stream, Shard.SILENT))
        await asyncio.wait_for(shard.silent.wait(), 10.0)
        stream.close()
        with pytest.raises(asyncio.CancelledError):
            await commit
        await asyncio.wait_for(shard.ended.wait(), 10.0)
    assert shard.calls == [[Shard.SILENT]]


async def test_a_commit_that_is_cancelled_takes_its_call_with_it() -> None:
    shard = make_shard()
    async with commits(shard) as (stream, _):
        assert await version_after(stream, 0) == 1
        commit = asyncio.ensure_future(version_after(stream, Shard.SILENT))
        await asyncio.wait_for(shard.silent.wait(), 10.0)
        commit.cancel()
        await asyncio.wait_for(shard.ended.wait(), 10.0)
        assert await version_after(stream, 1) == 2
    assert shard.calls == [[0, Shard.SILENT], [1]]
