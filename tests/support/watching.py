"""The operator's side of a running job: its control channel, and what its workers logged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from heterotrain_api.contract import Role
from heterotrain_rpc.channels import make_sync_channel
from heterotrain_rpc.control_pb2 import JobState, WatchRequest
from heterotrain_rpc.control_pb2_grpc import CoordinatorStub
from support.credentials import credentials
from support.real_job import SECONDS

Rounds = dict[int, dict[str, list[int]]]
"""Samples (indices) of each round, by worker."""


@contextmanager
def control(address: str) -> Iterator[CoordinatorStub]:
    """The coordinator's control channel, as the operator has it."""
    with make_sync_channel(address, "ps-0", credentials(Role.OPERATOR, "operator")) as channel:
        yield CoordinatorStub(channel)


def state_when(stub: CoordinatorStub, fulfilled: Callable[[JobState], bool]) -> JobState:
    """The first state in which it is so."""
    states = stub.Watch(WatchRequest(), timeout=SECONDS)
    try:
        for state in states:
            if fulfilled(state):
                return state
    finally:
        states.cancel()
    raise AssertionError("the job ended before it was so")


def state_now(stub: CoordinatorStub, seconds: float = SECONDS) -> JobState:
    """One state; fails with DEADLINE_EXCEEDED if it does not come within `seconds`."""
    (state,) = stub.Watch(WatchRequest(once=True), timeout=seconds)
    return state


def read_sample_logs(paths: Mapping[str, Path]) -> tuple[Rounds, list[tuple[int, int]]]:
    """What workers logged: the rounds, and (epoch, index) of every sample, sorted.

    A worker of which no gradient counted has no log: Backup may drop all of the slowest. Its samples are then others'.
    """
    rounds: Rounds = {}
    seen: list[tuple[int, int]] = []
    for name, path in paths.items():
        for line in path.read_text().splitlines() if path.exists() else ():
            epoch, iteration, *indices = map(int, line.split())
            assert name not in rounds.setdefault(iteration, {}), f"{name} logged round {iteration} twice"
            rounds[iteration][name] = indices
            seen += [(epoch, index) for index in indices]
    return rounds, sorted(seen)
