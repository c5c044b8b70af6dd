"""A job's places for pods, and which pod fills which: the named buckets that decisions read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from heterotrain_api.contract import Container, Role
from heterotrain_api.names import PS_GROUP
from heterotrain_api.v1alpha1 import HeteroTrainJobSpec
from heterotrain_operator.job.observed import ContainerEnd, ContainerSeen, PodSeen


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for one pod: parameter server `index`, or worker `index` of a group."""

    role: Role
    group: str
    index: int

    @property
    def name(self) -> str:
        """The name in the job: ``ps-0``, ``cpu-1``."""
        return f"{self.group}-{self.index}"


COORDINATOR_SLOT = Slot(Role.PS, PS_GROUP, 0)
"""Where the coordinator runs."""


def ps_slots(spec: HeteroTrainJobSpec) -> tuple[Slot, ...]:
    """The parameter servers, the one with the coordinator first."""
    return tuple(Slot(Role.PS, PS_GROUP, index) for index in range(spec.parameter_servers.replicas))


def slots_of_workers(spec: HeteroTrainJobSpec, replicas: Mapping[str, int] | None = None) -> tuple[Slot, ...]:
    """The workers in the order of the manifest; `replicas`: of groups that have another number now."""
    counts = {group.name: group.replicas for group in spec.workers} | dict(replicas or {})
    return tuple(Slot(Role.WORKER, group.name, index) for group in spec.workers for index in range(counts[group.name]))


def all_slots(spec: HeteroTrainJobSpec, replicas: Mapping[str, int] | None = None) -> tuple[Slot, ...]:
    """Parameter servers, then workers: the order in which pods are made."""
    return ps_slots(spec) + slots_of_workers(spec, replicas)


STUCK_AFTER: Final = timedelta(seconds=15)
_SILENT: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Reasons of waiting containers that tell nothing."""

Buckets = Mapping[Slot, tuple[PodSeen, ...]]
"""Pods by the slot that they are for, lowest attempt first."""


def buckets(slots: Iterable[Slot], pods: Iterable[PodSeen]) -> Buckets:
    """Sort pods into slots. Pods that no slot is for are left out (`strays`)."""
    found: dict[Slot, list[PodSeen]] = {slot: [] for slot in slots}
    for pod in pods:
        found.get(_slot_of(pod), []).append(pod)
    return {slot: tuple(sorted(pods, key=lambda pod: pod.attempt)) for slot, pods in found.items()}


def strays(slots: Iterable[Slot], pods: Iterable[PodSeen]) -> tuple[PodSeen, ...]:
    """Pods of the job that no slot is for."""
    known = frozenset(slots)
    return tuple(pod for pod in pods if _slot_of(pod) not in known)


def _slot_of(pod: PodSeen) -> Slot:
    return Slot(pod.role, pod.group, pod.index)


def is_coordinators(pod: PodSeen) -> bool:
    """Whether the coordinator runs in it."""
    return _slot_of(pod) == COORDINATOR_SLOT


def container(pod: PodSeen, name: str) -> ContainerSeen | None:
    """The container `name` of a pod, if its status tells of it."""
    return next((seen for seen in pod.containers if seen.name == name), None)


def container_end(pod: PodSeen, name: str) -> ContainerEnd | None:
    """How the container `name` ended, if it did."""
    seen = container(pod, name)
    return None if seen is None else seen.end


def trainer_end(pod: PodSeen) -> ContainerEnd | None:
    """How the container that trains (or holds a shard) ended, if it did."""
    return container_end(pod, Container.TRAINER)


def is_done(pod: PodSeen) -> bool:
    """Its work is over without an error."""
    end = trainer_end(pod)
    return pod.phase == "Succeeded" or (end is not None and end.exit_code == 0)


def is_gone(pod: PodSeen) -> bool:
    """It is deleted, disrupted or replaced: it will not do its work, whatever its phase still says.

    A worker that was done before has done its work; one that ended because it was told to has not.
    """
    if pod.replaced:
        return True
    done = pod.role is Role.WORKER and is_done(pod) and not _was_told_to_end(pod)
    return (pod.deleting or bool(pod.disrupted)) and not done


def _was_told_to_end(pod: PodSeen) -> bool:
    end = trainer_end(pod)
    known = end is not None and end.finished_at is not None and pod.asked_at is not None
    return known and end is not None and end.finished_at >= pod.asked_at  # type: ignore[operator]  # known


def is_stuck(pod: PodSeen, now: datetime) -> bool:
    """Whether its node has had it for a while and no container of it has come to anything: an image that is large, or
    a volume that cannot be mounted. A pod's status does not tell which.
    """
    since = stuck_from(pod)
    return since is not None and now >= since


def stuck_from(pod: PodSeen) -> datetime | None:
    """From when a pod that its node has not started counts as stuck; `None`: it is not being started."""
    told = any(seen.state != "waiting" or seen.waiting_reason not in _SILENT for seen in pod.containers)
    starting = pod.phase == "Pending" and bool(pod.node) and not pod.deleting and not told
    return pod.created_at + STUCK_AFTER if starting else None


def present(pods: Iterable[PodSeen]) -> PodSeen | None:
    """The pod that fills a slot: of those that are not gone the first made; `None`: the slot is empty."""
    return next((pod for pod in pods if not is_gone(pod)), None)
