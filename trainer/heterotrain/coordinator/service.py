"""The gRPC services: sessions of workers, and the control channel. Thin: everything is decided elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc
import grpc.aio

from heterotrain.coordinator.coordinator import Coordinator
from heterotrain.coordinator.messages import event_of, shares_of, word
from heterotrain.coordinator.outlet import Outlet
from heterotrain.coordinator.synchronization import of_message as synchronization_of
from heterotrain_core import run_events as ev
from heterotrain_core.run_effects import AnswerCommand, AnswerPlan
from heterotrain_rpc import control_pb2, session_pb2
from heterotrain_rpc.control_pb2_grpc import CoordinatorServicer
from heterotrain_rpc.identity import peer_identity
from heterotrain_rpc.session_pb2_grpc import SessionServicer

logger = logging.getLogger("heterotrain.coordinator")

JOIN_SECONDS: Final = 10.0
"""For the first message of a session."""
PLAN_SECONDS: Final = 10.0
"""For the workers' answers to a plan, unless the caller's deadline is shorter."""
ANSWER_MARGIN_SECONDS: Final = 0.25
"""Left of a caller's deadline to give it the answer."""
WATCH_INTERVAL_SECONDS: Final = 0.05
"""Shortest interval between two states of one stream."""
WATCHER_LIMIT: Final = 32
"""Streams of states at a time; more are refused rather than slow everybody down."""

_BROKEN: Final = "its connection ended without a goodbye"
_LAST_WORDS = (ev.SaidGoodbye, ev.WorkerFailed, ev.SessionBroken)

Context = grpc.aio.ServicerContext[Any, Any]


class SessionService(SessionServicer):
    """Workers' sessions: a reader task and the writer, which is the call itself."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def Open(  # noqa: N802  # gRPC's name
        self, request_iterator: AsyncIterator[session_pb2.WorkerMessage], context: Context
    ) -> AsyncIterator[session_pb2.CoordinatorMessage]:
        """One session, from joining to leaving."""
        joined = await _first_message(request_iterator, context)
        if not self._coordinator.open:
            # It tries again; nothing is known yet that it could be told.
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the job is being opened")
        outlet = Outlet(joined.worker)
        reader: asyncio.Task[None] | None = None
        refusal = self._coordinator.join(joined, outlet)
        if refusal is not None and refusal.retry:
            # Its name is in the job; should that be a process that is gone, its lease will end.
            await context.abort(grpc.StatusCode.UNAVAILABLE, refusal.reason)
        if refusal is None:
            reader = self._coordinator.spawn(self._read(request_iterator, outlet))
            _when_done(context, lambda: self._over(outlet, reader))
        while (message := await outlet.next()) is not None:
            yield message
        if reader is not None:
            reader.cancel()  # before the call ends: reading on would be an error

    async def _read(self, messages: AsyncIterator[session_pb2.WorkerMessage], outlet: Outlet) -> None:
        """Hand in what the worker says, until its last word."""
        worker = outlet.worker
        try:
            async for message in messages:
                event = _understood(worker, message)
                if isinstance(event, _LAST_WORDS):
                    self._coordinator.leave(outlet, event)
                    break
                self._coordinator.hear(outlet, event)
            else:
                self._coordinator.leave(outlet, ev.SessionBroken(worker, _BROKEN))
        except grpc.aio.UsageError:  # read while the call was being ended
            self._coordinator.leave(outlet, ev.SessionBroken(worker, _BROKEN))
        finally:
            outlet.close()

    def _over(self, outlet: Outlet, reader: asyncio.Task[None] | None) -> None:
        """The call has ended, perhaps because the worker's process has."""
        if reader is not None:
            reader.cancel()
        self._coordinator.leave(outlet, ev.SessionBroken(outlet.worker, _BROKEN))


def _understood(worker: str, message: session_pb2.WorkerMessage) -> ev.WorkerEvent:
    """What a worker says; that it broke its session if that cannot be understood."""
    try:
        return event_of(worker, message)
    except ValueError as error:
        return ev.SessionBroken(worker, f"it broke the protocol: {error}")


async def _first_message(messages: AsyncIterator[session_pb2.WorkerMessage], context: Context) -> ev.Joined:
    """The join, whose worker is the certificate's; aborts the call otherwise."""
    name = peer_identity(context).name
    try:
        async with asyncio.timeout(JOIN_SECONDS):
            message = await anext(messages)
    except (TimeoutError, StopAsyncIteration):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no join within {JOIN_SECONDS:g} s")
    join = message.join
    if not message.HasField("join"):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message of a session must be a join")
    if join.worker != name:
        claimed = word(join.worker)
        logger.warning("JoinRefused: the certificate of %s claims to be worker %s", name, claimed)
        await context.abort(
            grpc.StatusCode.PERMISSION_DENIED, f"the certificate is for worker {name}, the join for {claimed}"
        )
    return ev.Joined(name, join.protocol_version, word(join.library_version), word(join.device), word(join.host))


class ControlService(CoordinatorServicer):
    """The operator's (and the command line's) channel."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._watching = 0

    async def Watch(  # noqa: N802
        self, request: control_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[control_pb2.JobState]:
        """The state now and whenever it changed, until the end of the job."""
        coordinator = self._coordinator
        if self._watching >= WATCHER_LIMIT:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{WATCHER_LIMIT} streams watch already")
        self._watching += 1
        _when_done(context, self._watcher_left)
        interval = max(request.min_interval_seconds, WATCH_INTERVAL_SECONDS)
        while True:
            ended, seen = coordinator.ended.done(), coordinator.changes
            yield coordinator.state()
            if request.once or ended:
                return
            # The end is told at once, whatever the interval.
            await asyncio.wait([coordinator.ended], timeout=interval)
            if not coordinator.ended.done():
                await coordinator.changed_since(seen)

    async def Apply(self, request: control_pb2.Plan, context: Context) -> control_pb2.PlanVerdict:  # noqa: N802
        """Propose a plan to all live workers."""
        try:
            shares = shares_of(request)
            wanted = synchronization_of(request.synchronization) if request.HasField("synchronization") else None
        except ValueError as error:
            return control_pb2.PlanVerdict(refusals=[control_pb2.Refusal(reason=str(error))])
        deadline = min(PLAN_SECONDS, _time_remaining(context))
        verdict: AnswerPlan = await self._coordinator.ask(
            lambda number: ev.PlanRequested(number, request.generation, shares, request.reason, deadline, wanted)
        )
        return control_pb2.PlanVerdict(
            accepted=not verdict.refusals,
            generation=verdict.generation,
            effective_round=verdict.effective_round,
            refusals=[control_pb2.Refusal(worker=r.worker, reason=r.reason) for r in verdict.refusals],
        )

    async def Command(  # noqa: N802
        self, request: control_pb2.CommandRequest, context: Context
    ) -> control_pb2.CommandReply:
        """Stop, checkpoint, drain, scale."""
        coordinator = self._coordinator
        match request.WhichOneof("command"):
            case "stop":
                if coordinator.ended.done():
                    return control_pb2.CommandReply(accepted=False, reason="the job is over")
                coordinator.tell(ev.StopCommanded(request.stop.reason))
                return control_pb2.CommandReply(accepted=True)
            case "drain":
                worker = request.drain.worker
                answer: AnswerCommand = await coordinator.ask(lambda number: ev.DrainCommanded(number, worker))
            case "scale":
                group, replicas = word(request.scale.group), request.scale.replicas
                answer = await coordinator.ask(lambda number: ev.ScaleCommanded(number, group, replicas))
            case "checkpoint":
                answer = await coordinator.ask(ev.CheckpointCommanded)
            case _:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "command: one of stop, checkpoint, drain, scale")
        return control_pb2.CommandReply(accepted=answer.accepted, reason=answer.reason, path=answer.path)

    def _watcher_left(self) -> None:
        self._watching -= 1


def _when_done(context: Context, callback: Callable[[], None]) -> None:
    """Call back when the call has ended, however it does."""
    register: Any = context.add_done_callback  # its type stub knows no other callbacks than its own class
    register(lambda _context: callback())


def _time_remaining(context: Context) -> float:
    """What is left for the workers of the caller's deadline."""
    remaining = context.time_remaining()
    return PLAN_SECONDS if remaining is None else max(0.0, remaining - ANSWER_MARGIN_SECONDS)
