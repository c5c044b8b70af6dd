"""Logs of a job's processes, read through the API server: of a process's newest pod."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from heterotrain_api.contract import Container, Label
from heterotrain_operator.cluster.asking import AskingError, is_over
from heterotrain_operator.cluster.door import UserKube
from heterotrain_operator.errors import ApiError
from heterotrain_operator.job.names import pod_selector
from heterotrain_operator.job.slots import COORDINATOR_SLOT

POLL_SECONDS: Final = 1.0
COORDINATOR: Final = "coordinator"


@dataclass(frozen=True, slots=True)
class Source:
    """A process and where its log is."""

    process: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a log has been shown: the time of its last line, and how many lines have that time."""

    time: str = ""
    count: int = 0


def sources(pods: Sequence[Mapping[str, Any]]) -> dict[str, Source]:
    """Processes by name, each in the pod of its highest attempt. Pure."""
    newest: dict[str, tuple[int, str]] = {}
    for pod in pods:
        labels = pod["metadata"]["labels"]
        name = f"{labels[Label.GROUP]}-{labels[Label.INDEX]}"
        found = (int(labels[Label.ATTEMPT]), str(pod["metadata"]["name"]))
        newest[name] = max(newest.get(name, (-1, "")), found)
    found_there = {name: Source(name, pod, Container.TRAINER) for name, (_, pod) in sorted(newest.items())}
    first = found_there.get(COORDINATOR_SLOT.name)
    own = {} if first is None else {COORDINATOR: Source(COORDINATOR, first.pod, Container.COORDINATOR)}
    return own | found_there


def fresh_lines(text: str, mark: Mark) -> tuple[list[str], Mark]:
    """Lines after `mark`, without their times, and the new mark. Pure.

    The API server gives whole seconds again, and times may be equal: those seen are passed over by their number.
    """
    lines: list[str] = []
    new, same = mark, 0
    for line in text.splitlines():
        time, _, words = line.partition(" ")
        if _key(time) < _key(mark.time):
            continue
        if time == mark.time:
            same += 1
            if same <= mark.count:
                continue
        lines.append(words)
        new = Mark(time, new.count + 1 if time == new.time else 1)
    return lines, new


def _key(time: str) -> tuple[str, str]:
    """RFC 3339 in UTC as something to compare: digits of the fraction are left out where they are 0."""
    seconds, _, fraction = time.rstrip("Z").partition(".")
    return seconds, fraction.ljust(9, "0")


async def print_logs(
    kube: UserKube, job: Mapping[str, Any], process: str | None, echo: Callable[[str], None], *, follow: bool
) -> None:
    """Print what the processes have written; with `follow` until the job is over or gone. Raises `AskingError`."""
    meta = job["metadata"]
    namespace, name, uid = meta["namespace"], meta["name"], meta["uid"]
    marks: dict[Source, Mark] = {}
    while True:
        # Asked before the logs are read: what is written between the two is still shown.
        current = await kube.get_job(namespace, name) if follow else None
        alive = current is not None and current["metadata"]["uid"] == uid and not is_over(current)
        found = sources(await kube.list_pods(namespace, pod_selector(uid)))
        if process is not None and process not in found and not (alive and process in {s.process for s in marks}):
            raise AskingError(f"job {name} has no pod of {process}; there are: {', '.join(found) or 'none'}")
        for source in found.values():
            if process in {None, source.process}:
                lines, marks[source] = await _read_on(kube, namespace, source, marks.get(source, Mark()))
                for line in lines:
                    echo(line if process else f"{source.process} | {line}")
        if not alive:
            return
        await asyncio.sleep(POLL_SECONDS)


async def _read_on(kube: UserKube, namespace: str, source: Source, mark: Mark) -> tuple[list[str], Mark]:
    try:
        text = await kube.read_log(namespace, source.pod, source.container, mark.time)
    except ApiError as error:
        if error.status in (400, 404):  # not started yet, or gone since the pods were listed
            return [], mark
        raise
    return fresh_lines(text, mark)
