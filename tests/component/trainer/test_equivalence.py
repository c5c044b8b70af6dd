"""A job of unequal workers gives the parameters of the script alone, and the same bits each time it is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from heterotrain_api.contract import Env
from support.real_job import SECONDS, JobResult, RealJob, clean_environment
from support.zygote import Zygote

SCRIPT = Path(__file__).parents[2] / "support" / "scripts" / "train_small.py"
pytestmark = pytest.mark.timeout(240)

SHARES = {"a-0": 5, "b-0": 2, "c-0": 1}


def run_alone(zygote: Zygote, folder: Path, **environment: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    result = folder / "alone.safetensors"
    env = clean_environment() | {"RESULT": str(result), Env.DEVICE: "CPU"} | environment
    script = zygote.start([str(SCRIPT)], env, folder, "alone")
    assert script.wait(SECONDS) == 0, script.stderr.read_text()
    return load_file(result), json.loads(script.stdout.read_text())


def run_job(zygote: Zygote, folder: Path, **environment: str) -> JobResult:
    with RealJob(zygote, folder, SHARES) as job:
        for name in SHARES:
            own = {"RESULT": str(folder / f"{name}.safetensors"), Env.SAMPLE_LOG: str(folder / f"{name}.samples")}
            job.start_worker(name, SCRIPT, own | environment)
        result = job.finish()
    assert result.codes == dict.fromkeys(SHARES, 0), result.errors
    assert result.outcome["state"] == "Succeeded", result.outcome
    return result


def largest_difference(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> float:
    assert got.keys() == want.keys()
    return max(((got[n] - want[n]).norm() / want[n].norm()).item() for n in want)


def samples(folder: Path) -> list[tuple[int, int]]:
    """(epoch, index) of all samples that were committed, sorted."""
    lines = [line.split() for name in SHARES for line in (folder / f"{name}.samples").read_text().splitlines()]
    return sorted((int(epoch), int(i)) for epoch, _, *indices in lines for i in indices)


@pytest.mark.parametrize(
    ("environment", "tolerance"),
    [
        ({"OPTIMIZER": "SGD"}, 1e-12),
        ({"OPTIMIZER": "SGD", "CLIP": "0.5"}, 1e-12),
        ({"OPTIMIZER": "AdamW"}, 1e-9),
    ],
    ids=["SGD with momentum", "SGD with the norm clipped", "AdamW"],
)
def test_a_job_equals_the_script_alone(
    zygote: Zygote, tmp_path: Path, environment: dict[str, str], tolerance: float
) -> None:
    want, printed = run_alone(zygote, tmp_path, **environment)
    job = tmp_path / "job"
    result = run_job(zygote, job, **environment)
    for name in SHARES:
        assert json.loads(result.output[name]) == printed
        assert largest_difference(load_file(job / f"{name}.safetensors"), want) <= tolerance
    assert largest_difference(load_file(result.model), want) <= tolerance
    assert result.outcome["reported"] == {"accuracy": printed["accuracy"][-1]}
    assert samples(job) == [(epoch, i) for epoch in range(2) for i in range(75)]


def test_a_job_run_twice_gives_the_same_bits(zygote: Zygote, tmp_path: Path) -> None:
    first, second = (
        run_job(zygote, tmp_path / f"job-{loaders}", LOADERS=loaders).model.read_bytes() for loaders in ("0", "2")
    )
    assert first == second
