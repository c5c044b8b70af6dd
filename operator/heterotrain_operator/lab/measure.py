"""Carries out the lab's runs: starts their workers, waits for the window to pass, reads what they left."""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import yaml

from heterotrain_api.contract import ExitCode
from heterotrain_core.lab.setups import SetUp
from heterotrain_core.lab.task import Kind, ModelName, Task
from heterotrain_core.lab.trace import Trace, Window, common_begin, read_trace
from heterotrain_operator.lab import figures
from heterotrain_operator.lab.document import RunFigures, Speeds
from heterotrain_operator.lab.processes import (
    Program,
    RunFailedError,
    Running,
    finished,
    free_port,
    running,
    wait_until,
)
from heterotrain_operator.lab.variants import Variant, ddp_shares, manifest, proportional_shares
from heterotrain_operator.local.job_folder import REPORT_FILE

START_SECONDS: Final = 180.0
"""Until all workers have done a step."""
END_SECONDS: Final = 60.0
"""For a job to save its model and leave."""
SPEED_SECONDS: Final = 15.0
SINGLE_SECONDS: Final = 5.0
"""Shorter runs go without the speeds of single workers."""
SPEED_WARM_UP_SECONDS: Final = 2.0
ACCURACIES: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """What is the same for all runs."""

    setup: SetUp
    level: int
    batch: int
    seconds: float
    warm_up_seconds: float
    accuracy: bool
    data: Path
    folder: Path
    python: str
    environment: Mapping[str, str]
    cores: float | None = None
    """Level 3: sum of all quotas; `None`: as the set-up has them."""
    groups: tuple[Path, ...] = ()

    @property
    def quotas(self) -> tuple[float, ...]:
        """Level 3: cores, by worker."""
        scale = 1.0 if self.cores is None else self.cores / sum(self.setup.quotas)
        return tuple(quota * scale for quota in self.setup.quotas)

    @property
    def num_workers(self) -> int:
        """Workers of the set-up."""
        return len(self.setup.ratios)

    @property
    def span(self) -> float:
        """Seconds from the common begin to the end of the window."""
        return self.warm_up_seconds + self.seconds

    def nominal(self) -> tuple[float, ...]:
        """Speeds as the set-up has them: samples/s, or cores."""
        return self.setup.speeds if self.level == 2 else self.quotas


def measure_speeds(lab: Lab, seed: int, place: int, *, single: bool) -> Speeds:
    """The workers' speeds without communication: all at once, then each while the others stand still if asked for.

    `place`: runs that were before it in its pass.
    """
    everybody = range(lab.num_workers)
    task = _task(lab, Kind.SOLO, f"speeds-{seed}-{place}", proportional_shares(lab.batch, lab.nominal()), seed)
    with running([_program(lab, task, worker, {}) for worker in everybody]) as workers:
        _await_first_steps(lab, task, workers)
        windows = [_pass_window(task, workers, everybody, SPEED_WARM_UP_SECONDS, min(lab.seconds, SPEED_SECONDS))]
        for worker in everybody if single else ():
            with workers.only(worker):
                windows.append(_pass_window(task, workers, [worker], SPEED_WARM_UP_SECONDS, SINGLE_SECONDS))
    traces = _traces(task, everybody)
    return Speeds(
        together=tuple(figures.throughput([trace], windows[0]) for trace in traces),
        single=tuple(figures.throughput([t], window) for t, window in zip(traces, windows[1:], strict=False)),
    )


def measure_run(lab: Lab, variant: Variant, seed: int, speeds: Sequence[float]) -> RunFigures:
    """One run. `speeds`: measured in the same pass. Raises `RunFailedError`."""
    shares = ddp_shares(variant, lab.batch, speeds)
    task = _task(lab, variant.kind, f"{variant.name}-{seed}", shares, seed, snapshots=lab.accuracy)
    before = _cpu_seconds()
    report = _run_ddp(lab, task) if variant.kind is Kind.DDP else _run_job(lab, variant, task)
    busy = _busy(before, _cpu_seconds())
    traces = _traces(task, range(lab.num_workers))
    begin = common_begin(traces)
    window = Window(begin + lab.warm_up_seconds, begin + lab.span)
    accuracy = _accuracy(lab, task, begin, window.end) if lab.accuracy else []
    # In modes without rounds a plan foretells no round's time.
    rounds = traces[0] if variant.mode == "BSP" else ()
    plans = figures.plans(report.get("adaptation", ()), rounds) if variant.adapted else []
    return RunFigures(
        name=variant.name,
        seed=seed,
        samples_per_second=figures.throughput(traces, window),
        ideal_samples_per_second=figures.possible(lab.setup, speeds, traces, window),
        ideal_within_samples_per_second=figures.ideal_within(lab.quotas, traces, window) if lab.level == 3 else None,
        with_start_samples_per_second=figures.throughput(traces, Window(begin, window.end)),
        real_part=figures.real_part(traces),
        machine_busy=busy,
        shares=tuple(trace[-1].samples for trace in traces),
        cpu_beside_computing=figures.beside_computing(traces),
        throughput=figures.curve(traces, window.end),
        shares_over_time=[figures.shares_over_time(trace, begin, window.end) for trace in traces],
        accuracy=accuracy,
        disturbed=figures.disturbance(lab.setup, traces, window.end),
        plans=plans,
        recoveries=figures.recoveries(lab.setup, traces, sum(speeds), plans),
        seconds_to_target=figures.time_to(accuracy),
        final_accuracy=accuracy[-1][1] if accuracy else None,
    )


def _run_ddp(lab: Lab, task: Task) -> Mapping[str, Any]:
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(lab.num_workers)}
    everybody = range(lab.num_workers)
    programs = [_program(lab, task, worker, {**shared, "RANK": str(worker)}) for worker in everybody]
    with running(programs) as workers:
        _await_first_steps(lab, task, workers)
        _pass_window(task, workers, everybody, lab.warm_up_seconds, lab.seconds)
    return {}


def _run_job(lab: Lab, variant: Variant, task: Task) -> Mapping[str, Any]:
    seconds = math.ceil(lab.span) + 2
    command = [lab.python, "-m", "heterotrain.lab", str(_task_file(task))]
    job = manifest(variant, lab.setup, batch=lab.batch, seed=task.seed, seconds=seconds, command=command)
    path = task.folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    report = task.folder / "report"
    arguments = [lab.python, "-c", "from heterotrain_operator import cli; cli.main()", "run", str(path), "--plain"]
    program = Program(
        [*arguments, "--report", str(report)],
        {**lab.environment, "HETEROTRAIN_HOME": str(task.folder / "home")},
        task.folder / "run.log",
    )
    finished(program, START_SECONDS + seconds + END_SECONDS, good=(ExitCode.SUCCEEDED, ExitCode.STOPPED))
    told: Mapping[str, Any] = json.loads((report / REPORT_FILE).read_text())
    return told


def _await_first_steps(lab: Lab, task: Task, workers: Running) -> None:
    paths = [task.trace(worker) for worker in range(lab.num_workers)]
    wait_until(
        lambda: all(path.exists() and path.stat().st_size > 0 for path in paths),
        workers.check, START_SECONDS, "first steps",
    )  # fmt: skip


def _pass_window(task: Task, workers: Running, active: Sequence[int], warm_up: float, seconds: float) -> Window:
    """Let warm-up and window pass from now on, and the steps of `active` workers that the window ends in."""
    begin = time.monotonic() + warm_up
    window = Window(begin, begin + seconds)
    wait_until(lambda: time.monotonic() > window.end, workers.check, warm_up + seconds + 1, "end of the window")
    wait_until(
        lambda: all(trace[-1].end > window.end for trace in _traces(task, active)),
        workers.check, START_SECONDS, "last steps",
    )  # fmt: skip
    return window


def _task(lab: Lab, kind: Kind, name: str, shares: Sequence[int], seed: int, *, snapshots: bool = False) -> Task:
    folder = lab.folder / "runs" / name
    folder.mkdir(parents=True)
    task = Task(
        kind=kind,
        setup=lab.setup,
        level=lab.level,
        model=ModelName.SMALL if lab.level == 2 else ModelName.LARGE,
        batch=lab.batch,
        shares=tuple(shares),
        seed=seed,
        data=lab.data,
        folder=folder,
        groups=lab.groups,
        snapshot_seconds=lab.span / ACCURACIES if snapshots else 0.0,
    )
    _task_file(task).write_text(task.to_json())
    return task


def _task_file(task: Task) -> Path:
    return task.folder / "task.json"


def _program(lab: Lab, task: Task, worker: int, own: Mapping[str, str]) -> Program:
    arguments = [lab.python, "-m", "heterotrain.lab", str(_task_file(task)), str(worker)]
    return Program(arguments, {**lab.environment, **own}, task.folder / f"worker-{worker}.log")


def _traces(task: Task, workers: Sequence[int]) -> list[Trace]:
    return [read_trace(task.trace(worker).read_text()) for worker in workers]


def _accuracy(lab: Lab, task: Task, begin: float, end: float) -> list[tuple[float, float]]:
    arguments = [lab.python, "-m", "heterotrain.lab", "accuracy", str(_task_file(task))]
    done = subprocess.run(arguments, env=dict(lab.environment), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RunFailedError(f"accuracies could not be measured: {done.stderr[-2000:]}")
    return [(max(0.0, t - begin), accuracy) for t, accuracy in json.loads(done.stdout) if t <= end]


def _cpu_seconds() -> tuple[float, float]:
    times = psutil.cpu_times()
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return total, times.idle + getattr(times, "iowait", 0.0)


def _busy(before: tuple[float, float], after: tuple[float, float]) -> float:
    total, idle = after[0] - before[0], after[1] - before[1]
    return 1 - idle / total if total > 0 else 0.0
