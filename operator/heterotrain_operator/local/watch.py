"""Follows a job's state over the coordinator's control channel, and keeps a record of it for the report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio

from heterotrain_api.contract import ps_name
from heterotrain_rpc import control_pb2
from heterotrain_rpc.certificates import Credentials
from heterotrain_rpc.channels import make_channel
from heterotrain_rpc.control_pb2_grpc import CoordinatorStub

STATE_INTERVAL_SECONDS: Final = 0.5
STREAM_SECONDS: Final = 20.0
"""A stream is opened anew after so long: the state that every stream begins with is the proof that the coordinator
lives."""
RETRY_SECONDS: Final = 0.5
COMMAND_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """The job at one moment of its training."""

    seconds: float
    """Since the first grant."""
    round: int
    epoch: int
    samples: int
    samples_per_second: float
    ideal_samples_per_second: float
    shares: Mapping[str, int]
    """In force, by worker."""
    reported: Mapping[str, float]

    @classmethod
    def from_state(cls, state: control_pb2.JobState) -> HistoryPoint:
        """Pick from a state what the report keeps."""
        return cls(
            seconds=state.training_seconds, round=state.version, epoch=state.epoch, samples=state.samples,
            samples_per_second=state.samples_per_second, ideal_samples_per_second=state.ideal_samples_per_second,
            shares={worker.name: share_in_force(state, worker) for worker in state.workers},
            reported=dict(state.reported),
        )  # fmt: skip


def is_pending(state: control_pb2.JobState) -> bool:
    """Whether the newest plan is agreed and not in force yet."""
    return state.plan.effective_round > state.version


def share_in_force(state: control_pb2.JobState, worker: control_pb2.WorkerState) -> int:
    """The worker's share by the plan in force.

    That of its last grant (`share_applied`) is another in the last round of an epoch, which is shared out in
    proportion: it counts only while a plan is pending.
    """
    return worker.share_applied if is_pending(state) and worker.share_applied else worker.share_wanted


class History:
    """Points of a whole job in bounded memory: when it is full, every second point goes and new ones come half as
    often.
    """

    def __init__(self, capacity: int = 2000, interval_seconds: float = 0.5) -> None:
        self._capacity = capacity
        self._interval_seconds = interval_seconds
        self._points: list[HistoryPoint] = []

    @property
    def points(self) -> tuple[HistoryPoint, ...]:
        """In order of time; the newest is always there."""
        return tuple(self._points)

    def add(self, point: HistoryPoint) -> None:
        """Take a point; one that came too soon after the last replaces it, unless a reported value changed."""
        before = self._points[-2:]
        if (
            len(before) == 2
            and before[1].reported == point.reported
            and point.seconds - before[0].seconds < self._interval_seconds
        ):
            self._points[-1] = point
        else:
            self._points.append(point)
        if len(self._points) > self._capacity:
            self._points = self._points[:-1:2] + self._points[-1:]
            self._interval_seconds *= 2


async def watch(
    address: str,
    credentials: Credentials,
    on_state: Callable[[control_pb2.JobState], None],
    on_silence: Callable[[], None],
) -> None:
    """Call `on_state` with every state of the coordinator, and `on_silence` for every attempt without an answer; until
    cancelled.
    """
    async with make_channel(address, ps_name(0), credentials) as channel:
        stub = CoordinatorStub(channel)
        request = control_pb2.WatchRequest(min_interval_seconds=STATE_INTERVAL_SECONDS)
        while True:
            answered = False
            try:
                async for state in stub.Watch(request, timeout=STREAM_SECONDS):
                    answered = True
                    on_state(state)
            except grpc.aio.AioRpcError as error:
                if not answered or error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    on_silence()
                    await asyncio.sleep(RETRY_SECONDS)
            else:
                # The coordinator ended the stream: it is about to leave.
                await asyncio.sleep(RETRY_SECONDS)


async def ask_to_stop(address: str, credentials: Credentials, reason: str) -> bool:
    """Ask the coordinator to finish what was granted and to save the model; False if it does not answer or refuses."""
    async with make_channel(address, ps_name(0), credentials) as channel:
        request = control_pb2.CommandRequest(stop=control_pb2.Stop(reason=reason))
        try:
            reply = await CoordinatorStub(channel).Command(request, timeout=COMMAND_SECONDS)
        except grpc.aio.AioRpcError:
            return False
        return reply.accepted
