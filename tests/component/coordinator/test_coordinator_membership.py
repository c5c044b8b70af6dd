"""A real coordinator whose workers break off, come back, and are scaled, over mutual TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from heterotrain_api.contract import PROTOCOL_VERSION, Role
from heterotrain_core.run_values import Phase
from heterotrain_rpc import control_pb2, session_pb2, shard_pb2
from heterotrain_rpc.session_pb2_grpc import SessionStub
from support.credentials import credentials
from support.fake_job import FakeJob, FakeWorker, running_job, workers_of

TWO = {"a-0": 3, "b-0": 1}


async def until(job: FakeJob, condition: Callable[[control_pb2.JobState], bool]) -> control_pb2.JobState:
    """The first state that fulfils a condition."""
    async for state in job.control().Watch(control_pb2.WatchRequest(), timeout=20.0):
        if condition(state):
            return state  # type: ignore[no-any-return]
    raise AssertionError("the job ended before")


def phase_of(state: control_pb2.JobState, name: str) -> int:
    return next(w.phase for w in state.workers if w.name == name)


async def held(job: FakeJob) -> tuple[list[FakeWorker], list[asyncio.Task[None]]]:
    """Workers that have their first grants and compute for ever."""
    workers = workers_of(job)
    for worker in workers:
        worker.hold.clear()
    scripts = [asyncio.create_task(w.run()) for w in workers]
    await until(job, lambda s: s.phase == control_pb2.PHASE_TRAINING)
    return workers, scripts


async def end(scripts: list[asyncio.Task[None]]) -> None:
    for script in scripts:
        script.cancel()
    await asyncio.gather(*scripts, return_exceptions=True)


async def test_a_worker_that_breaks_off_is_taken_back_with_the_next_incarnation(tmp_path: Path) -> None:
    async with running_job(tmp_path, TWO, rejoin_limit=1) as job:
        workers, scripts = await held(job)
        workers[1].call.cancel()
        state = await until(job, lambda s: phase_of(s, "b-0") == control_pb2.WORKER_PHASE_LOST)
        assert (state.phase, state.workers[1].losses) == (control_pb2.PHASE_TRAINING, 1)
        back = FakeWorker(job, "b-0")
        scripts.append(asyncio.create_task(back.run()))
        await until(job, lambda s: phase_of(s, "b-0") == control_pb2.WORKER_PHASE_TRAINING)
        back.hold.set()
        workers[0].hold.set()
        outcome = await job.outcome()
        await end(scripts)
    assert (outcome.phase, outcome.samples, back.welcome.incarnation) == (Phase.SUCCEEDED, 40, 2)
    seats = [r for r in job.shards[0].requests if isinstance(r, shard_pb2.SeatRequest)]
    assert seats[0] == shard_pb2.SeatRequest(term=1, workers=["a-0", "b-0"], least_incarnations=[1, 2])


async def test_a_second_process_of_a_name_is_to_try_again(tmp_path: Path) -> None:
    async with running_job(tmp_path, TWO, rejoin_limit=1) as job:
        _, scripts = await held(job)
        call = SessionStub(job.channel(credentials(Role.WORKER, "b-0"))).Open()
        join = session_pb2.Join(worker="b-0", protocol_version=PROTOCOL_VERSION)
        await call.write(session_pb2.WorkerMessage(join=join))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        await end(scripts)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert refused.value.details() == "worker b-0 is in the job already, from here"


async def test_a_group_is_scaled_over_the_control_channel(tmp_path: Path) -> None:
    async with running_job(tmp_path, {"a-0": 4, "b-0": 4}, rejoin_limit=1) as job:
        workers, scripts = await held(job)

        async def scale(group: str, replicas: int) -> control_pb2.CommandReply:
            request = control_pb2.CommandRequest(scale=control_pb2.Scale(group=group, replicas=replicas))
            return await job.control().Command(request, timeout=5.0)  # type: ignore[no-any-return]

        assert (await scale("b", 2)) == control_pb2.CommandReply(accepted=True)
        state = await until(job, lambda s: len(s.workers) == 3)
        assert {g.name: g.replicas for g in state.groups} == {"a": 1, "b": 2}
        newcomer = FakeWorker(job, "b-1")
        scripts.append(asyncio.create_task(newcomer.run()))
        await until(job, lambda s: phase_of(s, "b-1") == control_pb2.WORKER_PHASE_TRAINING)
        assert (await scale("c", 2)).reason == "unknown group `c`; the job's groups are a, b"
        for worker in (*workers, newcomer):
            worker.hold.set()
        outcome = await job.outcome()
        await end(scripts)
    assert (outcome.phase, outcome.samples) == (Phase.SUCCEEDED, 40)
    assert (newcomer.welcome.worker, newcomer.welcome.num_workers) == (2, 3)
    assert newcomer.grants, "it took part"
