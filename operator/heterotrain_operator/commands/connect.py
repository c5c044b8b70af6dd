"""From a job's name to its coordinator: found in the registry, reached with the operator's certificate."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from heterotrain_api.contract import ExitCode, ps_name
from heterotrain_operator.commands.errors import CommandError
from heterotrain_operator.local.registry import JobNotFoundError, LocalJob, Registry, home
from heterotrain_rpc import control_pb2
from heterotrain_rpc.certificates import Credentials
from heterotrain_rpc.channels import make_sync_channel
from heterotrain_rpc.control_pb2_grpc import CoordinatorStub

CALL_SECONDS = 10.0
MAX_PATIENCE_SECONDS = 86_400


def find_job(name: str) -> LocalJob:
    """The local job of that name; raises `CommandError` that lists those there are."""
    try:
        return Registry(home(os.environ)).find(name)
    except JobNotFoundError as error:
        raise CommandError(f"{error}; a job on a cluster is named with -n NAMESPACE") from None


@contextmanager
def coordinator_of(name: str) -> Iterator[CoordinatorStub]:
    """A stub for the coordinator of a running job; raises `CommandError` if it does not run or does not answer."""
    job = find_job(name)
    if not job.alive or job.entry.state != "Running":
        raise CommandError(f"job {name} does not run: it is {job.state}")
    if not job.entry.coordinator:
        raise CommandError(f"job {name} is starting: its coordinator does not answer yet; try again in a moment")
    try:
        credentials = Credentials.read(job.credentials)
    except FileNotFoundError:  # the runner removes them when the job is over
        raise CommandError(f"job {name} has just ended") from None
    with make_sync_channel(job.entry.coordinator, ps_name(0), credentials) as channel:
        try:
            yield CoordinatorStub(channel)
        except grpc.RpcError as error:
            raise CommandError(
                f"the coordinator of job {name} does not answer as it should: {_explain(error)}"
            ) from None


@contextmanager
def patience(name: str, what: str, seconds: float) -> Iterator[None]:
    """Around a call that asks a coordinator for something within `seconds`; raises `CommandError` when they are over.

    The coordinator takes nothing back because the caller has gone.
    """
    if not seconds <= MAX_PATIENCE_SECONDS:  # gRPC would take a deadline so far away for one that is over
        raise CommandError(f"--timeout {seconds:g}: write 1 to {MAX_PATIENCE_SECONDS} seconds", ExitCode.INVALID)
    try:
        yield
    except grpc.RpcError as error:
        if not isinstance(error, grpc.Call) or error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        raise CommandError(
            f"the coordinator of job {name} has not answered within {seconds:g} s; the request stays with it, and "
            f"{what} may still be carried out: see `heterotrain plan show {name}`, or wait longer with --timeout"
        ) from None


def state_of(name: str) -> control_pb2.JobState:
    """The job's state now; raises `CommandError`."""
    with coordinator_of(name) as stub:
        for state in stub.Watch(control_pb2.WatchRequest(once=True), timeout=CALL_SECONDS):
            return state
    raise CommandError(f"the coordinator of job {name} gave no state")


def command(name: str, request: control_pb2.CommandRequest, timeout_seconds: float) -> control_pb2.CommandReply:
    """Send a command and return the reply; raises `CommandError`, with the reason if it is refused."""
    with coordinator_of(name) as stub, patience(name, "the command", timeout_seconds):
        reply = stub.Command(request, timeout=timeout_seconds)
    if not reply.accepted:
        raise CommandError(f"refused: {reply.reason}")
    return reply


def _explain(error: grpc.RpcError) -> str:
    if isinstance(error, grpc.Call):
        code = error.code()
        return f"{error.details() or 'no details'} ({code.name if code is not None else 'UNKNOWN'})"
    return str(error)
