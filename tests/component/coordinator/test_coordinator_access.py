"""Who may do what at a coordinator: identity comes from the certificate alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from heterotrain_api.contract import PROTOCOL_VERSION, Role
from heterotrain_rpc import control_pb2, session_pb2
from heterotrain_rpc.certificates import Credentials
from heterotrain_rpc.session_pb2_grpc import SessionStub
from support.credentials import OTHER_JOB_UID, credentials, forged_credentials
from support.fake_job import FakeJob, running_job

TWO = {"a-0": 1, "b-0": 1}


async def first_answer(job: FakeJob, who: Credentials, join: session_pb2.Join) -> session_pb2.CoordinatorMessage:
    call: Any = SessionStub(job.channel(who)).Open(timeout=5.0)
    await call.write(session_pb2.WorkerMessage(join=join))
    return await call.read()  # type: ignore[no-any-return]


def join_as(name: str, protocol_version: int = PROTOCOL_VERSION) -> session_pb2.Join:
    return session_pb2.Join(worker=name, protocol_version=protocol_version, library_version="0.0.9", host="here")


async def test_a_worker_cannot_claim_another_workers_name(tmp_path: Path) -> None:
    async with running_job(tmp_path, TWO) as job:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await first_answer(job, credentials(Role.WORKER, "a-0"), join_as("b-0"))
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert refused.value.details() == "the certificate is for worker a-0, the join for b-0"
        state = await job.state()
    assert [w.phase for w in state.workers] == [control_pb2.WORKER_PHASE_ABSENT] * 2


@pytest.mark.parametrize(
    ("name", "version", "words"),
    [
        pytest.param("c-0", PROTOCOL_VERSION, "not one of this job's workers: a-0, b-0", id="a worker too many"),
        pytest.param("a-0", 99, "speaks protocol version 99 (heterotrain 0.0.9), the coordinator speaks", id="version"),
    ],
)
async def test_who_cannot_take_part_is_dismissed(tmp_path: Path, name: str, version: int, words: str) -> None:
    async with running_job(tmp_path, TWO) as job:
        answer = await first_answer(job, credentials(Role.WORKER, name), join_as(name, version))
        assert answer.dismissal.fault
        assert words in answer.dismissal.reason
        state = await job.state()
    assert [e.reason for e in state.events if e.warning] == ["JoinRefused"]
    assert state.phase == control_pb2.PHASE_WAITING


async def test_a_second_session_of_a_live_worker_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async with running_job(tmp_path, TWO) as job:
        me = credentials(Role.WORKER, "a-0")
        first: Any = SessionStub(job.channel(me)).Open()
        await first.write(session_pb2.WorkerMessage(join=join_as("a-0")))
        assert (await first.read()).HasField("welcome")
        answer = await first_answer(job, me, join_as("a-0"))
        assert answer.dismissal.reason == "worker a-0 is in the job already, from here"
        await first.write(session_pb2.WorkerMessage(heartbeat=session_pb2.Heartbeat()))
        state = await job.state()
        assert state.workers[0].phase == control_pb2.WORKER_PHASE_JOINED
        assert not job.ended.done()
        first.cancel()


async def test_a_session_must_begin_with_a_join(tmp_path: Path) -> None:
    async with running_job(tmp_path, TWO) as job:
        call: Any = SessionStub(job.channel(credentials(Role.WORKER, "a-0"))).Open(timeout=5.0)
        await call.write(session_pb2.WorkerMessage(heartbeat=session_pb2.Heartbeat()))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("who", "code"),
    [
        pytest.param(credentials(Role.WORKER, "a-0"), grpc.StatusCode.PERMISSION_DENIED, id="a worker"),
        pytest.param(credentials(Role.PS, "ps-0"), grpc.StatusCode.PERMISSION_DENIED, id="a parameter server"),
        pytest.param(
            credentials(Role.OPERATOR, "operator", OTHER_JOB_UID), grpc.StatusCode.UNAVAILABLE, id="another job's"
        ),
        pytest.param(forged_credentials(Role.OPERATOR, "operator"), grpc.StatusCode.UNAVAILABLE, id="a forger"),
    ],
)
async def test_the_control_channel_is_the_operators_alone(
    tmp_path: Path, who: Credentials, code: grpc.StatusCode
) -> None:
    async with running_job(tmp_path, TWO) as job:
        stub = job.control(who)
        stop = control_pb2.CommandRequest(stop=control_pb2.Stop())
        for call in (stub.Command(stop, timeout=5.0), stub.Apply(control_pb2.Plan(), timeout=5.0)):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call
            assert refused.value.code() is code
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            async for _ in stub.Watch(control_pb2.WatchRequest(once=True), timeout=5.0):
                pass
        assert refused.value.code() is code
        assert not job.ended.done()


async def test_the_operator_cannot_join_as_a_worker(tmp_path: Path) -> None:
    async with running_job(tmp_path, TWO) as job:
        # It is refused before it can say its name.
        call: Any = SessionStub(job.channel(credentials(Role.OPERATOR, "operator"))).Open(timeout=5.0)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_too_many_watchers_are_refused_not_queued(tmp_path: Path) -> None:
    async with running_job(tmp_path, TWO) as job:
        stub = job.control()
        streams = [stub.Watch(control_pb2.WatchRequest(), timeout=10.0) for _ in range(32)]
        await asyncio.gather(*(s.read() for s in streams))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Watch(control_pb2.WatchRequest(), timeout=5.0).read()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for stream in streams:
            stream.cancel()
