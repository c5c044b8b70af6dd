"""A real coordinator with shards that keep books and scripted workers, over mutual TLS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from heterotrain_api.trainer_config import StopConfig
from heterotrain_core.run import TrainingRun
from heterotrain_core.run_effects import Effect
from heterotrain_core.run_events import RunEvent
from heterotrain_core.run_values import Outcome, Phase, RunReason
from heterotrain_rpc import control_pb2, session_pb2, shard_pb2
from support.fake_job import FakeJob, FakeWorker, running_job, serve_shard, workers_of

FOUR = {"gpu-0": 4, "gpu-1": 2, "cpu-0": 1, "cpu-1": 1}


@asynccontextmanager
async def working(workers: list[FakeWorker]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Workers that run their scripts; those that still do at the end are cut off."""
    scripts = [asyncio.create_task(w.run()) for w in workers]
    try:
        yield scripts
    finally:
        for script in scripts:
            script.cancel()
        await asyncio.gather(*scripts, return_exceptions=True)


async def until(job: FakeJob, condition: Callable[[control_pb2.JobState], bool]) -> control_pb2.JobState:
    """The first state that fulfils a condition."""
    async for state in job.control().Watch(control_pb2.WatchRequest(), timeout=20.0):
        if condition(state):
            return state  # type: ignore[no-any-return]
    raise AssertionError("the job ended before")


async def test_a_whole_job_succeeds(tmp_path: Path) -> None:
    async with running_job(tmp_path, FOUR) as job:
        workers = workers_of(job, evaluate=True)
        await asyncio.gather(*(w.run() for w in workers))
        outcome = await job.outcome()
    assert outcome == Outcome(
        Phase.SUCCEEDED,
        RunReason.EPOCHS_COMPLETED,
        "all 2 epochs are trained",
        6,
        40,
        {"epoch": 1.0},
        "/out/model.safetensors",
    )
    assert json.loads(job.termination_log.read_text()) == {
        "state": "Succeeded",
        "reason": "EpochsCompleted",
        "message": "all 2 epochs are trained",
        "rounds": 6,
        "samples": 40,
        "reported": {"epoch": 1.0},
        "model": "/out/model.safetensors",
    }
    for index, shard in enumerate(job.shards):
        kinds = [type(r).__name__ for r in shard.requests]
        exports = ["ExportRequest"] if index == 0 else []
        assert kinds == ["ConfigureRequest", "PublishRequest", *["CommitRequest"] * 6, *exports, "ShutdownRequest"]
        assert shard.requests[0].shard == index
    assert [dict(o.sums) for w in workers for o in w.outcomes] == [{"right": 45.0}] * 8
    assert job.shards[0].commits()[0] == shard_pb2.CommitRequest(
        term=1,
        version=0,
        contributions=[
            shard_pb2.CommitContribution(worker=i, incarnation=1, iteration=0, weight=w)
            for i, w in enumerate((0.5, 0.25, 0.125, 0.125))
        ],
        scale=1.0,
        groups=['{"lr": 0.1}'],
    )


async def test_a_worker_is_welcomed_with_what_it_needs(tmp_path: Path) -> None:
    async with running_job(tmp_path, FOUR, lease_seconds=9.0) as job:
        workers = workers_of(job)
        await asyncio.gather(*(w.run() for w in workers))
    assert workers[2].welcome == session_pb2.Welcome(
        term=1,
        incarnation=1,
        worker=2,
        num_workers=4,
        seed=7,
        global_batch_size=8,
        share_minimum=0,
        share_maximum=100,
        shards=["tensors:0", "tensors:1"],
        heartbeat_seconds=3.0,
    )


async def test_the_state_is_told_at_once_while_all_shards_are_busy(tmp_path: Path) -> None:
    async with running_job(tmp_path, FOUR) as job:
        for shard in job.shards:
            shard.commit_gate.clear()
        workers = workers_of(job)
        async with working(workers):
            await until(job, lambda s: s.workers[0].rounds == 1)
            # The deadline of this call is one second.
            assert (await job.state()).version == 0
            for shard in job.shards:
                shard.commit_gate.set()
            assert (await job.outcome()).phase is Phase.SUCCEEDED


async def test_a_watcher_sees_the_job_to_its_end(tmp_path: Path) -> None:
    async with running_job(tmp_path, FOUR) as job:
        states: list[control_pb2.JobState] = []

        async def watch() -> None:
            async for state in job.control().Watch(control_pb2.WatchRequest(min_interval_seconds=0.05), timeout=20.0):
                states.append(state)

        watcher = asyncio.create_task(watch())
        async with working(workers_of(job)):
            await asyncio.wait_for(watcher, 20)
    assert states[0].phase == control_pb2.PHASE_WAITING
    last = states[-1]
    assert (last.phase, last.version, last.samples, last.reason) == (
        control_pb2.PHASE_SUCCEEDED,
        6,
        40,
        "EpochsCompleted",
    )
    assert [w.share_applied for w in last.workers] == [2, 1, 1, 1]  # the last one had no part of the ragged round
    assert [w.phase for w in last.workers] == [control_pb2.WORKER_PHASE_FINISHED] * 4
    worker, record = last.workers[0], last.workers[0].recent[-1]
    assert worker.samples_per_second > 0
    assert (worker.receive_seconds, worker.other_seconds) == (0.004, 0.002)
    assert (record.receive_seconds, record.other_seconds, record.cpu_seconds) == pytest.approx((0.004, 0.002, 0.008))
    pushes = sum(w.rounds for w in last.workers)
    assert (last.pushed_bytes_per_sample, last.pulled_bytes_per_sample) == (96 * pushes / 40, 48 * pushes / 40)
    assert [e.sequence for e in last.events] == list(range(1, len(last.events) + 1))


async def test_a_plan_is_in_force_from_the_first_round_not_yet_opened(tmp_path: Path) -> None:
    async with running_job(tmp_path, FOUR) as job:
        workers = workers_of(job)
        for worker in workers:
            worker.hold.clear()
        async with working(workers):
            await until(job, lambda s: s.phase == control_pb2.PHASE_TRAINING)
            plan = control_pb2.Plan(
                shares=[
                    control_pb2.PlanShare(worker="gpu-0", samples=2),
                    control_pb2.PlanShare(worker="cpu-1", samples=3, micro_batch=2),
                ]
            )
            verdict = await job.control().Apply(plan, timeout=10.0)
            assert verdict == control_pb2.PlanVerdict(accepted=True, generation=2, effective_round=2)
            for worker in workers:
                worker.hold.set()
            await job.outcome()
        by_worker = {w.name: [sum(r.stop - r.start for r in g.ranges) for g in w.grants] for w in workers}
    # Rounds 0 and 1 were open; round 2 is the ragged one: 4 samples by the new shares.
    assert by_worker["gpu-0"] == [4, 4, 1, 2, 2, 1]
    assert by_worker["cpu-1"] == [1, 1, 1, 3, 3, 1]
    assert [g.micro_batch for g in workers[3].grants][:4] == [0, 0, 2, 2]


async def test_a_refusal_by_one_worker_refuses_the_plan(tmp_path: Path) -> None:
    async with running_job(tmp_path, FOUR) as job:
        workers = workers_of(job)
        workers[1].accepts = {"accepted": False, "reason": "memory for 2 samples only"}
        for worker in workers:
            worker.hold.clear()
        async with working(workers):
            await until(job, lambda s: s.phase == control_pb2.PHASE_TRAINING)
            plan = control_pb2.Plan(generation=9, shares=[control_pb2.PlanShare(worker=n, samples=2) for n in FOUR])
            verdict = await job.control().Apply(plan, timeout=10.0)
            assert (await job.state()).plan.generation == 1
    assert verdict == control_pb2.PlanVerdict(
        generation=9,
        effective_round=-1,
        refusals=[control_pb2.Refusal(worker="gpu-1", reason="memory for 2 samples only")],
    )


async def test_a_drained_worker_leaves_and_the_others_take_over(tmp_path: Path) -> None:
    async with running_job(tmp_path, FOUR) as job:
        workers = workers_of(job)
        for worker in workers:
            worker.hold.clear()
        async with working(workers):
            await until(job, lambda s: s.phase == control_pb2.PHASE_TRAINING)
            drain = control_pb2.CommandRequest(drain=control_pb2.Drain(worker="gpu-0"))
            assert await job.control().Command(drain, timeout=10.0) == control_pb2.CommandReply(accepted=True)
            for worker in workers:
                worker.hold.set()
            outcome = await job.outcome()
    assert (outcome.phase, outcome.samples) == (Phase.SUCCEEDED, 40)
    assert [g.iteration for g in workers[0].grants] == [0, 1]


async def test_stop_finishes_what_was_granted_and_saves(tmp_path: Path) -> None:
    async with running_job(tmp_path, FOUR) as job:
        workers = workers_of(job, epochs=1000)
        async with working(workers):
            await until(job, lambda s: s.version >= 3)
            stop = control_pb2.CommandRequest(stop=control_pb2.Stop(reason="enough"))
            assert (await job.control().Command(stop, timeout=10.0)).accepted
            outcome = await job.outcome()
    assert (outcome.phase, outcome.reason, outcome.message) == (Phase.STOPPED, RunReason.STOPPED, "enough")
    assert outcome.model == "/out/model.safetensors"


async def test_a_checkpoint_is_written_while_training_goes_on(tmp_path: Path) -> None:
    async with running_job(tmp_path, {"a-0": 2}) as job:
        workers = workers_of(job, epochs=1000)
        async with working(workers):
            await until(job, lambda s: s.version >= 1)
            request = control_pb2.CommandRequest(checkpoint=control_pb2.Checkpoint())
            reply = await job.control().Command(request, timeout=10.0)
    save = next(r for r in job.shards[0].requests if isinstance(r, shard_pb2.SaveRequest))
    assert reply == control_pb2.CommandReply(accepted=True, path=f"/out/checkpoints/{save.version}")
    for shard in job.shards:
        kept = [r for r in shard.requests if isinstance(r, shard_pb2.CaptureRequest | shard_pb2.ReleaseRequest)]
        captured = shard_pb2.CaptureRequest(term=1, version=save.version)
        assert kept == [captured, shard_pb2.ReleaseRequest(term=1, captures=[save.version])]


async def test_clipping_takes_the_norm_over_all_shards(tmp_path: Path) -> None:
    def clip(done: session_pb2.Done) -> None:
        done.max_norm, done.norm_type = 1.0, 2.0

    async with running_job(tmp_path, {"a-0": 4}) as job:
        job.shards[0].norm_part, job.shards[1].norm_part = 9.0, 16.0
        async with working(workers_of(job, on_grant=clip)):
            await job.outcome()
    for shard in job.shards:
        assert shard.commits()[0].clip_coefficient == pytest.approx(1 / 5, rel=1e-6)


async def test_a_round_limit_from_the_configuration_holds(tmp_path: Path) -> None:
    async with running_job(tmp_path, FOUR, stop=StopConfig(rounds=2)) as job, working(workers_of(job)):
        outcome = await job.outcome()
    assert (outcome.phase, outcome.reason, outcome.rounds) == (Phase.SUCCEEDED, RunReason.ROUNDS_REACHED, 2)


async def test_a_worker_that_breaks_off_fails_the_job_by_name_and_the_others_are_told(tmp_path: Path) -> None:
    async with running_job(tmp_path, FOUR) as job:
        workers = workers_of(job)
        for worker in workers:
            worker.hold.clear()
        async with working(workers) as scripts:
            await until(job, lambda s: s.phase == control_pb2.PHASE_TRAINING)
            workers[2].call.cancel()
            outcome = await job.outcome()
            await asyncio.wait(scripts, timeout=10)
            told = [w.dismissal.reason if w.dismissal is not None else None for w in workers]
    message = "worker cpu-0 is lost: its connection ended without a goodbye"
    assert (outcome.phase, outcome.reason, outcome.message) == (Phase.FAILED, RunReason.WORKER_LOST, message)
    assert told == [message, message, None, message]
    assert json.loads(job.termination_log.read_text())["state"] == "Failed"


async def test_a_script_that_raises_fails_the_job_with_its_last_line(tmp_path: Path) -> None:
    async with running_job(tmp_path, FOUR) as job:
        workers = workers_of(job)
        workers[0].hold.clear()
        async with working(workers):
            await until(job, lambda s: s.phase == control_pb2.PHASE_TRAINING)
            await workers[1].say(failure=session_pb2.Failure(error="Traceback\n  ...\nValueError: no such file\n"))
            outcome = await job.outcome()
    assert (outcome.reason, outcome.message) == (
        RunReason.WORKER_FAILED,
        "worker gpu-1 failed: ValueError: no such file",
    )


@pytest.mark.parametrize("times", [1, 1000], ids=["once", "whenever it is asked"])
async def test_a_fault_of_the_coordinator_itself_ends_the_job_and_is_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    faults = iter([ValueError("no such case")] * times)
    handle = TrainingRun.handle

    def faulty(self: TrainingRun, event: RunEvent, now: float) -> list[Effect]:
        for fault in faults:
            raise fault
        return handle(self, event, now)

    async with running_job(tmp_path, FOUR, lease_seconds=600.0) as job:
        workers = workers_of(job)
        for worker in workers:
            worker.hold.clear()
        async with working(workers):
            await until(job, lambda s: s.phase == control_pb2.PHASE_TRAINING)
            monkeypatch.setattr(TrainingRun, "handle", faulty)
            await workers[1].say(heartbeat=session_pb2.Heartbeat())
            outcome = await job.outcome()
    assert (outcome.phase, outcome.reason, outcome.message) == (
        Phase.FAILED,
        RunReason.COORDINATOR_FAILED,
        "the coordinator failed: ValueError: no such case",
    )


async def test_a_silent_worker_is_lost_after_its_lease(tmp_path: Path) -> None:
    async with running_job(tmp_path, {"a-0": 2}, lease_seconds=0.3) as job:
        workers = workers_of(job)
        workers[0].hold.clear()
        async with working(workers):
            outcome = await job.outcome()
    assert outcome.message == "worker a-0 is lost: silent for 0.3 s"


async def test_a_shard_that_dies_fails_the_job_by_name(tmp_path: Path) -> None:
    async with running_job(tmp_path, FOUR) as job:
        job.shards[1].commit_gate.clear()
        async with working(workers_of(job)):
            await until(job, lambda s: s.workers[0].rounds == 1)
            await job.servers[1].stop(None)
            outcome = await job.outcome()
    assert outcome.reason is RunReason.SHARD_FAILED
    assert outcome.message.startswith("parameter server ps-1: ")


async def test_a_shard_that_dies_while_nobody_calls_it_is_missed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterotrain.coordinator.shards.RECONNECT_SECONDS", 0.2)
    async with running_job(tmp_path, FOUR) as job:
        workers = workers_of(job)
        for worker in workers:
            worker.hold.clear()
        async with working(workers):
            await until(job, lambda s: s.phase == control_pb2.PHASE_TRAINING)
            await job.servers[1].stop(None)
            outcome = await job.outcome()
    assert (outcome.reason, outcome.message) == (
        RunReason.SHARD_FAILED,
        "parameter server ps-1: its connection broke and it did not answer for 0.2 s",
    )


async def test_a_shard_that_comes_late_is_waited_for_and_the_state_says_so(tmp_path: Path) -> None:
    async with running_job(tmp_path, FOUR, late=[1]) as job, working(workers_of(job)):
        words = "waiting for ps-1 to answer"  # ps-0 too may need a moment
        state = await until(job, lambda s: s.message == words and s.dataset_size > 0)
        assert state.reason == "WaitingForShards"
        port = int(job.config.shards[1].control_address.rpartition(":")[2])
        job.servers.append((await serve_shard(job.shards[1], port))[0])
        outcome = await job.outcome()
    assert outcome.phase is Phase.SUCCEEDED


async def test_a_model_that_a_shard_refuses_fails_the_job_with_the_shards_words(tmp_path: Path) -> None:
    async with running_job(tmp_path, {"a-0": 2}) as job:
        job.shards[1].refusal = "optimizer LBFGS is not elementwise"
        async with working(workers_of(job)):
            outcome = await job.outcome()
    assert (outcome.reason, outcome.message) == (
        RunReason.OPTIMIZER_NOT_SUPPORTED,
        "parameter server ps-1: optimizer LBFGS is not elementwise",
    )


@pytest.mark.parametrize(
    ("command", "why"),
    [
        pytest.param({"drain": control_pb2.Drain(worker="a-0")}, "training has not begun", id="drain too early"),
        pytest.param({"drain": control_pb2.Drain(worker="x")}, "unknown worker `x`", id="drain of nobody"),
        pytest.param({"checkpoint": control_pb2.Checkpoint()}, "there are no parameters yet", id="nothing to save"),
    ],
)
async def test_commands_that_cannot_be_obeyed_say_why(tmp_path: Path, command: dict[str, Any], why: str) -> None:
    async with running_job(tmp_path, {"a-0": 2, "b-0": 2}) as job:
        reply = await job.control().Command(control_pb2.CommandRequest(**command), timeout=5.0)
    assert not reply.accepted
    assert why in reply.reason


async def test_stop_before_training_ends_the_job_at_once(tmp_path: Path) -> None:
    async with running_job(tmp_path, FOUR) as job:
        worker = FakeWorker(job, "gpu-0")
        async with working([worker]) as scripts:
            await until(job, lambda s: s.workers[0].phase == control_pb2.WORKER_PHASE_JOINED)
            stop = control_pb2.CommandRequest(stop=control_pb2.Stop(reason="wrong file"))
            assert (await job.control().Command(stop, timeout=10.0)).accepted
            outcome = await job.outcome()
            await asyncio.wait(scripts, timeout=10)
            assert worker.dismissal == session_pb2.Dismissal(reason="wrong file", fault=False)
    assert (outcome.phase, outcome.message) == (Phase.STOPPED, "wrong file, before training began")


async def test_a_worker_that_speaks_as_its_session_ends_still_hears_why(tmp_path: Path) -> None:
    over = asyncio.Event()

    class Late(FakeWorker):
        async def say(self, **body: Any) -> None:
            if "manifest" in body:
                await over.wait()
            await super().say(**body)

    async with running_job(tmp_path, FOUR) as job:
        worker = Late(job, "gpu-0")
        async with working([worker]) as scripts:
            await until(job, lambda s: s.workers[0].phase == control_pb2.WORKER_PHASE_JOINED)
            watch = aiter(job.control().Watch(control_pb2.WatchRequest(), timeout=20.0))
            await anext(watch)  # else its connection might be made as the server closes
            stop = control_pb2.CommandRequest(stop=control_pb2.Stop(reason="wrong file"))
            assert (await job.control().Command(stop, timeout=10.0)).accepted
            async for _ in watch:
                pass  # it ends with the job
            over.set()
            await asyncio.wait(scripts, timeout=10)
            assert worker.dismissal == session_pb2.Dismissal(reason="wrong file", fault=False)
