"""One shard's commits, over one call."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, TypeAlias

import grpc
import grpc.aio

from heterotrain_rpc import shard_pb2
from heterotrain_rpc.channels import rpc_error

if TYPE_CHECKING:  # exists only for type checkers
    from heterotrain_rpc.shard_pb2_grpc import ShardAsyncStub

_log = logging.getLogger(__name__)

_Call: TypeAlias = "grpc.aio.StreamStreamCall[shard_pb2.CommitRequest, shard_pb2.CommitReply]"

COMMIT_SECONDS: Final = 300.0
"""For one update: seconds for gigabytes on a slow machine. A shard that dies ends the call at once."""


_BROKEN: Final = {
    grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN,
}  # fmt: skip
"""What a call ends with for no reason that is the commit's."""


class CommitStream:
    """All workers wait for a commit: a call for each would be set up anew, its caller judged anew, half a millisecond.

    One commit at a time. A call that ended since the last commit is made again, and with it the commit under way: a
    shard answers the last one again without carrying it out twice.
    """

    def __init__(self, stub: ShardAsyncStub, *, commit_seconds: float = COMMIT_SECONDS) -> None:
        self._stub = stub
        self.commit_seconds = commit_seconds
        """For the shard to answer a commit in."""
        self._call: _Call | None = None
        self._under_way: asyncio.Task[object] | None = None

    async def commit(self, request: shard_pb2.CommitRequest) -> shard_pb2.CommitReply:
        """The shard's answer. Raises `grpc.aio.AioRpcError` for what it refuses, or if it is gone or too late."""
        self._under_way = asyncio.current_task()
        try:
            return await self._commit(request)
        finally:
            self._under_way = None

    def close(self) -> None:
        """End the call; a commit that is under way is cancelled."""
        if self._under_way is not None:
            self._under_way.cancel()
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    async def _commit(self, request: shard_pb2.CommitRequest) -> shard_pb2.CommitReply:
        call, self._call = self._call, None
        if call is not None:
            try:
                return await self._on(call, request)
            except grpc.aio.AioRpcError as error:
                if error.code() not in _BROKEN:
                    raise
                _log.info("the call of the commits has ended and is made again: %s", error.details())
        return await self._on(self._stub.Commit(), request)

    async def _on(self, call: _Call, request: shard_pb2.CommitRequest) -> shard_pb2.CommitReply:
        try:
            async with asyncio.timeout(self.commit_seconds):
                reply = await _exchange(call, request)
        except BaseException as error:
            call.cancel()
            if isinstance(error, TimeoutError):
                details = f"no answer to a commit within {self.commit_seconds:g} s"
                raise rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, details) from None
            raise
        self._call = call
        return reply


async def _exchange(call: _Call, request: shard_pb2.CommitRequest) -> shard_pb2.CommitReply:
    try:
        await call.write(request)
        reply = await call.read()
    except asyncio.InvalidStateError:  # the call had ended before
        reply = grpc.aio.EOF
    if isinstance(reply, shard_pb2.CommitReply):
        return reply
    code = await call.code()
    # An end in peace, as of a shard that is shut down, is no answer either.
    details = await call.details() or "it has ended the call of the commits"
    raise rpc_error(grpc.StatusCode.UNAVAILABLE if code is grpc.StatusCode.OK else code, details)
