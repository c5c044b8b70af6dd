"""``python -m heterotrain.coordinator`` as a process: what it prints, leaves and exits with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from heterotrain_api.contract import Env, ExitCode, Role
from heterotrain_api.trainer_config import ShardConfig, TrainerConfig, WorkerConfig
from support.credentials import JOB_UID, credentials

COMMAND = [sys.executable, "-m", "heterotrain.coordinator", "--host", "127.0.0.1", "--port", "0"]


def environment(folder: Path) -> dict[str, str]:
    config = TrainerConfig(
        job_name="j",
        job_uid=JOB_UID,
        seed=1,
        global_batch_size=4,
        workers=(WorkerConfig(name="a-0", group="a", share=4, minimum=1, maximum=8),),
        shards=(ShardConfig(control_address="127.0.0.1:9", tensor_address="127.0.0.1:9"),),
    )
    (folder / "config.json").write_text(config.model_dump_json())
    credentials(Role.PS, "ps-0").write(folder / "certificates")
    return {
        **os.environ,
        Env.CONFIG: str(folder / "config.json"),
        Env.CERTIFICATES: str(folder / "certificates"),
        Env.TERMINATION_LOG: str(folder / "outcome.json"),
    }


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end_before_training_it_ends_at_once_as_stopped(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(COMMAND, env=environment(tmp_path), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        process.send_signal(number)
        code = process.wait(30)
    assert ready.startswith("ready control=")
    assert int(ready.split("=")[1]) > 0
    assert code == ExitCode.STOPPED
    assert json.loads((tmp_path / "outcome.json").read_text()) == {
        "state": "Stopped",
        "reason": "Stopped",
        "message": f"the coordinator was told to end ({number.name}), before training began",
        "rounds": 0,
        "samples": 0,
        "reported": {},
        "model": "",
    }


def test_without_a_configuration_it_says_what_is_missing() -> None:
    variables = {k: v for k, v in os.environ.items() if not k.startswith("HETEROTRAIN_")}
    ended = subprocess.run(COMMAND, env=variables, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == ExitCode.INVALID
    assert f"{Env.CONFIG} is not set" in ended.stderr


def test_it_loads_no_torch() -> None:
    code = "import sys, heterotrain.coordinator.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0
