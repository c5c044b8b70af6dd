"""Why a process has no log yet, in words for the user. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from heterotrain_api.conditions import ConditionType, one_line
from heterotrain_api.contract import Container
from heterotrain_api.names import PS_GROUP
from heterotrain_operator.job.observed import ContainerSeen, PodSeen
from heterotrain_operator.job.slots import container

COORDINATOR: Final = "coordinator"
_INITIALIZING: Final = "PodInitializing"
"""What kubelet says of all other containers while the init containers are not done."""


def obstacle(pod: PodSeen, name: str) -> str | None:
    """What keeps the container from its first line; `None`: it has started."""
    seen = container(pod, name)
    if seen is not None and seen.state in {"running", "terminated"}:
        return None
    return f"pod {pod.name} {_stage(pod, seen)}"


def processes(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the processes that the job's manifest asks for."""
    spec = job.get("spec") or {}
    groups = [(PS_GROUP, spec.get("parameterServers") or {})]
    groups += [(str(group["name"]), group) for group in spec.get("workers") or ()]
    pods = [f"{name}-{index}" for name, group in groups for index in range(int(group.get("replicas", 1)))]
    return (COORDINATOR, *pods)


def why_no_pod(job: Mapping[str, Any]) -> str:
    """What the job's status says of pods that do not exist."""
    status = job.get("status") or {}
    found = {c["type"]: c for c in status.get("conditions") or ()}
    if not found:
        return "the operator has not looked at the job yet"
    for kind, good in ((ConditionType.ACCEPTED, {"True"}), (ConditionType.PODS_READY, {"True", "Unknown"})):
        condition = found.get(kind)
        if condition is not None and condition["status"] not in good:
            return f"{condition['reason']}: {condition.get('message') or 'no more is known'}"
    return "the operator has not made it yet"


def _stage(pod: PodSeen, seen: ContainerSeen | None) -> str:
    """`seen`: the container that has not started, if kubelet knows of it already."""
    if pod.disrupted:
        detail = f": {one_line(pod.message)}" if pod.message else ""
        return f"was taken away before its container started ({pod.disrupted}{detail})"
    reason = seen.waiting_reason if seen is not None else ""
    if seen is not None and reason == _INITIALIZING:
        return f"waits for its init containers{_initializing(pod)}"
    if seen is not None and (reason or seen.waiting_message):
        return f"waits to start container {seen.name}: {_words(seen)}"
    if pod.unschedulable:
        return f"is not scheduled: {one_line(pod.unschedulable)}"
    if not pod.node:
        return "is not scheduled to a node yet"
    return f"is being started on node {pod.node}"


def _initializing(pod: PodSeen) -> str:
    """Which of the init containers are not done, and how they stand."""
    ours = {str(Container.TRAINER), str(Container.COORDINATOR)}
    open_ = [_progress(seen) for seen in pod.containers if seen.name not in ours]
    said = "; ".join(text for text in open_ if text)
    return f" ({said})" if said else ""


def _progress(seen: ContainerSeen) -> str:
    match seen.state:
        case "running":
            return f"{seen.name} runs"
        case "terminated" if seen.end is not None and seen.end.exit_code != 0:
            return f"{seen.name} failed with exit code {seen.end.exit_code}"
        case "waiting" if seen.waiting_reason not in {"", _INITIALIZING}:
            return f"{seen.name}: {_words(seen)}"
        case _:
            return ""


def _words(seen: ContainerSeen) -> str:
    return one_line(": ".join(text for text in (seen.waiting_reason, seen.waiting_message) if text))
