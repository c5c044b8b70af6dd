"""Jobs whose workers are partly on CUDA, for tests on a machine that has an NVIDIA GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file

from heterotrain_api.contract import Env
from heterotrain_rpc.control_pb2 import JobState, WatchRequest
from support.real_job import SECONDS, JobResult, RealJob, clean_environment
from support.watching import control
from support.zygote import Process, Zygote

CUDA: Final = "CUDA"
SCRIPT: Final = Path(__file__).parent / "scripts" / "train_device.py"
SHARES: Final = {"a-0": 9, "b-0": 4, "c-0": 3}
DETERMINISTIC: Final = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""What cuBLAS needs to give the same bits each time."""


class Spawner(Zygote):
    """Starts every process afresh: a process that was forked after CUDA was looked at cannot use it."""

    def __init__(self) -> None:
        self._started: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, argv: Sequence[str], environment: Mapping[str, str], folder: Path, name: str) -> Process:
        """As the zygote does."""
        out, err = folder / f"{name}.out", folder / f"{name}.err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen([sys.executable, *argv], env=environment, stdout=stdout, stderr=stderr)
        self._started[process.pid] = process
        return Process(self, process.pid, out, err)

    def ask(self, order: Any) -> Any:
        """Answer whether a process has ended."""
        return self._started[order["poll"]].poll()

    def close(self) -> None:
        """Nothing runs any more: jobs end what they started."""


@dataclass(frozen=True)
class Trained:
    """A job's end: result, last state, the model of every worker, what each printed last."""

    result: JobResult
    state: JobState
    models: dict[str, dict[str, torch.Tensor]]
    printed: dict[str, Any]

    @property
    def model(self) -> dict[str, torch.Tensor]:
        """As the parameter servers wrote it."""
        return load_file(self.result.model)


def run_alone(spawner: Spawner, folder: Path, device: str, **options: str) -> dict[str, torch.Tensor]:
    """The script without a job; its model."""
    folder.mkdir(exist_ok=True)
    result = folder / "alone.safetensors"
    environment = clean_environment() | DETERMINISTIC | {"RESULT": str(result), Env.DEVICE: device} | options
    script = spawner.start([str(SCRIPT)], environment, folder, "alone")
    assert script.wait(SECONDS) == 0, script.stderr.read_text()
    return load_file(result)


def run_job(
    spawner: Spawner, folder: Path, on_cuda: Sequence[str] = ("a-0",), *, own: Mapping[str, str] | None = None,
    **options: str,
) -> Trained:  # fmt: skip
    """A job of two shards and the workers of `SHARES`; `own` options are those of the workers on CUDA alone."""
    result, state = _finished(spawner, folder, on_cuda, own or {}, options)
    assert result.codes == dict.fromkeys(SHARES, 0), result.errors
    assert result.outcome["state"] == "Succeeded", result.outcome
    models = {name: load_file(folder / f"{name}.safetensors") for name in SHARES}
    return Trained(result, state, models, {n: json.loads(t.splitlines()[-1]) for n, t in result.output.items()})


def run_failing(spawner: Spawner, folder: Path, **own: str) -> JobResult:
    """A job whose worker a-0 is on CUDA and has options of its own, by which it fails."""
    return _finished(spawner, folder, ("a-0",), own, {})[0]


def _finished(
    spawner: Spawner, folder: Path, on_cuda: Sequence[str], own: Mapping[str, str], options: Mapping[str, str]
) -> tuple[JobResult, JobState]:
    with RealJob(spawner, folder, SHARES) as job, control(job.address) as stub:
        states = stub.Watch(WatchRequest(), timeout=4 * SECONDS)
        for name in SHARES:
            cuda = {Env.DEVICE: CUDA, **own} if name in on_cuda else {}
            environment = {"RESULT": str(folder / f"{name}.safetensors"), **options, **cuda, **DETERMINISTIC}
            job.start_worker(name, SCRIPT, environment)
        *_, last = states
        return job.finish(), last


def largest_difference(got: Mapping[str, torch.Tensor], want: Mapping[str, torch.Tensor]) -> float:
    """Largest relative difference of a tensor, by norms in float64."""
    assert got.keys() == want.keys()
    return max(((got[n].double() - want[n].double()).norm() / want[n].double().norm()).item() for n in want)
