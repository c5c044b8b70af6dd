"""The adaptation loop of a local job over a real channel: states in, a plan out by `Apply`, a record to explain."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from heterotrain_api.contract import Role
from heterotrain_core.adaptation.values import Mode, Settings
from heterotrain_operator.explain import chain, explain, read_records
from heterotrain_operator.local.adapt import LocalLoop
from heterotrain_rpc import control_pb2
from support.credentials import JOB_UID, credentials
from support.fake_coordinator import FakeCoordinator, serve

SECONDS_PER_SAMPLE = {"fast-0": 0.01, "slow-0": 0.03}


def training(version: int, shares: Mapping[str, int], generation: int = 1, effective: int = 0) -> control_pb2.JobState:
    """Both workers have done `version` rounds with these shares."""
    longest = max(share * SECONDS_PER_SAMPLE[name] for name, share in shares.items())
    return control_pb2.JobState(
        phase=control_pb2.PHASE_TRAINING,
        version=version,
        training_seconds=float(version),
        plan=control_pb2.PlanState(
            generation=generation,
            effective_round=effective,
            shares=[control_pb2.PlanShare(worker=name, samples=share) for name, share in shares.items()],
        ),
        workers=[
            control_pb2.WorkerState(
                name=name,
                phase=control_pb2.WORKER_PHASE_TRAINING,
                share_minimum=1,
                share_maximum=40,
                recent=[
                    control_pb2.StepRecord(
                        sequence=n,
                        samples=share,
                        compute_seconds=share * SECONDS_PER_SAMPLE[name],
                        step_seconds=longest + 0.01,
                    )
                    for n in range(max(1, version - 19), version + 1)
                ],
            )
            for name, share in shares.items()
        ],
    )


class Bench:
    """A loop, what it said, and a clock that the test moves."""

    def __init__(self, folder: Path, mode: Mode) -> None:
        self.now = 0.0
        self.said: list[str] = []
        self.record = folder / "decisions.jsonl"
        self.coordinator = FakeCoordinator()
        settings = Settings(mode=mode, global_batch=40)
        equal = {"fast-0": 20, "slow-0": 20}
        self.loop = LocalLoop(settings, equal, self.record, say=self.said.append, clock=lambda: self.now)

    async def take(self, state: control_pb2.JobState) -> None:
        self.loop.take(state)
        await self.loop.settle()
        self.now += 1.0


@asynccontextmanager
async def bench(folder: Path, mode: Mode = Mode.APPLY) -> AsyncIterator[Bench]:
    made = Bench(folder, mode)
    async with serve(made.coordinator, credentials(Role.PS, "ps-0"), JOB_UID, "127.0.0.1:0") as port:
        made.loop.connect(f"127.0.0.1:{port}", credentials(Role.OPERATOR, "operator"))
        yield made
        await made.loop.close()


EQUAL = {"fast-0": 20, "slow-0": 20}
FITTING = {"fast-0": 30, "slow-0": 10}


async def test_a_plan_is_proposed_agreed_verified_and_explained(tmp_path: Path) -> None:
    async with bench(tmp_path) as job:
        job.coordinator.verdict = control_pb2.PlanVerdict(accepted=True, generation=2, effective_round=8)
        await job.take(training(3, EQUAL))
        await job.take(training(6, EQUAL))
        for version in range(9, 30, 5):
            await job.take(training(version, FITTING, 2, 8))

    (plan,) = job.coordinator.plans
    assert (plan.generation, {s.worker: s.samples for s in plan.shares}) == (2, FITTING)
    assert "fast-0 20→30" in plan.reason
    with job.record.open() as file:
        records = read_records(file)
    assert [r["action"] for r in chain(records, 2)] == ["Propose", "Answer", "Keep"]
    text = "\n".join(explain(chain(records, 2)))
    assert "plan 2 is agreed, in force from round 8" in text
    assert "predicted 310.0 ms a round, measured 310.0 ms" in text
    assert any(line.startswith("adaptation: plan 2: ") for line in job.said)
    assert json.loads(json.dumps(job.loop.decisions)) == records


@pytest.mark.parametrize(
    ("refuse", "verdict", "want"),
    [
        (
            None,
            control_pb2.PlanVerdict(generation=2, refusals=[control_pb2.Refusal(worker="fast-0", reason="no memory")]),
            "plan 2 was refused: fast-0: no memory",
        ),
        (
            grpc.StatusCode.UNAVAILABLE,
            control_pb2.PlanVerdict(),
            "plan 2 was refused: the coordinator: no answer: UNAVAILABLE: as the test wants it",
        ),
    ],
    ids=["by a worker", "no answer"],
)
async def test_a_refusal_is_told_and_the_next_plan_comes_a_window_later(
    tmp_path: Path, refuse: grpc.StatusCode | None, verdict: control_pb2.PlanVerdict, want: str
) -> None:
    async with bench(tmp_path) as job:
        job.coordinator.refuse, job.coordinator.verdict = refuse, verdict
        for version in range(6, 20):
            await job.take(training(version, EQUAL))

    assert want in job.said
    shares = [{s.worker: s.samples for s in plan.shares} for plan in job.coordinator.plans]
    assert shares[:2] == [FITTING, FITTING if refuse is not None else {"fast-0": 25, "slow-0": 15}]


@pytest.mark.parametrize("mode", [Mode.RECOMMEND, Mode.OFF])
async def test_nothing_is_proposed_where_nothing_may_change(tmp_path: Path, mode: Mode) -> None:
    async with bench(tmp_path, mode) as job:
        for version in range(3, 20):
            await job.take(training(version, EQUAL))

    assert job.coordinator.plans == []
    assert job.record.exists() == (mode is Mode.RECOMMEND)
