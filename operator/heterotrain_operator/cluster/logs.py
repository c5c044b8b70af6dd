"""Logs of a job's processes, read through the API server: of a process's newest pod.

A process that has no log yet is told of, with what its pod waits for, beside the logs of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from heterotrain_api.contract import Container
from heterotrain_operator.cluster.asking import AskingError, is_over
from heterotrain_operator.cluster.door import UserKube
from heterotrain_operator.cluster.waiting import COORDINATOR, obstacle, processes, why_no_pod
from heterotrain_operator.errors import ApiError
from heterotrain_operator.job.names import pod_selector
from heterotrain_operator.job.observed import PodSeen
from heterotrain_operator.job.seen import NotAPodOfAJobError, is_ours, pod_seen
from heterotrain_operator.job.slots import COORDINATOR_SLOT

POLL_SECONDS: Final = 1.0
NAMED: Final = 5
"""Processes without a pod that are told by name."""


@dataclass(frozen=True, slots=True)
class Source:
    """A process and where its log is."""

    process: str
    pod: str
    container: str
    obstacle: str | None = None
    """Why there is no log yet, in words; `None`: the container has started."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a log has been shown: the time of its last line, and how many lines have that time."""

    time: str = ""
    count: int = 0


def sources(pods: Iterable[PodSeen]) -> dict[str, Source]:
    """Processes by name, each in the pod of its highest attempt. Pure."""
    newest: dict[str, PodSeen] = {}
    for pod in sorted(pods, key=lambda pod: (pod.attempt, pod.name)):
        newest[pod.name_in_job] = pod
    found = {name: _source(name, pod, Container.TRAINER) for name, pod in sorted(newest.items())}
    first = newest.get(COORDINATOR_SLOT.name)
    own = {} if first is None else {COORDINATOR: _source(COORDINATOR, first, Container.COORDINATOR)}
    return own | found


def _source(process: str, pod: PodSeen, container: str) -> Source:
    return Source(process, pod.name, container, obstacle(pod, container))


def seen_pods(pods: Sequence[Mapping[str, Any]], uid: str) -> list[PodSeen]:
    """Those that are pods of just this job, as its labels alone do not say. Pure."""
    found = []
    for pod in pods:
        try:
            if is_ours(pod["metadata"], uid):
                found.append(pod_seen(pod))
        except NotAPodOfAJobError:
            continue  # somebody changed its labels: nobody knows what it is
    return found


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


@dataclass(slots=True)
class _Printer:
    """Prints what is new, of logs with `echo`, of what they wait for with `warn`."""

    kube: UserKube
    namespace: str
    echo: Callable[[str], None]
    warn: Callable[[str], None]
    prefixed: bool
    marks: dict[Source, Mark] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)
    """What was said last, by what it is about."""

    async def read(self, source: Source) -> None:
        """Print the log's new lines, or why there is none."""
        if source.obstacle is not None:
            self.tell(source.process, f"{source.process} has no log yet: {source.obstacle}")
            return
        mark = self.marks.get(source, Mark())
        try:
            text = await self.kube.read_log(self.namespace, source.pod, source.container, mark.time)
        except ApiError as error:
            if error.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                raise  # of no log at all will it answer otherwise
            if error.status != HTTPStatus.NOT_FOUND:  # it is gone since the pods were listed
                self.tell(source.process, f"the log of {source.process} cannot be read: pod {source.pod}: {error}")
            return
        lines, self.marks[source] = fresh_lines(text, mark)
        for line in lines:
            self.echo(f"{source.process} | {line}" if self.prefixed else line)

    def tell(self, about: str, words: str) -> None:
        """Say it once, until it changes."""
        if self.told.get(about) != words:
            self.told[about] = words
            self.warn(words)

    @property
    def has_read(self) -> bool:
        """Whether any process has started."""
        return bool(self.marks)


async def print_logs(
    kube: UserKube,
    job: Mapping[str, Any],
    process: str | None,
    echo: Callable[[str], None],
    warn: Callable[[str], None],
    *,
    follow: bool,
) -> None:
    """Print what the processes have written; with `follow` until the job is over or gone.

    `warn` is told of processes that have no log yet. Raises `AskingError` if there was none to print, or if no process
    is called `process`.
    """
    meta = job["metadata"]
    namespace, name, uid = meta["namespace"], meta["name"], meta["uid"]
    printer = _Printer(kube, namespace, echo, warn, prefixed=process is None)
    current: Mapping[str, Any] | None = job
    while True:
        # Asked before the logs are read: what is written between the two is still shown.
        alive = current is not None and current["metadata"]["uid"] == uid and not is_over(current)
        found = sources(seen_pods(await kube.list_pods(namespace, pod_selector(uid)), uid))
        for source in _chosen(job, process, found, may_miss=alive or printer.has_read):
            await printer.read(source)
        if alive and current is not None and (absent := _absent(job, process, found)):
            printer.tell(
                "", f"{_listed(absent)} {'have' if len(absent) > 1 else 'has'} no pod yet: {why_no_pod(current)}"
            )
        if not (follow and alive):
            break
        await asyncio.sleep(POLL_SECONDS)
        current = await kube.get_job(namespace, name)
    if not printer.has_read:
        later = "; --follow waits for it" if alive else ""
        raise AskingError(f"there is no log of {process or f'any process of job {name}'}{later}")


def _chosen(
    job: Mapping[str, Any], process: str | None, found: Mapping[str, Source], *, may_miss: bool
) -> Sequence[Source]:
    """What to read; raises `AskingError` if there is no such process, nor will be.

    `may_miss`: one that the job asks for need not be there: its pod is to come, or has been read and is gone.
    """
    if process is None:
        return tuple(found.values())
    if process in found:
        return (found[process],)
    if may_miss and process in processes(job):
        return ()
    there = ", ".join(found) or "none"
    raise AskingError(f"job {job['metadata']['name']} has no pod of {process}; there are: {there}")


def _absent(job: Mapping[str, Any], process: str | None, found: Mapping[str, Source]) -> Sequence[str]:
    """Processes that have no pod."""
    wanted = processes(job) if process is None else (process,)
    return tuple(name for name in wanted if name not in found)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
