"""A coordinator for tests of the operator: the real channel and certificates, states and answers on request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from heterotrain_rpc import control_pb2
from heterotrain_rpc.authorization import Authorization
from heterotrain_rpc.certificates import Credentials
from heterotrain_rpc.channels import make_server, server_credentials
from heterotrain_rpc.control_pb2_grpc import CoordinatorServicer, add_CoordinatorServicer_to_server

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass
class FakeCoordinator(CoordinatorServicer):
    """`say` sets the state; requests are noted, and answered with what is set here."""

    state: control_pb2.JobState = field(default_factory=control_pb2.JobState)
    verdict: control_pb2.PlanVerdict = field(default_factory=lambda: control_pb2.PlanVerdict(accepted=True))
    reply: control_pb2.CommandReply = field(default_factory=lambda: control_pb2.CommandReply(accepted=True))
    plans: list[control_pb2.Plan] = field(default_factory=list)
    commands: list[control_pb2.CommandRequest] = field(default_factory=list)
    intervals: list[float] = field(default_factory=list)
    refuse: grpc.StatusCode | None = None
    """Status of all requests, if set."""
    hold: asyncio.Event | None = None
    """Requests wait for it, if set."""
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _changes: int = 0

    async def say(self, state: control_pb2.JobState) -> None:
        async with self._changed:
            self.state, self._changes = state, self._changes + 1
            self._changed.notify_all()

    async def Watch(  # noqa: N802  # gRPC's name
        self, request: control_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[control_pb2.JobState]:
        self.intervals.append(request.min_interval_seconds)
        while True:
            seen = self._changes
            yield self.state
            async with self._changed:
                while self._changes == seen:
                    await self._changed.wait()

    async def Apply(self, request: control_pb2.Plan, context: Context) -> control_pb2.PlanVerdict:  # noqa: N802
        self.plans.append(request)
        await self._before(context)
        return self.verdict

    async def Command(  # noqa: N802
        self, request: control_pb2.CommandRequest, context: Context
    ) -> control_pb2.CommandReply:
        self.commands.append(request)
        await self._before(context)
        return self.reply

    async def _before(self, context: Context) -> None:
        if self.hold is not None:
            await self.hold.wait()
        if self.refuse is not None:
            await context.abort(self.refuse, "as the test wants it")


@asynccontextmanager
async def serve(
    coordinator: FakeCoordinator, credentials: Credentials, job_uid: str, address: str
) -> AsyncIterator[int]:
    """Serve at ``host:port``; gives the port."""
    server = make_server(Authorization(job_uid))
    add_CoordinatorServicer_to_server(coordinator, server)
    port = server.add_secure_port(address, server_credentials(credentials))
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)
