"""From the API's JSON to what a pass sees. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from heterotrain_api.contract import GROUP, Label, Role
from heterotrain_api.v1alpha1 import KIND
from heterotrain_operator.job.observed import ContainerEnd, ContainerSeen, PodSeen

Json = Mapping[str, Any]

_LOST: Final = frozenset({("ContainerStatusUnknown", 137), ("Unknown", 255)})
"""Reason and exit code that kubelet and containerd give a container whose end they did not see."""


class NotAPodOfAJobError(ValueError):
    """The labels of a pod do not say what it is; somebody changed them."""


def controller(metadata: Json) -> Json | None:
    """The owner reference that controls the object, if any."""
    return next((ref for ref in metadata.get("ownerReferences") or () if ref.get("controller")), None)


def is_ours(metadata: Json, job_uid: str) -> bool:
    """Whether just this job controls the object: not one of the same name before it."""
    owner = controller(metadata)
    return owner is not None and owner.get("uid") == job_uid


def job_of(metadata: Json) -> str | None:
    """Name of the job that controls the object, if one does."""
    owner = controller(metadata)
    if owner is None or owner.get("kind") != KIND or not str(owner.get("apiVersion")).startswith(f"{GROUP}/"):
        return None
    return str(owner["name"])


def pod_seen(pod: Json) -> PodSeen:
    """Read a pod; raises `NotAPodOfAJobError`."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels = metadata.get("labels") or {}
    try:
        role, group = Role(labels[Label.ROLE]), labels[Label.GROUP]
        index, attempt = int(labels[Label.INDEX]), int(labels[Label.ATTEMPT])
    except (KeyError, ValueError) as error:
        raise NotAPodOfAJobError(f"label of pod {metadata['name']} is missing or wrong: {error}") from None
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    statuses = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    limits = _memory_limits(pod.get("spec") or {})
    containers = tuple(replace(_container(seen), memory_limit=limits.get(seen["name"], "")) for seen in statuses)
    return PodSeen(
        name=metadata["name"],
        uid=metadata["uid"],
        role=role,
        group=group,
        index=index,
        attempt=attempt,
        phase=status.get("phase") or "Unknown",
        node=(pod.get("spec") or {}).get("nodeName") or "",
        ip=status.get("podIP") or "",
        ready=_holds(conditions.get("Ready")),
        deleting="deletionTimestamp" in metadata,
        created_at=datetime.fromisoformat(metadata["creationTimestamp"]),
        containers=containers,
        unschedulable=_unschedulable(conditions.get("PodScheduled")),
        disrupted=_disruption(conditions.get("DisruptionTarget"), status, containers),
        message=_message(status, containers),
        asked_at=_asked_at(metadata),
        ends_by=_time(metadata.get("deletionTimestamp")),
    )


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _asked_at(metadata: Json) -> datetime | None:
    """A deletion's timestamp is the end of its grace."""
    ends_by = _time(metadata.get("deletionTimestamp"))
    return None if ends_by is None else ends_by - timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)


def newest_warning(events: Iterable[Json]) -> str:
    """The newest of the events on a pod, if it is a complaint: what came before it has passed."""
    newest = max(events, key=_event_time, default=None)
    if newest is None or newest.get("type") != "Warning":
        return ""
    return f"{newest.get('reason') or 'Warning'}: {newest.get('message') or 'no words'}"


def _event_time(event: Json) -> str:
    """When it was said last. All are UTC in one format, but that newer ones have microseconds."""
    series = event.get("series") or {}
    times = (event.get("lastTimestamp"), series.get("lastObservedTime"), event.get("eventTime"))
    return max((time.rstrip("Z") for time in times if time), default="")


def _memory_limits(spec: Json) -> Mapping[str, str]:
    """By the container's name. What the pod has, whether by the job, its template or the namespace's LimitRange."""
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    limits = {c["name"]: ((c.get("resources") or {}).get("limits") or {}).get("memory") for c in containers}
    return {name: str(limit) for name, limit in limits.items() if limit is not None}


def _container(status: Json) -> ContainerSeen:
    state = status.get("state") or {}
    kind: Literal["waiting", "running", "terminated"]
    for kind in ("waiting", "running", "terminated"):
        if kind not in state:
            continue
        detail = state[kind] or {}
        match kind:
            case "waiting":
                return ContainerSeen(status["name"], kind, detail.get("reason") or "", detail.get("message") or "")
            case "running":
                return ContainerSeen(status["name"], kind)
            case "terminated":
                return ContainerSeen(status["name"], kind, end=_end(detail))
    return ContainerSeen(status["name"], "unknown")


def _end(detail: Json) -> ContainerEnd:
    finished = detail.get("finishedAt")
    return ContainerEnd(
        exit_code=int(detail["exitCode"]),
        reason=detail.get("reason") or "",
        message=detail.get("message") or "",
        finished_at=datetime.fromisoformat(finished) if finished else None,
    )


def _holds(condition: Json | None) -> bool:
    return condition is not None and condition.get("status") == "True"


def _unschedulable(scheduled: Json | None) -> str:
    if scheduled is None or scheduled.get("status") != "False" or scheduled.get("reason") != "Unschedulable":
        return ""
    return scheduled.get("message") or "no node fits"


def _disruption(target: Json | None, status: Json, containers: tuple[ContainerSeen, ...]) -> str:
    if target is not None and _holds(target):
        return target.get("reason") or "DisruptionTarget"
    if status.get("phase") != "Failed":
        return ""
    failed = [container.end for container in containers if container.end is not None and container.end.exit_code != 0]
    if not failed:
        # Evicted by the kubelet, refused by it, or lost with its node: the pod failed, none of its processes did.
        return status.get("reason") or "Failed"
    return failed[0].reason if all(map(_is_lost, failed)) else ""


def _is_lost(end: ContainerEnd) -> bool:
    """Whether nobody knows how the container ended: its node or the runtime was started anew, say."""
    return (end.reason, end.exit_code) in _LOST


def _message(status: Json, containers: tuple[ContainerSeen, ...]) -> str:
    """What the kubelet says of the pod, or of a container that it lost."""
    lost = (c.end.message for c in containers if c.end is not None and _is_lost(c.end))
    return status.get("message") or next(lost, "")
