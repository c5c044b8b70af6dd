"""A request as an annotation of the job, and the wait for its answer in the status."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from heterotrain_api.conditions import ConditionType
from heterotrain_api.contract import Annotation
from heterotrain_operator.cluster.door import UserKube
from heterotrain_operator.errors import ApiUnreachableError

POLL_SECONDS: Final = 0.5


class AskingError(Exception):
    """Nothing came of the request; the text says why, for the user."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A request to write: `text` under `annotation`, with `request_id` in it."""

    annotation: str
    request_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was written."""

    job: str
    uid: str
    request_id: str
    annotation: str


@dataclass(frozen=True, slots=True)
class Answered:
    """What the operator said."""

    accepted: bool
    message: str


def is_over(job: Mapping[str, Any]) -> bool:
    """Whether the job has ended, well or not. Pure."""
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(c["type"] == ConditionType.SUCCEEDED and c["status"] in ("True", "False") for c in conditions)


def state_of(job: Mapping[str, Any]) -> str:
    """One word or few for the state; Pending until the operator has seen the job. Pure."""
    return str((job.get("status") or {}).get("state") or "Pending")


def ending_message(job: Mapping[str, Any]) -> str:
    """Why the job ended as it did. Pure."""
    conditions = (job.get("status") or {}).get("conditions") or []
    return next((str(c.get("message") or "") for c in conditions if c["type"] == ConditionType.SUCCEEDED), "")


def answer_in(job: Mapping[str, Any] | None, asked: Asked) -> Answered | None:
    """The answer, or `None` while there is none; raises `AskingError` if there will be none. Pure."""
    if job is None or job["metadata"]["uid"] != asked.uid:
        raise AskingError(f"job {asked.job} was deleted before the operator answered")
    for answer in (job.get("status") or {}).get("requests") or []:
        if answer["id"] == asked.request_id:
            return Answered(bool(answer["accepted"]), str(answer.get("message") or ""))
    text = (job["metadata"].get("annotations") or {}).get(asked.annotation, "")
    if _id_of(text) != asked.request_id:
        # The operator may have sent it and not written the answer yet; what replaced it does not tell.
        raise AskingError("another request took the place of this one before it was answered; see `plan show`")
    return None


def _id_of(text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        return ""
    return str(value.get("id") or "") if isinstance(value, dict) else ""


async def ask(kube: UserKube, job: Mapping[str, Any], wish: Wish, timeout_seconds: float) -> Answered:
    """Write the request and wait for its answer. Raises `AskingError`, also when it has not come in time."""
    deadline = time.monotonic() + timeout_seconds
    meta = job["metadata"]
    namespace, name = meta["namespace"], meta["name"]
    if is_over(job):
        raise AskingError(f"job {name} does not run: it is {state_of(job)}")
    asked = Asked(name, meta["uid"], wish.request_id, wish.annotation)
    await kube.annotate_job(namespace, name, asked.uid, {wish.annotation: wish.text})
    trouble = ""
    while True:
        try:
            found = answer_in(await kube.get_job(namespace, name), asked)
        except ApiUnreachableError as error:
            trouble = f" (the API server: {error})"
        else:
            if found is not None:
                return found
        if time.monotonic() > deadline:
            raise AskingError(silence(asked, namespace, timeout_seconds) + trouble)
        await asyncio.sleep(POLL_SECONDS)


def silence(asked: Asked, namespace: str, seconds: float) -> str:
    """What holds once nobody has answered for so long, and what the user can do. Pure."""
    what = "the plan" if asked.annotation == Annotation.PLAN_REQUEST else "the command"
    return (
        f"the operator has not answered within {seconds:g} s; the request stays with the job, and {what} may still be "
        f"carried out. To take it back: `kubectl annotate htj {asked.job} -n {namespace} {asked.annotation}-`. "
        "Does the operator run? `kubectl get pods -A -l app.kubernetes.io/name=heterotrain-operator`"
    )


async def until_over(kube: UserKube, namespace: str, name: str, uid: str, deadline: float) -> Mapping[str, Any] | None:
    """The job once it is over; `None`: it is gone. Raises `AskingError` at `deadline`, monotonic seconds."""
    while True:
        job = await kube.get_job(namespace, name)
        if job is None or job["metadata"]["uid"] != uid:
            return None
        if is_over(job):
            return job
        if time.monotonic() > deadline:
            message = (
                f"job {name} has taken the request to stop, which stays, and is not over yet: it is {state_of(job)}"
            )
            raise AskingError(
                f"{message}; `kubectl wait -n {namespace} --for=condition=Succeeded=False htj/{name}` waits"
            )
        await asyncio.sleep(POLL_SECONDS)
