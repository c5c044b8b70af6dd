"""What can go wrong on a GPU, and what the job says then."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from support.gpu import CUDA, SCRIPT, Spawner, run_failing
from support.local_jobs import heterotrain

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"FAULT": "out of memory"}, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"),
        ({"FAULT": "bad label"}, "CUDA error: device-side assert triggered"),
    ],
    ids=["it runs out of memory", "a kernel fails"],
)
def test_a_worker_that_its_gpu_fails_ends_the_job_with_the_reason(
    spawner: Spawner, tmp_path: Path, own: dict[str, str], words: str
) -> None:
    result = run_failing(spawner, tmp_path / "job", **own)
    assert (result.codes["a-0"], result.outcome["state"]) == (1, "Failed"), result.errors
    message = result.outcome["message"]
    assert "a-0" in message, message
    assert words in message, message
    assert "\n" not in message


def write_job(folder: Path, env: dict[str, str]) -> Path:
    document = {
        "apiVersion": "heterotrain.io/v1alpha1",
        "kind": "HeteroTrainJob",
        "metadata": {"name": "unlike"},
        "spec": {
            "image": "x",
            "command": ["python", str(SCRIPT)],
            "globalBatchSize": 16,
            "seed": 7,
            "env": [{"name": "RESULT", "value": str(folder / "result")}],
            "workers": [
                {
                    "name": "gpu",
                    "device": CUDA,
                    "batch": {"initial": 12},
                    "env": [{"name": name, "value": value} for name, value in env.items()],
                },
                {"name": "cpu"},
            ],
        },
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"CUDA_VISIBLE_DEVICES": "7"}, "HETEROTRAIN_DEVICE is CUDA, but PyTorch finds no usable CUDA device among"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "HETEROTRAIN_DEVICE is CUDA, but PyTorch finds no usable CUDA device among"),
        ({"FAULT": "out of memory"}, "worker gpu-0 exited with code 1: torch.OutOfMemoryError: CUDA out of memory."),
    ],
    ids=["a device that is not there", "no device may be seen", "it runs out of memory"],
)
def test_the_runner_names_the_worker_and_the_reason(tmp_path: Path, env: dict[str, str], words: str) -> None:
    env |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    code, output = heterotrain(tmp_path, "run", str(write_job(tmp_path, env)), "--report", "out", real=True)
    assert code == 1, output
    failure = next(line for line in output.splitlines() if line.startswith("Job failed: worker gpu-0 "))
    assert words in failure, output
