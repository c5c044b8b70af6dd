"""Shares changed while a job runs: in force at one round for all, no sample lost or seen twice; or refused whole."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from heterotrain_api.contract import Env
from heterotrain_rpc.control_pb2 import Plan, PlanShare, PlanVerdict
from heterotrain_rpc.control_pb2_grpc import CoordinatorStub
from support.local_jobs import heterotrain
from support.real_job import SECONDS, RealJob
from support.recovery import fork_run
from support.watching import Rounds, control, read_sample_logs, state_now, state_when
from support.zygote import Zygote, until

pytestmark = pytest.mark.timeout(240)

SCRIPT = Path(__file__).parents[2] / "support" / "scripts" / "train_gated.py"
SAMPLES = 200
SHARES = {"a-0": 12, "b-0": 8, "c-0": 4}
BATCH = 24
ROUNDS = 9
"""Of an epoch: eight whole ones and one of 8 samples."""
GATED_ROUND = 2
"""Of each epoch: the workers hold here until the test lets them go on."""


@dataclass
class InForce:
    """The shares of every round, from the plans that were agreed."""

    plans: list[tuple[int, dict[str, int]]] = field(default_factory=lambda: [(0, SHARES)])

    def agreed(self, first_round: int, shares: Mapping[str, int]) -> None:
        assert first_round >= self.plans[-1][0]
        self.plans.append((first_round, self.plans[-1][1] | dict(shares)))

    def at(self, number: int) -> dict[str, int]:
        return next(shares for first, shares in reversed(self.plans) if first <= number)


def apply(
    stub: CoordinatorStub, shares: Mapping[str, int], *, generation: int = 0, micro_batch: int = 0
) -> PlanVerdict:
    entries = [
        PlanShare(worker=name, samples=samples, micro_batch=micro_batch or None) for name, samples in shares.items()
    ]
    return stub.Apply(Plan(generation=generation, shares=entries, reason="test"), timeout=SECONDS)


def check_rounds(rounds: Rounds, seen: list[tuple[int, int]], *, epochs: int, in_force: InForce) -> None:
    """Every whole round has the shares of the plan in force; each sample is used once an epoch."""
    sizes = {number: {name: len(indices) for name, indices in by_name.items()} for number, by_name in rounds.items()}
    whole = {number: by_name for number, by_name in sizes.items() if number % ROUNDS != ROUNDS - 1}
    ragged = {number: sum(by_name.values()) for number, by_name in sizes.items() if number % ROUNDS == ROUNDS - 1}
    assert whole == {n: in_force.at(n) for n in range(epochs * ROUNDS) if n % ROUNDS != ROUNDS - 1}
    assert {sum(by_name.values()) for by_name in whole.values()} == {BATCH}
    assert ragged == {epoch * ROUNDS + ROUNDS - 1: SAMPLES % BATCH for epoch in range(epochs)}
    assert seen == [(epoch, index) for epoch in range(epochs) for index in range(SAMPLES)]


REFUSED = [
    ("a sum above the batch", {"a-0": 13}, 0, "", "the shares sum to 25 samples, the global batch is 24: take 1 away"),
    ("an unknown worker", {"a-0": 11, "d-0": 1}, 0, "d-0", "unknown worker; the job's workers are a-0, b-0, c-0"),
    ("a share below its bounds", {"a-0": 16, "c-0": 0}, 0, "c-0", "share 0 is out of bounds"),
    ("a share above its bounds", {"a-0": 25, "b-0": 1, "c-0": -2}, 0, "a-0", "share 25 is out of bounds"),
    ("the generation in force", {"a-0": 11, "b-0": 9}, 1, "", "generation 1 is not newer than 1, which is in force"),
]


def check_refusals(stub: CoordinatorStub) -> None:
    before = state_now(stub)
    for fault, shares, generation, worker, words in REFUSED:
        verdict = apply(stub, shares, generation=generation)
        assert not verdict.accepted, fault
        assert [words in r.reason for r in verdict.refusals if r.worker == worker] == [True], (fault, verdict)
    after = state_now(stub)
    assert after.plan == before.plan
    assert [w.share_wanted for w in after.workers] == list(SHARES.values())


def test_plans_are_in_force_at_one_round_for_all_workers(zygote: Zygote, tmp_path: Path) -> None:
    epochs, in_force = 4, InForce()
    logs = {name: tmp_path / f"{name}.samples" for name in SHARES}
    with RealJob(zygote, tmp_path / "job", SHARES) as job, control(job.address) as stub:
        for name in SHARES:
            own = {"GATES": str(tmp_path), "EPOCHS": str(epochs), Env.SAMPLE_LOG: str(logs[name])}
            job.start_worker(name, SCRIPT, own)
        state_when(stub, lambda s: s.version == GATED_ROUND)
        check_refusals(stub)

        # All workers compute round 2, round 3 is granted already: the plan is in force from round 4.
        held = {"a-0": 5, "b-0": 10, "c-0": 9}
        assert apply(stub, held) == PlanVerdict(accepted=True, generation=2, effective_round=4)
        in_force.agreed(4, held)
        (tmp_path / "0").touch()

        # While rounds follow each other as fast as they can: whenever it is, it is one round for all.
        state_when(stub, lambda s: s.version > 4)
        free = {"a-0": 1, "b-0": 1, "c-0": 22}
        verdict = apply(stub, free, generation=7, micro_batch=5)
        assert (verdict.accepted, verdict.generation) == (True, 7), verdict
        in_force.agreed(verdict.effective_round, free)
        held_again = state_when(stub, lambda s: s.version == ROUNDS + GATED_ROUND)
        # The next round is granted already; on a busy machine the plan may have come too late for it.
        next_round = held_again.version + 1
        parts = 5 if verdict.effective_round <= next_round else 0
        granted = [(samples, parts) for samples in in_force.at(next_round).values()]
        assert [(w.share_applied, w.micro_batch) for w in held_again.workers] == granted
        assert not apply(stub, SHARES, generation=7).accepted

        # Two plans one after the other; the second names some of the workers only.
        for shares in ({"a-0": 10, "b-0": 2, "c-0": 12}, {"b-0": 6, "c-0": 8}):
            (tmp_path / str(len(in_force.plans) - 2)).touch()
            verdict = apply(stub, shares)
            assert verdict.accepted, verdict
            in_force.agreed(verdict.effective_round, shares)
        (tmp_path / "3").touch()
        result = job.finish()
    assert result.codes == dict.fromkeys(SHARES, 0), result.errors
    assert (result.outcome["state"], result.outcome["samples"]) == ("Succeeded", epochs * SAMPLES)
    check_rounds(*read_sample_logs(logs), epochs=epochs, in_force=in_force)


def test_shares_are_changed_from_the_command_line(zygote: Zygote, tmp_path: Path) -> None:
    write_job(tmp_path)
    own = {"HETEROTRAIN_HOME": str(tmp_path / "home"), "GATES": str(tmp_path), "EPOCHS": "2"}
    logs = {name: tmp_path / "out" / "logs" / f"{name}.samples" for name in SHARES}
    words = ["run", "job.yaml", "--report", "out", "--log-samples", "--plain"]
    process = fork_run(zygote, tmp_path, words, {**os.environ, **own})
    try:
        until(lambda: held_in_first_epoch(logs) or process.poll(), 3 * SECONDS, lambda: "training does not begin")
        code, output = heterotrain(tmp_path, "plan", "set", "gated", "a-0=13", real=True)
        assert code == 1
        assert "the plan was refused; nothing changed" in output
        assert "the coordinator: the shares sum to 25 samples, the global batch is 24: take 1 away" in output
        code, output = heterotrain(tmp_path, "plan", "set", "gated", "a-0=6", "c-0=10/4", "--reason", "slow", real=True)
        assert (code, output) == (0, "plan 2 is in force from round 4\n")
        code, output = heterotrain(tmp_path, "plan", "show", "gated", "--json", real=True)
        state = json.loads(output)
        assert (code, state["phase"], state["plan"]["reason"]) == (0, "PHASE_TRAINING", "slow"), output
        assert [w["share_wanted"] for w in state["workers"]] == [6, 8, 10]
        for epoch in range(2):
            (tmp_path / str(epoch)).touch()
        assert process.wait(SECONDS) == 0, (tmp_path / "output").read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(SECONDS)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [(w["name"], w["share"]) for w in report["workers"]] == [("a-0", 6), ("b-0", 8), ("c-0", 10)]
    in_force = InForce()
    in_force.agreed(4, {"a-0": 6, "c-0": 10})
    check_rounds(*read_sample_logs(logs), epochs=2, in_force=in_force)


def held_in_first_epoch(logs: Mapping[str, Path]) -> bool:
    return all(path.exists() and len(path.read_text().splitlines()) == GATED_ROUND for path in logs.values())


def write_job(folder: Path) -> None:
    document: dict[str, Any] = {
        "apiVersion": "heterotrain.io/v1alpha1",
        "kind": "HeteroTrainJob",
        "metadata": {"name": "gated"},
        "spec": {
            "image": "x",
            "command": ["python", str(SCRIPT)],
            "globalBatchSize": BATCH,
            "adaptation": {"mode": "Off"},
            "parameterServers": {"replicas": 2},
            "workers": [
                {"name": name.removesuffix("-0"), "batch": {"initial": share, "min": 1, "max": BATCH}}
                for name, share in SHARES.items()
            ],
        },
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(document))
