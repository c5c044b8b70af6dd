"""Every mode of synchronisation with real processes of unequal speed, and changes of mode while a job runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from heterotrain_api.contract import Env
from heterotrain_api.trainer_config import SynchronizationConfig
from heterotrain_rpc.control_pb2 import JobState, Plan, Synchronization
from support.real_job import SECONDS, JobResult, RealJob
from support.watching import control, read_sample_logs, state_when
from support.zygote import Zygote

pytestmark = pytest.mark.timeout(240)

SCRIPT = Path(__file__).parents[2] / "support" / "scripts" / "train_unequal.py"
SHARES = {"a-0": 4, "b-0": 4, "c-0": 4, "d-0": 4}
STEPS = {"a-0": 0.01, "b-0": 0.01, "c-0": 0.01, "d-0": 0.05}
SAMPLES, BATCH = 150, 16
MODES: dict[str, dict[str, Any]] = {
    "BSP": {"mode": "BSP"},
    "ASP": {"mode": "ASP", "delay_compensation": 0.05},
    "SSP": {"mode": "SSP", "staleness_bound": 1},
    "DSSP": {"mode": "DSSP", "dssp_lower": 1, "dssp_range": 2},
    "Delay": {"mode": "Delay", "staleness_bound": 3, "delay_window_seconds": 0.005, "delay_compensation": 0.05},
    "Delay without a window": {"mode": "Delay", "staleness_bound": None, "delay_window_seconds": None},
    "Backup": {"mode": "Backup", "backup_workers": 1},
}


def start_workers(job: RealJob, epochs: int, logs: Mapping[str, Path]) -> None:
    for name, seconds in STEPS.items():
        own = {"EPOCHS": str(epochs), "SECONDS": str(seconds), Env.SAMPLE_LOG: str(logs[name])}
        job.start_worker(name, SCRIPT, own)


def check(result: JobResult, logs: Mapping[str, Path], *, epochs: int) -> None:
    assert result.codes == dict.fromkeys(SHARES, 0), result.errors
    assert (result.outcome["state"], result.outcome["samples"]) == ("Succeeded", epochs * SAMPLES)
    _, seen = read_sample_logs(logs)
    assert seen == [(epoch, index) for epoch in range(epochs) for index in range(SAMPLES)]
    said = [json.loads(text.splitlines()[-1]) for text in result.output.values()]
    assert {s["version"] for s in said} == {result.outcome["rounds"]}
    assert len({tuple(s["accuracy"]) for s in said}) == 1, "an evaluation has one result"
    model = load_file(result.model)
    assert 0 < int(model["1.count"]) <= result.outcome["rounds"]


@pytest.mark.parametrize("settings", MODES.values(), ids=MODES)
def test_a_job_of_unequal_workers(zygote: Zygote, tmp_path: Path, settings: dict[str, Any]) -> None:
    logs = {name: tmp_path / f"{name}.samples" for name in SHARES}
    wanted = SynchronizationConfig.model_validate(settings)
    with RealJob(zygote, tmp_path / "job", SHARES, synchronization=wanted) as job, control(job.address) as stub:
        start_workers(job, 2, logs)
        seen = state_when(stub, lambda s: s.samples > SAMPLES).synchronization
        result = job.finish()
    check(result, logs, epochs=2)
    assert seen.mode == settings["mode"]
    lockstep = wanted.mode in {"BSP", "Backup"} or wanted.delay_window_seconds is None
    assert (seen.largest_staleness == 0) == lockstep, seen
    if wanted.mode == "Delay" and wanted.staleness_bound is not None:
        assert seen.largest_staleness <= seen.bound_in_force == wanted.staleness_bound


@pytest.mark.parametrize(
    "settings",
    [{"delay_window_seconds": None, "staleness_bound": 3}, {"delay_window_seconds": 0.005, "staleness_bound": 0}],
    ids=["no window", "bound 0"],
)
def test_delay_that_waits_for_everybody_is_bsp_bit_for_bit(
    zygote: Zygote, tmp_path: Path, settings: dict[str, Any]
) -> None:
    models = []
    for name, wanted in {"bsp": {"mode": "BSP"}, "delay": {"mode": "Delay", **settings}}.items():
        logs = {worker: tmp_path / f"{name}-{worker}.samples" for worker in SHARES}
        configured = SynchronizationConfig.model_validate(wanted)
        with RealJob(zygote, tmp_path / name, SHARES, synchronization=configured) as job:
            start_workers(job, 2, logs)
            result = job.finish()
        check(result, logs, epochs=2)
        models.append({name: tensor.tolist() for name, tensor in load_file(result.model).items()})
    assert models[0] == models[1]


CHANGES: list[Synchronization] = [
    Synchronization(mode="Delay", staleness_bound=8, delay_window_seconds=0.0),
    Synchronization(mode="Delay", staleness_bound=1, delay_window_seconds=0.005),
    Synchronization(mode="ASP"),
    Synchronization(mode="SSP", staleness_bound=2),
    Synchronization(mode="Backup", backup_workers=1),
    Synchronization(mode="DSSP", dssp_lower=1, dssp_range=3),
    Synchronization(mode="BSP"),
]


def in_force(wanted: Synchronization, before: int, state: JobState) -> bool:
    """And rounds were made since."""
    now = state.synchronization
    bound = wanted.staleness_bound if wanted.HasField("staleness_bound") else now.bound_in_force
    return now.wanted.mode == now.mode == wanted.mode and now.bound_in_force == bound and state.version > before


def test_the_mode_changes_while_the_job_runs(zygote: Zygote, tmp_path: Path) -> None:
    epochs = 12
    logs = {name: tmp_path / f"{name}.samples" for name in SHARES}
    with RealJob(zygote, tmp_path / "job", SHARES) as job, control(job.address) as stub:
        start_workers(job, epochs, logs)
        for change in CHANGES:
            begun = state_when(stub, lambda s: s.version > 0).version
            verdict = stub.Apply(Plan(synchronization=change, reason="test"), timeout=SECONDS)
            assert verdict.accepted, verdict
            state = state_when(stub, partial(in_force, change, begun))
            assert state.plan.generation == verdict.generation
        refused = stub.Apply(Plan(synchronization=Synchronization(mode="Backup", backup_workers=4)), timeout=SECONDS)
        assert [r.reason for r in refused.refusals] == ["4 backup workers of 4 leave nobody to wait for: give fewer"]
        unknown = stub.Apply(Plan(synchronization=Synchronization(mode="Telepathy")), timeout=SECONDS)
        assert "mode must be one of BSP, ASP" in unknown.refusals[0].reason
        result = job.finish()
    check(result, logs, epochs=epochs)
