"""The coordinator answers within a second whatever shard 0 is doing; `bench/busy_shard.py` does it with gigabytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterotrain_rpc.control_pb2 import PHASE_TRAINING, CommandRequest, Drain, Plan, PlanShare, PlanVerdict
from support.real_job import SECONDS, RealJob
from support.watching import control, state_now
from support.zygote import Zygote, until

pytestmark = pytest.mark.timeout(240)

SCRIPTS = Path(__file__).parents[2] / "support" / "scripts"
SHARES = {"a-0": 5, "b-0": 3}
HELD_VERSION = 3
ANSWER_SECONDS = 1.0
"""The calls' deadline: a later answer is an error."""


def test_the_coordinator_answers_while_shard_0_is_in_an_update(
    zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLD", str(tmp_path))
    monkeypatch.setenv("HELD_VERSION", str(HELD_VERSION))
    program = (str(SCRIPTS / "held_shard.py"),)
    with (
        RealJob(zygote, tmp_path / "job", SHARES, shard_program=program) as job,
        control(job.address) as stub,
    ):
        for name in SHARES:
            job.start_worker(name, SCRIPTS / "train_small.py", {"RESULT": str(tmp_path / f"{name}.safetensors")})
        until(lambda: (tmp_path / "holding").exists() or None, SECONDS, job.coordinator.stderr.read_text)
        states = [state_now(stub, ANSWER_SECONDS) for _ in range(5)]
        assert {(s.phase, s.version) for s in states} == {(PHASE_TRAINING, HELD_VERSION)}
        # Rounds 4 and 5 are granted already. Workers agree on a plan without the shards.
        plan = Plan(shares=[PlanShare(worker="a-0", samples=2), PlanShare(worker="b-0", samples=6)])
        verdict = stub.Apply(plan, timeout=ANSWER_SECONDS)
        assert verdict == PlanVerdict(accepted=True, generation=2, effective_round=HELD_VERSION + 3)
        reply = stub.Command(CommandRequest(drain=Drain(worker="c-0")), timeout=ANSWER_SECONDS)
        assert not reply.accepted
        assert state_now(stub, ANSWER_SECONDS).version == HELD_VERSION
        (tmp_path / "release").touch()
        result = job.finish()
    assert result.codes == dict.fromkeys(SHARES, 0), result.errors
    assert result.outcome["state"] == "Succeeded"
