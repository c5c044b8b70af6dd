"""``heterotrain run`` and ``heterotrain validate``."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from heterotrain_api.contract import ExitCode
from heterotrain_api.v1alpha1 import HeteroTrainJobSpec
from heterotrain_operator.commands.errors import CommandError
from heterotrain_operator.job.last_words import last_words
from heterotrain_operator.job.outcome import State
from heterotrain_operator.job.trainer_config import backoff_limit, rejoin_limit, worker_configs, worker_slots
from heterotrain_operator.local.decide import Limits
from heterotrain_operator.local.job_folder import JobFolder
from heterotrain_operator.local.manifest import LoadedJob, ManifestError, load_job, without_meaning_here
from heterotrain_operator.local.packages import missing_for_training
from heterotrain_operator.local.process_plan import ProcessPlan
from heterotrain_operator.local.progress import Display, Style, make_console, make_display
from heterotrain_operator.local.registry import HomeError, JobRunningError, Registry, home
from heterotrain_operator.local.report import summary_lines
from heterotrain_operator.local.runner import Result, run_job
from heterotrain_operator.local.speeds import SpeedsError, parse_speeds, stretches
from heterotrain_operator.local.supervisor import LOG_TAIL_BYTES, read_tail

MAX_PORT: Final = 65535
ManifestArgument = Annotated[Path, typer.Argument(metavar="JOB", help="File with one HeteroTrainJob.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change a field of the manifest, e.g. spec.seed=9 or spec.workers.cpu.replicas=3; may be repeated.",
    ),
]


def run(  # noqa: PLR0917  # a command: its options are given by name
    manifest: ManifestArgument,
    report: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for model, figures and logs.  [default: heterotrain-report/<name>]"),
    ] = None,
    speeds: Annotated[
        str | None,
        typer.Option(
            metavar="A:B:…",
            help="Make the workers unequal: relative speeds in the order of the manifest, e.g. 4:3:2:1.",
        ),
    ] = None,
    overrides: SetOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show nothing but failures.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Show lines instead of a live table.")] = False,
    startup_seconds: Annotated[
        float, typer.Option(min=1, help="How long the workers may take until training begins.")
    ] = Limits().startup_seconds,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Begin from a checkpoint: its folder (version-…), or a folder of some (then the newest good one).",
        ),
    ] = None,
    log_samples: Annotated[
        bool, typer.Option("--log-samples", help="Write the samples of every round to logs/<worker>.samples.")
    ] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Write logs/recording.jsonl, which `heterotrain simulate --replay` takes.")
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=1024,
            max=65535,
            metavar="N",
            help="Serve /metrics for Prometheus on 127.0.0.1: the coordinator at N, servers and workers after it.",
        ),
    ] = None,
) -> None:
    """Run a job on this machine.

    Exit code: 0 the job succeeded, 1 it failed, 2 the manifest or an option is wrong, 3 it was stopped (the model so
    far is saved).
    """
    loaded = _load(manifest, overrides or [])
    missing = missing_for_training()
    if missing is not None:
        raise CommandError(missing)
    registry = Registry(home(os.environ))
    name = loaded.job.metadata.name
    spec = loaded.job.spec
    report_folder = (report or Path("heterotrain-report") / name).absolute()
    try:
        with registry.claim(name) as root:
            plan = ProcessPlan(
                job=loaded.job,
                uid=str(uuid.uuid4()),
                folder=JobFolder(root, report_folder),
                source=manifest.absolute().parent,
                python=sys.executable,
                environment=dict(os.environ),
                stretches=_stretches(speeds, spec),
                log_samples=log_samples,
                record=record,
                resume=_resume(resume),
                metrics_port=metrics_port,
            )
            _check_metrics_ports(plan)
            console = make_console()
            display = make_display(_style(console, quiet=quiet, plain=plain), console)
            for line in opening_lines(plan):
                display.say(line)
            _prepare(plan, loaded)
            limits = Limits(startup_seconds=startup_seconds, restarts=backoff_limit(spec), rejoins=rejoin_limit(spec))
            result = run_job(plan, manifest.absolute(), registry=registry, display=display, limits=limits)
    except (JobRunningError, HomeError, SpeedsError) as error:
        raise CommandError(str(error), ExitCode.INVALID) from None
    _close(result, report_folder, display)
    raise typer.Exit(result.state.exit_code)


def validate(manifest: ManifestArgument, overrides: SetOption = None) -> None:
    """Check a manifest without running it: one line per fault, `field: message`; exit code 1 if there is one."""
    try:
        load_job(manifest, overrides or [])
    except ManifestError as error:
        for fault in error.faults:
            typer.echo(str(fault))
        raise typer.Exit(ExitCode.FAILED) from None
    typer.echo(f"{manifest}: valid")


def opening_lines(plan: ProcessPlan) -> list[str]:
    """Return what is said before the first process starts."""
    spec = plan.job.spec
    shares = " ".join(f"{worker.name}={worker.share}" for worker in worker_configs(spec))
    parts = f"{counted(plan.num_shards, 'parameter server')}, {counted(len(plan.slots), 'worker')}"
    lines = [
        f"{plan.job.metadata.name}: {parts}, global batch {spec.global_batch_size}: {shares}",
        f"without meaning on one machine: {', '.join(without_meaning_here(spec))}",
    ]
    if plan.stretches:
        paces = " ".join(f"{name}={stretch:.2f}" for name, stretch in plan.stretches.items())
        lines.append(f"compute time is stretched, times CPU time: {paces}")
    if plan.metrics_ports:
        lines.append("/metrics at ports: " + " ".join(f"{name}={port}" for name, port in plan.metrics_ports.items()))
    lines.append(f"report and logs: {plan.folder.report}")
    return lines


def counted(count: int, thing: str) -> str:
    """Return ``1 worker``, ``2 workers``."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _check_metrics_ports(plan: ProcessPlan) -> None:
    last = max(plan.metrics_ports.values(), default=0)
    if last > MAX_PORT:
        most = MAX_PORT + 1 - len(plan.metrics_ports)
        raise CommandError(f"--metrics-port must be at most {most} for this job's processes", ExitCode.INVALID)


def _resume(folder: Path | None) -> Path | None:
    if folder is None:
        return None
    if not folder.is_dir():
        raise CommandError(f"--resume {folder}: there is no such folder", ExitCode.INVALID)
    return folder.absolute()


def _load(manifest: Path, overrides: Sequence[str]) -> LoadedJob:
    try:
        return load_job(manifest, overrides)
    except ManifestError as error:
        raise CommandError("\n".join(map(str, error.faults)), ExitCode.INVALID) from None


def _prepare(plan: ProcessPlan, loaded: LoadedJob) -> None:
    try:
        plan.folder.prepare(loaded.document)
    except OSError as error:
        raise CommandError(
            f"--report {plan.folder.report}: cannot be written to: {error.strerror}", ExitCode.INVALID
        ) from None


def _stretches(speeds: str | None, spec: HeteroTrainJobSpec) -> Mapping[str, float]:
    if speeds is None:
        return {}
    names = [slot.name for slot in worker_slots(spec)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return dict(zip(names, stretches(parse_speeds(speeds, names), cores), strict=True))


def _style(console: Console, *, quiet: bool, plain: bool) -> Style:
    if quiet:
        return Style.QUIET
    return Style.LIVE if console.is_terminal and not plain else Style.PLAIN


def _close(result: Result, report: Path, display: Display) -> None:
    if result.state is State.FAILED:
        lines = [f"Job failed: {result.message}"]
        if result.log is not None:
            words = last_words(read_tail(result.log, LOG_TAIL_BYTES))
            if words and words not in result.message and result.message not in words:
                lines.append(f"last line: {words}")
            lines.append(f"log: {result.log}")
        typer.echo("\n".join([*lines, f"report: {report}"]), err=True)
        return
    ended = "succeeded" if result.state is State.SUCCEEDED else "stopped"
    for line in [f"Job {ended}: {result.message}", *summary_lines(result.report), f"report: {report}"]:
        display.say(line)
