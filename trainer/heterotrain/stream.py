"""A worker's session with the coordinator: one gRPC stream on a thread of its own.

Heartbeats and answers to plans go on while the training thread computes; a dismissal or a broken stream wakes it
wherever it waits. Only the training thread calls the public methods.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final, TypeAlias

import grpc
import grpc.aio

from heterotrain.errors import PeerLostError
from heterotrain_api.contract import ExitCode
from heterotrain_rpc import session_pb2 as pb
from heterotrain_rpc.channels import rpc_error
from heterotrain_rpc.session_pb2_grpc import SessionStub

JOIN_SECONDS: Final = 300.0
"""How long a worker waits for a coordinator that does not answer yet (its image may still be pulled)."""
RETRY_SECONDS: Final = 0.5
CLOSE_SECONDS: Final = 5.0
"""How long the last message may take; the coordinator ends the stream when it has it."""
FIRST_SECONDS: Final = 0.05
"""How long `SessionStream.send_first` waits for its message to be sent."""

_FATAL_CODES: Final = {
    grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ALREADY_EXISTS,
}  # fmt: skip
_FATAL_WORDS: Final = ("CERTIFICATE_VERIFY_FAILED", "Peer name", "certificate")
_QUEUES: Final = {
    "grant": "item", "epoch_end": "item", "training_end": "item",
    "evaluation_work": "evaluation", "evaluation_outcome": "evaluation",
}  # fmt: skip
"""Kinds of messages that are waited for together."""

Answer: TypeAlias = Callable[[pb.Welcome, pb.PlanProposal], pb.PlanAnswer]
Call: TypeAlias = "grpc.aio.StreamStreamCall[pb.WorkerMessage, pb.CoordinatorMessage]"
Messages: TypeAlias = AsyncIterator[pb.CoordinatorMessage]


class SessionStream:
    """The session's stream. `connect` makes a channel (in the stream's thread); `answer` judges proposed plans there.

    `on_item` is called there too, for each grant or end as it arrives.
    """

    def __init__(
        self,
        connect: Callable[[], grpc.aio.Channel],
        join: pb.Join,
        answer: Answer,
        on_item: Callable[[pb.CoordinatorMessage], None],
        *,
        join_seconds: float = JOIN_SECONDS,
    ) -> None:
        self._connect = connect
        self._join = join
        self._answer = answer
        self._on_item = on_item
        self._join_seconds = join_seconds
        self._changed = threading.Condition()
        self._received: dict[str, deque[pb.CoordinatorMessage]] = {}
        self._lost: PeerLostError | None = None
        self._again = False
        """The job takes back whom it has lost."""
        self._outgoing: asyncio.Queue[tuple[pb.WorkerMessage | None, threading.Event | None]] = asyncio.Queue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name="heterotrain-session", daemon=True)

    def open(self) -> pb.Welcome:
        """Join the job; waits for the coordinator. Raises `PeerLostError` if it cannot be reached, or refuses."""
        self._thread.start()
        return self.wait("welcome").welcome

    def send(self, message: pb.WorkerMessage) -> None:
        """Queue a message; raises `PeerLostError` if the session is over."""
        self.check()
        self._queue(message)

    def send_first(self, message: pb.WorkerMessage) -> bool:
        """As `send`, and let it go before the calling thread goes on; false: it has not gone within `FIRST_SECONDS`.

        Others wait for the message. A thread that computes would keep the interpreter from sending it meanwhile.
        """
        self.check()
        sent = threading.Event()
        self._queue(message, sent)
        return sent.wait(FIRST_SECONDS)

    def wait(self, kind: str) -> pb.CoordinatorMessage:
        """Wait for the next message of a kind: a field of ``CoordinatorMessage``, or one of `_QUEUES`.

        Raises `PeerLostError` if the session is over before.
        """
        with self._changed:
            queue = self._received.setdefault(kind, deque())
            while not queue:
                self._raise_if_lost()
                self._changed.wait()
            # What was granted is worthless once the job is gone; the end of training still is one.
            if not queue[0].HasField("training_end"):
                self._raise_if_lost()
            return queue.popleft()

    def check(self) -> None:
        """Raise `PeerLostError` if the session is over."""
        with self._changed:
            self._raise_if_lost()

    def close(self, last: pb.WorkerMessage) -> None:
        """Send a last message (goodbye or failure) and end the stream; gives up after `CLOSE_SECONDS`."""
        if not self._thread.is_alive():
            return
        for message in (last, None):
            self._queue(message)
        self._thread.join(CLOSE_SECONDS)

    def _queue(self, message: pb.WorkerMessage | None, sent: threading.Event | None = None) -> None:
        # The stream's thread may end at any time; its loop is closed then, and whoever waits next learns why.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._outgoing.put_nowait, (message, sent))

    def _raise_if_lost(self) -> None:
        if self._lost is not None:
            raise self._lost

    # From here on: the stream's thread.

    def _main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._run())
        finally:
            # Whatever went wrong in here (the interpreter shows it), nobody may wait for ever.
            self._end(PeerLostError("the session's thread has ended"))

    async def _run(self) -> None:
        channel = self._connect()
        try:
            self._end(await self._converse(channel))
        except grpc.aio.AioRpcError as error:
            reason = f"the connection to the coordinator broke: {_describe(error)}"
            self._end(PeerLostError(reason, again=self._again))
        finally:
            await channel.close()

    async def _converse(self, channel: grpc.aio.Channel) -> PeerLostError:
        """The whole session; returns why it ended."""
        call, messages, first = await self._open_call(channel)
        if not first.HasField("welcome"):
            return _dismissal(first) or PeerLostError("the coordinator did not welcome this worker")
        self._again = first.welcome.recovers or first.welcome.rejoins
        self._deliver("welcome", first)
        writer = asyncio.create_task(self._write(call, first.welcome.heartbeat_seconds))
        try:
            async for message in messages:
                reason = _dismissal(message)
                if reason is not None:
                    return reason
                self._dispatch(first.welcome, message)
        finally:
            writer.cancel()
        return PeerLostError("the coordinator ended the session", again=self._again)

    async def _open_call(self, channel: grpc.aio.Channel) -> tuple[Call, Messages, pb.CoordinatorMessage]:
        stub = SessionStub(channel)
        deadline = time.monotonic() + self._join_seconds
        while True:
            call: Call = stub.Open()
            # Not `call.read`: once a message could not be sent any more, it gives none of those that have arrived.
            messages: Messages = aiter(call)
            first = await _first_message(call, messages, self._join)
            if isinstance(first, pb.CoordinatorMessage):
                return call, messages, first
            if _is_fatal(first) or time.monotonic() > deadline:
                raise first
            await asyncio.sleep(RETRY_SECONDS)

    async def _write(self, call: Call, heartbeat_seconds: float) -> None:
        while True:
            try:
                async with asyncio.timeout(heartbeat_seconds):  # `wait_for` makes a task for each message
                    message, sent = await self._outgoing.get()
            except TimeoutError:
                message, sent = pb.WorkerMessage(heartbeat=pb.Heartbeat()), None
            if message is None:
                await call.done_writing()
                return
            try:
                await call.write(message)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return  # the reader learns why
            if sent is not None:
                sent.set()

    def _dispatch(self, welcome: pb.Welcome, message: pb.CoordinatorMessage) -> None:
        kind = message.WhichOneof("body")
        if kind == "plan_proposal":
            answer = self._answer(welcome, message.plan_proposal)
            self._outgoing.put_nowait((pb.WorkerMessage(plan_answer=answer), None))
        elif kind is not None:
            queue = _QUEUES.get(kind, kind)
            if queue == "item":
                self._on_item(message)
            self._deliver(queue, message)

    def _deliver(self, kind: str, message: pb.CoordinatorMessage) -> None:
        with self._changed:
            self._received.setdefault(kind, deque()).append(message)
            self._changed.notify_all()

    def _end(self, loss: PeerLostError) -> None:
        with self._changed:
            self._lost = self._lost or loss
            self._changed.notify_all()


async def _first_message(call: Call, messages: Messages, join: pb.Join) -> pb.CoordinatorMessage | grpc.aio.AioRpcError:
    """The answer to `join`, or why there is none."""
    with suppress(StopAsyncIteration, asyncio.InvalidStateError):  # it ended, perhaps while it was written to
        try:
            await call.write(pb.WorkerMessage(join=join))
            return await anext(messages)
        except grpc.aio.AioRpcError as error:
            return error
    return rpc_error(await call.code(), await call.details())


def _dismissal(message: pb.CoordinatorMessage) -> PeerLostError | None:
    if not message.HasField("dismissal"):
        return None
    dismissal = message.dismissal
    code = ExitCode.PEER_LOST if dismissal.fault or dismissal.again else ExitCode.STOPPED
    return PeerLostError(f"the coordinator ended the session: {dismissal.reason}", code, again=dismissal.again)


def _is_fatal(error: grpc.aio.AioRpcError) -> bool:
    details = error.details() or ""
    return error.code() in _FATAL_CODES or any(word in details for word in _FATAL_WORDS)


def _describe(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {error.details() or 'no details'}"
