"""However a worker's script ends, the others learn it, exit with the code for it, and say why on their last line."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from heterotrain_api.contract import ExitCode
from support.real_job import SECONDS, RealJob
from support.watching import control, state_now, state_when
from support.zygote import Zygote, until

pytestmark = pytest.mark.timeout(240)

SCRIPT = Path(__file__).parents[2] / "support" / "scripts" / "train_faulty.py"


def last_line(text: str) -> str:
    # A library that PyTorch loads complains about objects of its own at the end of a forked interpreter.
    return text.partition("nanobind: leaked")[0].splitlines()[-1]


@pytest.mark.parametrize(
    ("fault", "code", "why"),
    [
        ("raise", 1, "ValueError: no such column"),
        ("exit", 3, r"the script called sys.exit\(3\)"),
        ("kill", -9, "connection"),
        ("wrong call", 1, r"optimizer.step\(\) must follow a batch"),
    ],
)
def test_a_script_that_fails_ends_the_job(zygote: Zygote, tmp_path: Path, fault: str, code: int, why: str) -> None:
    with RealJob(zygote, tmp_path / "job", {"a-0": 5, "b-0": 3}, num_shards=1) as job:
        for name in job.shares:
            job.start_worker(name, SCRIPT, {"FAULT": fault, "FAULTY": "b-0"})
        result = job.finish()
    assert result.codes == {"a-0": ExitCode.PEER_LOST, "b-0": code}
    assert result.outcome["state"] == "Failed"
    assert "b-0" in result.outcome["message"]
    assert re.search(why, result.outcome["message"])
    last = last_line(result.errors["a-0"])
    assert last.startswith("heterotrain: worker a-0 ends: the coordinator ended the session: ")
    assert re.search(why, last)


def test_a_script_that_leaves_in_good_order_is_not_missed(zygote: Zygote, tmp_path: Path) -> None:
    with RealJob(zygote, tmp_path / "job", {"a-0": 5, "b-0": 3}, num_shards=1) as job:
        other = job.start_worker("a-0", SCRIPT, {"FAULT": "leave", "FAULTY": "b-0"})
        leaving = job.start_worker("b-0", SCRIPT, {"FAULT": "leave", "FAULTY": "b-0"})
        assert leaving.wait(SECONDS) == 0
        log = job.coordinator.stderr
        until(lambda: "PlanDerived: plan 2" in log.read_text() or None, SECONDS, log.read_text)
        with control(job.address) as stub:
            left_at = state_now(stub).version
            state_when(stub, lambda s: s.version > left_at + 5)
        assert other.poll() is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "told to end"])
def test_a_lost_shard_ends_the_workers_and_is_to_blame(zygote: Zygote, tmp_path: Path, number: signal.Signals) -> None:
    with RealJob(zygote, tmp_path / "job", {"a-0": 5, "b-0": 3}) as job:
        for name in job.shares:
            job.start_worker(name, SCRIPT, {"FAULT": "", "FAULTY": ""})
        wait_for_training(job)
        job.shards[1].kill(number)
        result = job.finish()
    assert result.codes == dict.fromkeys(job.shares, ExitCode.PEER_LOST)
    assert result.outcome["state"] == "Failed"
    assert result.outcome["reason"] == "ShardFailed"
    assert "ps-1" in result.outcome["message"]


def wait_for_training(job: RealJob) -> None:
    log = job.coordinator.stderr
    until(lambda: "Started" in log.read_text() or None, SECONDS, log.read_text)
