"""Commands for a job on a cluster (`heterotrain_operator.commands.place`).

Imported only when a cluster is named: it needs the Kubernetes client, which the base installation does not have.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import typer
from kubernetes.aio.config import ConfigException

from heterotrain_api.contract import Annotation, ExitCode
from heterotrain_operator.cluster import show as words
from heterotrain_operator.cluster.asking import Answered, AskingError, Wish, ask, ending_message, state_of, until_over
from heterotrain_operator.cluster.door import UserKube, api_words, connect_user, own_namespace
from heterotrain_operator.cluster.logs import print_logs
from heterotrain_operator.commands.errors import CommandError
from heterotrain_operator.commands.explain import print_chain
from heterotrain_operator.commands.place import Place
from heterotrain_operator.errors import ApiError, ApiUnreachableError
from heterotrain_operator.explain import records_of
from heterotrain_operator.job.requests import command_request, plan_request
from heterotrain_operator.local.progress import make_console
from heterotrain_rpc import control_pb2

T = TypeVar("T")


def show(place: Place, name: str, *, as_json: bool) -> None:
    """``plan show``."""
    job = _read(place, name)
    if as_json:
        typer.echo(json.dumps(job.get("status") or {}, indent=2))
        return
    status = words.status_of(job)
    console = make_console()
    console.print(words.headline(status), soft_wrap=True)
    console.print(words.worker_table(status))
    console.print(words.plan_line(status), soft_wrap=True)


def set_plan(
    place: Place, name: str, shares: Sequence[control_pb2.PlanShare], *, reason: str, timeout_seconds: float
) -> None:
    """``plan set``: prints the verdict; raises `CommandError` if it was refused or did not come."""
    request_id = _new_id()
    samples = {share.worker: share.samples for share in shares}
    micro_batches = {share.worker: share.micro_batch for share in shares if share.HasField("micro_batch")}
    text = plan_request(request_id, samples, reason=reason, micro_batches=micro_batches)
    answer, _ = _ask(place, name, Wish(Annotation.PLAN_REQUEST, request_id, text), timeout_seconds)
    if not answer.accepted:
        raise CommandError(f"the plan was refused; nothing changed\n{answer.message}")
    typer.echo(answer.message)


def explain(place: Place, name: str, generation: int | None, *, as_json: bool) -> None:
    """``explain``: from what the job's status keeps of the decisions."""
    print_chain(records_of(words.status_of(_read(place, name))), generation, as_json=as_json)


def show_sync(place: Place, name: str, *, as_json: bool) -> None:
    """``sync show``."""
    job = _read(place, name)
    if as_json:
        typer.echo(json.dumps((job.get("status") or {}).get("synchronization") or {}, indent=2))
        return
    for line in words.synchronization_lines(words.status_of(job).synchronization):
        typer.echo(line)


def set_sync(place: Place, name: str, change: Mapping[str, Any], *, reason: str, timeout_seconds: float) -> None:
    """``sync set``: prints the verdict; raises `CommandError` if it was refused or did not come."""
    request_id = _new_id()
    text = plan_request(request_id, reason=reason, synchronization=change)
    answer, _ = _ask(place, name, Wish(Annotation.PLAN_REQUEST, request_id, text), timeout_seconds)
    if not answer.accepted:
        raise CommandError(f"the change was refused; nothing changed\n{answer.message}")
    typer.echo(answer.message)


def command(place: Place, name: str, word: str, *, worker: str = "", timeout_seconds: float) -> None:
    """``drain`` and ``checkpoint``: prints what was done."""
    request_id = _new_id()
    text = command_request(request_id, word, worker=worker)
    answer, _ = _ask(place, name, Wish(Annotation.COMMAND, request_id, text), timeout_seconds)
    _must_be_accepted(answer)
    typer.echo(answer.message)


def scale(place: Place, name: str, replicas: Mapping[str, int]) -> None:
    """``scale``: edits the job's spec."""

    async def work() -> None:
        async with _job(place, name) as (kube, job):
            try:
                workers = scaled_workers(job["spec"]["workers"], replicas)
            except ValueError as error:
                raise CommandError(str(error)) from None
            await kube.change_workers(job["metadata"], workers)

    _run(work())
    for group, count in replicas.items():
        typer.echo(f"spec.workers: group {group} shall have {count} workers; see `heterotrain plan show {name}`")


def scaled_workers(workers: Sequence[Mapping[str, Any]], replicas: Mapping[str, int]) -> list[dict[str, Any]]:
    """``spec.workers`` with other numbers; raises `ValueError` that lists the groups for one that is unknown."""
    names = [str(group["name"]) for group in workers]
    for group in replicas:
        if group not in names:
            raise ValueError(f"no group is named {group}; there are: {', '.join(names)}")
    return [{**group, "replicas": replicas.get(group["name"], group.get("replicas", 1))} for group in workers]


def stop(place: Place, name: str, *, now: bool, timeout_seconds: float) -> None:
    """``stop``: returns when the job is over."""
    if now:
        message = f"--now is for local jobs; to end a job on a cluster at once: kubectl delete htj {name}"
        raise CommandError(message, ExitCode.INVALID)
    request_id, deadline = _new_id(), time.monotonic() + timeout_seconds
    text = command_request(request_id, "stop", reason="stopped by the user")
    answer, meta = _ask(place, name, Wish(Annotation.COMMAND, request_id, text), timeout_seconds)
    _must_be_accepted(answer)

    async def work() -> Mapping[str, Any] | None:
        async with _door(place) as (kube, _):
            return await until_over(kube, meta["namespace"], name, meta["uid"], deadline)

    job = _run(work())
    if job is None:
        typer.echo(f"job {name}: deleted")
        return
    typer.echo(f"job {name}: {state_of(job)}: {ending_message(job)}")


def logs(place: Place, name: str, process: str | None, *, follow: bool) -> None:
    """``logs``. What a process waits for that has no log yet goes to standard error."""

    async def work() -> None:
        async with _job(place, name) as (kube, job):
            await print_logs(kube, job, process, typer.echo, partial(typer.echo, err=True), follow=follow)

    _run(work())


def documents(place: Place, *, everywhere: bool) -> list[dict[str, Any]]:
    """What ``list`` says of the jobs of a namespace, or of all."""

    async def work() -> list[dict[str, Any]]:
        async with _door(place) as (kube, namespace):
            return [words.job_document(job) for job in await kube.list_jobs(None if everywhere else namespace)]

    return _run(work())


def _must_be_accepted(answer: Answered) -> None:
    if not answer.accepted:
        raise CommandError(f"refused: {answer.message}")


def _new_id() -> str:
    return f"cli-{uuid.uuid4().hex[:16]}"


def _read(place: Place, name: str) -> Mapping[str, Any]:
    """The job as it is now."""

    async def work() -> Mapping[str, Any]:
        async with _job(place, name) as (_, job):
            return job

    return _run(work())


def _ask(place: Place, name: str, wish: Wish, timeout_seconds: float) -> tuple[Answered, Mapping[str, Any]]:
    """The answer, and the job's metadata."""

    async def work() -> tuple[Answered, Mapping[str, Any]]:
        async with _job(place, name) as (kube, job):
            return await ask(kube, job, wish, timeout_seconds), job["metadata"]

    return _run(work())


@asynccontextmanager
async def _door(place: Place) -> AsyncIterator[tuple[UserKube, str]]:
    """The door, and the namespace that is meant."""
    async with connect_user(place.context) as kube:
        yield kube, place.namespace or own_namespace(place.context)


@asynccontextmanager
async def _job(place: Place, name: str) -> AsyncIterator[tuple[UserKube, Mapping[str, Any]]]:
    async with _door(place) as (kube, namespace):
        job = await kube.get_job(namespace, name)
        if job is None:
            names = ", ".join(sorted(other["metadata"]["name"] for other in await kube.list_jobs(namespace)))
            there = f"there are: {names}" if names else "there are none"
            raise CommandError(f"no job is named {name} in namespace {namespace}; {there}")
        yield kube, job


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; whatever the cluster cannot do comes out as `CommandError`."""
    try:
        return asyncio.run(work)
    except AskingError as error:
        raise CommandError(str(error)) from None
    except ApiError as error:
        raise CommandError(api_words(error)) from None
    except ApiUnreachableError as error:
        raise CommandError(f"the cluster does not answer: {error}") from None
    except ConfigException as error:
        message = f"no cluster is configured: {error}; name a kubeconfig in KUBECONFIG, and a --context that it has"
        raise CommandError(message, ExitCode.INVALID) from None
