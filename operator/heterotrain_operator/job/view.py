"""An observation, read: the job parsed, its pods in buckets, what the status remembers. Everything below decides on it.

Reading never fails: a spec that cannot be read becomes faults, a status that cannot be read keeps what can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from heterotrain_api.conditions import is_finished
from heterotrain_api.names import pod_name
from heterotrain_api.rules import RULES
from heterotrain_api.schema_check import Fault
from heterotrain_api.status import HeteroTrainJobStatus, Restart, WorkerPhase
from heterotrain_api.v1alpha1 import HeteroTrainJob, HeteroTrainJobSpec
from heterotrain_api.validation import broken_rules
from heterotrain_operator.job.context import PodContext
from heterotrain_operator.job.observed import Observed, PodSeen, TrainingSeen
from heterotrain_operator.job.settings import JobSettings
from heterotrain_operator.job.slots import (
    COORDINATOR_SLOT,
    Buckets,
    Slot,
    all_slots,
    buckets,
    is_coordinators,
    is_done,
    is_gone,
    present,
    trainer_end,
)
from heterotrain_operator.job.template import spec_faults
from heterotrain_rpc import control_pb2

_BEGUN: Final = frozenset(
    {
        control_pb2.PHASE_TRAINING,
        control_pb2.PHASE_FINISHING,
        control_pb2.PHASE_SUCCEEDED,
    }
)
"""Phases in which at least one round was granted. A job can fail or be stopped before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a pass decides on."""

    observed: Observed
    settings: JobSettings
    now: datetime
    name: str
    namespace: str
    uid: str
    generation: int
    deleting: bool
    annotations: Mapping[str, str]
    job: HeteroTrainJob | None
    """`None`: the stored spec does not fit the schema that this operator knows."""
    faults: tuple[Fault, ...]
    """What is wrong with the spec; then no pod is made."""
    status: HeteroTrainJobStatus
    """As it was written last."""
    pods: Buckets
    replicas: Mapping[str, int]
    """How many workers each group has now, whatever the manifest wants (`heterotrain_operator.job.membership`)."""

    @property
    def finished(self) -> bool:
        """The job is over, and remembered to be."""
        return is_finished(self.status.conditions)

    @property
    def state(self) -> control_pb2.JobState | None:
        """The coordinator's last state, however old. One of another job, or an empty one, is none."""
        training = self.observed.training
        if training is None or training.state.phase == control_pb2.PHASE_UNSPECIFIED:
            return None
        return training.state if training.state.job_uid in ("", self.uid) else None

    @property
    def connected(self) -> bool:
        """Whether the coordinator can be asked now."""
        return self.state is not None and self.observed.training is not None and self.observed.training.connected

    @property
    def trains(self) -> bool:
        """Whether rounds are being trained, by the coordinator's last word."""
        return self.state is not None and self.state.phase == control_pb2.PHASE_TRAINING

    @property
    def began(self) -> bool:
        """Whether training has begun: from then on a pod that is gone is a loss."""
        if self.status.training_start_time is not None or self.status.recovery.restarts:
            return True
        return self.state is not None and self.state.phase in _BEGUN

    def restart_of(self, slot: Slot) -> Restart | None:
        """What the status says of the losses of a place; `None`: it had none."""
        return next((restart for restart in self.status.recovery.restarts if restart.name == slot.name), None)

    def last_name(self, slot: Slot) -> str:
        """Name of the pod that a place had, as far as it is remembered."""
        restart = self.restart_of(slot)
        if restart is not None and restart.pod:
            return restart.pod
        row = next((row for row in self.status.workers if row.name == slot.name), None)
        if row is not None and row.pod:
            return row.pod
        return pod_name(self.name, slot.group, slot.index, 1) if self.status.attempt == 1 else ""

    @property
    def coordinator_pod(self) -> PodSeen | None:
        """The pod that holds the coordinator, if it is not gone."""
        return present(self.pods.get(COORDINATOR_SLOT, ()))

    @property
    def context(self) -> PodContext:
        """What manifests are made of; only for a job without faults."""
        assert self.job is not None  # noqa: S101  # callers look at `faults` first
        return PodContext(
            job=self.name,
            namespace=self.namespace,
            uid=self.uid,
            spec=self.job.spec,
            settings=self.settings,
            replicas=self.replicas,
            certified=self.replicas if self.observed.certified is None else self.observed.certified,
        )

    def worker_state(self, name: str) -> control_pb2.WorkerState | None:
        """What the coordinator last said of a worker."""
        state = self.state
        return None if state is None else next((worker for worker in state.workers if worker.name == name), None)

    def has_finished(self, slot: Slot) -> bool:
        """Whether the worker said goodbye, by the coordinator's last word or by what the status remembers of it."""
        worker = self.worker_state(slot.name)
        if worker is not None:
            return worker.phase == control_pb2.WORKER_PHASE_FINISHED
        return any(row.name == slot.name and row.phase == WorkerPhase.FINISHED for row in self.status.workers)


def read(observed: Observed, settings: JobSettings, now: datetime) -> View:
    """Read an observation."""
    document = observed.job
    metadata = document.get("metadata") or {}
    job, faults = read_spec(document)
    status = read_status(document.get("status"))
    uid = str(metadata.get("uid", ""))
    attempts = {restart.name: restart.attempt for restart in status.recovery.restarts}
    wanted_again = _wanted_again(observed.training, uid)
    pods = [
        replace(pod, replaced=pod.attempt < attempts.get(pod.name_in_job, 0) or wanted_again(pod))
        for pod in observed.pods
    ]
    replicas = {} if job is None else _replicas(job.spec, status, pods, observed.training, uid)
    slots = (
        all_slots(job.spec, replicas)
        if job is not None
        else [Slot(pod.role, pod.group, pod.index) for pod in observed.pods]
    )
    return View(
        observed=observed,
        settings=settings,
        now=now,
        name=str(metadata.get("name", "")),
        namespace=str(metadata.get("namespace") or "default"),
        uid=uid,
        generation=int(metadata.get("generation") or 0),
        deleting=metadata.get("deletionTimestamp") is not None,
        annotations=metadata.get("annotations") or {},
        job=job,
        faults=faults,
        status=status,
        pods=buckets(slots, pods),
        replicas=replicas,
    )


def _replicas(
    spec: HeteroTrainJobSpec,
    status: HeteroTrainJobStatus,
    pods: Sequence[PodSeen],
    training: TrainingSeen | None,
    uid: str,
) -> Mapping[str, int]:
    """Workers of each group: as the coordinator says, or last said; before it was started, as the manifest wants.

    The coordinator is configured with these numbers, and asked for others once it trains.
    """
    wanted = {group.name: group.replicas for group in spec.workers}
    told: Mapping[str, int] = {}
    if training is not None and training.connected and training.state.job_uid in ("", uid):
        told = {group.name: group.replicas for group in training.state.groups}
    began = status.training_start_time is not None or bool(status.recovery.restarts)
    started = any(is_coordinators(pod) and not is_gone(pod) for pod in pods)
    if not told and (began or started):
        told = {group.name: group.replicas for group in status.groups}
    return {name: told.get(name, replicas) for name, replicas in wanted.items()}


def _wanted_again(training: TrainingSeen | None, uid: str) -> Callable[[PodSeen], bool]:
    """Whether a worker had left as asked, and is expected once more, since its group was scaled up again."""
    known = training is not None and training.connected and training.state.job_uid in ("", uid)
    state = training.state if training is not None and known else control_pb2.JobState()
    expected = {
        worker.name
        for worker in state.workers
        if worker.phase == control_pb2.WORKER_PHASE_ABSENT and worker.incarnation > 0
    }

    def holds(pod: PodSeen) -> bool:
        end = trainer_end(pod)
        if training is None or end is None or end.finished_at is None or not is_done(pod):
            return False
        trains = state.phase == control_pb2.PHASE_TRAINING
        return trains and pod.name_in_job in expected and training.received_at > end.finished_at

    return holds


def read_spec(document: Mapping[str, Any]) -> tuple[HeteroTrainJob | None, tuple[Fault, ...]]:
    """The job, and what is wrong with it. Stored by another version of the schema, it may not fit ours."""
    try:
        job = HeteroTrainJob.model_validate({**document, "status": {}})
    except ValidationError as error:
        return None, tuple(Fault(_path(e["loc"]), e["msg"]) for e in error.errors(include_url=False))
    # What a job begins with may not fit what it has become; the API server lets that pass as well.
    new = int((document.get("metadata") or {}).get("generation") or 1) == 1
    rules = [rule for rule in RULES if new or not rule.at_creation]
    return job, (*broken_rules(job, rules), *spec_faults(job.spec))


def read_status(document: Any) -> HeteroTrainJobStatus:
    """The status as far as it can be read: a field that does not fit is dropped, of a list the entry.

    What ended a job must not be forgotten because something else in its status was written by a newer version.
    """
    rest = dict(document) if isinstance(document, Mapping) else {}
    while True:
        try:
            return HeteroTrainJobStatus.model_validate(rest)
        except ValidationError as error:
            for field, index in {(e["loc"] + (None,))[:2] for e in error.errors()}:
                value = rest.get(str(field))
                if isinstance(index, int) and isinstance(value, list | tuple) and len(value) > 1:
                    rest[str(field)] = [item for place, item in enumerate(value) if place != index]
                    break  # the other indices have moved
                rest.pop(str(field), None)


def _path(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")
