"""``heterotrain list``, ``logs``, ``stop``, ``drain``, ``checkpoint``: jobs of this machine, or of a cluster."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import psutil
import typer
from rich.table import Table

from heterotrain_api.contract import ExitCode
from heterotrain_operator.commands.connect import command, find_job
from heterotrain_operator.commands.errors import CommandError
from heterotrain_operator.commands.place import ContextOption, NamespaceOption, Place, remote
from heterotrain_operator.commands.plan import JobArgument
from heterotrain_operator.local.progress import make_console
from heterotrain_operator.local.registry import LocalJob, Registry, home
from heterotrain_rpc import control_pb2

POLL_SECONDS: Final = 0.2
FinishedJobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Name of a job, running or over.")]


def list_jobs(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    namespace: NamespaceOption = None,
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Also the jobs of all namespaces of a cluster.")
    ] = False,
    context: ContextOption = None,
) -> None:
    """List the jobs of this machine, and those of a cluster if one is named."""
    place = Place(namespace, context)
    if everywhere and namespace is not None:
        raise CommandError("give either --namespace or --all-namespaces", ExitCode.INVALID)
    jobs: list[dict[str, object]] = [job_document(job) for job in Registry(home(os.environ)).jobs()]
    on_cluster = place.given or everywhere
    if on_cluster:
        jobs += remote().documents(place, everywhere=everywhere)
    if as_json:
        typer.echo(json.dumps(jobs, indent=2))
        return
    if not jobs:
        typer.echo("no jobs here nor there" if on_cluster else "no local jobs; `heterotrain run JOB` starts one")
        return
    columns = ("name", "where", "state", "step", "report") if on_cluster else ("name", "state", "pid", "report")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for document in jobs:
        table.add_row(*(str(document.get(column) or "") for column in columns))
    make_console().print(table)


def job_document(job: LocalJob) -> dict[str, object]:
    """Return what ``list --json`` says of a job."""
    entry = job.entry
    return {
        "name": entry.job,
        "where": "local",
        "state": job.state,
        "message": entry.message,
        "uid": entry.uid,
        "pid": entry.pid if job.alive else None,
        "manifest": entry.manifest,
        "report": entry.report,
        "coordinator": entry.coordinator,
        "processes": list(entry.processes),
    }


def logs(
    job: FinishedJobArgument,
    process: Annotated[
        str | None, typer.Argument(metavar="[PROCESS]", help="Name, e.g. cpu-0, ps-0, coordinator; without it: all.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is over.")] = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Print the logs of a job's processes. On a cluster: of the newest pod of each.

    On a cluster it is said (on standard error) what a pod waits for that has not started; the exit code is 1 if there
    was no log at all.
    """
    place = Place(namespace, context)
    if place.given:
        remote().logs(place, job, process, follow=follow)
        return
    found = find_job(job)
    files = {path.stem: path for path in sorted(found.logs.glob("*.log")) if path.is_file()}
    if process is not None:
        if process not in files:
            raise CommandError(f"job {job} has no log of {process}; there are: {', '.join(files) or 'none'}")
        files = {process: files[process]}
    if not files:
        raise CommandError(f"job {job} has no logs in {found.logs}: it is just starting, or the folder was removed")
    offsets = dict.fromkeys(files, 0)
    while True:
        # Asked before the files are read: what is written between the two is still shown.
        alive = find_job(job).alive
        for name, path in files.items():
            offsets[name] = _print_from(path, offsets[name], prefix="" if process else f"{name} | ")
        if not (follow and alive):
            return
        time.sleep(POLL_SECONDS)


def _print_from(path: Path, offset: int, prefix: str) -> int:
    with path.open("rb") as file:
        file.seek(offset)
        content = file.read()
    for line in content.decode(errors="replace").splitlines():
        typer.echo(f"{prefix}{line}")
    return offset + len(content)


def stop(
    job: JobArgument,
    now: Annotated[bool, typer.Option("--now", help="Do not finish the round nor save the model.")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the end of the job.")] = 60.0,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Stop a job: the round is finished and the model so far is saved."""
    place = Place(namespace, context)
    if place.given:
        remote().stop(place, job, now=now, timeout_seconds=timeout)
        return
    found = find_job(job)
    if not found.alive:
        raise CommandError(f"job {job} does not run: it is {found.state}")
    # Asked of the runner, not of the coordinator: the runner ends the processes that do not follow in time.
    with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
        runner = psutil.Process(found.entry.pid)
        runner.terminate()
        if now:
            time.sleep(POLL_SECONDS)
            runner.terminate()
    deadline = time.monotonic() + timeout
    while (found := find_job(job)).alive:
        if time.monotonic() > deadline:
            raise CommandError(f"job {job} was told to stop and still runs after {timeout:g} s; --now stops it at once")
        time.sleep(POLL_SECONDS)
    typer.echo(f"job {job}: {found.state}: {found.entry.message}")


def drain(
    job: JobArgument,
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="Name of a worker, e.g. cpu-0.")],
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the answer.")] = 60.0,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Let one worker finish its round and leave; the others take over its share."""
    place = Place(namespace, context)
    if place.given:
        remote().command(place, job, "drain", worker=worker, timeout_seconds=timeout)
        return
    command(job, control_pb2.CommandRequest(drain=control_pb2.Drain(worker=worker)), timeout)
    typer.echo(f"{worker} leaves after its present round")


def checkpoint(
    job: JobArgument,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait until it is written.")] = 300.0,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Write the whole state of the training now, as a checkpoint, and print its folder.

    Parameters, optimizer, place in the data and plan: `heterotrain run --resume FOLDER` goes on from it, `heterotrain
    export` makes a model of it. Of a job on a cluster it lies below the output volume.
    """
    place = Place(namespace, context)
    if place.given:
        remote().command(place, job, "checkpoint", timeout_seconds=timeout)
        return
    request = control_pb2.CommandRequest(checkpoint=control_pb2.Checkpoint())
    typer.echo(command(job, request, timeout).path)
