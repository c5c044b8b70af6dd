"""A real job's recording, told again by ``heterotrain simulate --replay``: the same rounds, samples and staleness."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.recovery import run_job, write_job
from support.zygote import Zygote

pytestmark = pytest.mark.timeout(300)

SIMULATE = "import sys; from heterotrain_operator import cli; cli.main(['simulate', *sys.argv[1:], '--json'])"


def simulate(*options: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", SIMULATE, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_a_recorded_job_is_told_again_and_simulated_in_another_mode(tmp_path: Path, zygote: Zygote) -> None:
    write_job(tmp_path, synchronization={"mode": "SSP", "stalenessBound": 2})
    run = run_job(tmp_path, "--record", zygote=zygote)
    assert run.code == 0, run.output
    report, again = run.report, simulate("--replay", str(tmp_path / "out"))
    assert (again["mode"], again["rounds"], again["samples"]) == ("replay of SSP", report["rounds"], report["samples"])
    assert again["staleness_histogram"] == report["synchronization"]["staleness_histogram"]
    assert again["end_reason"] == "all epochs are over"
    assert {w["name"]: w["iterations"] for w in again["workers"]} == {w["name"]: w["rounds"] for w in report["workers"]}
    assert again["seconds"] <= report["training_seconds"] + 1.0
    other = simulate("--replay", str(tmp_path / "out"), "--mode", "BSP")
    assert (other["samples"], other["largest_staleness"]) == (report["samples"], 0)
