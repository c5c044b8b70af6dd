"""Values for tests of the operator's decisions: a job, its pods, the coordinator's state, what a pass observes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from heterotrain_api.conditions import ConditionType, Reason, get_condition, initial_conditions, set_condition
from heterotrain_api.contract import Container, Role
from heterotrain_api.names import pod_name
from heterotrain_api.status import Condition, ConditionStatus, HeteroTrainJobStatus
from heterotrain_operator.job.decide import decide
from heterotrain_operator.job.decision import Decision
from heterotrain_operator.job.manifests import service
from heterotrain_operator.job.observed import ContainerEnd, ContainerSeen, Observed, PodSeen, TrainingSeen
from heterotrain_operator.job.settings import JobSettings
from heterotrain_operator.job.view import View, read
from heterotrain_rpc import control_pb2
from manifests import make_manifest

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
UID = "3f2a77c0-1111-4222-8333-0123456789ab"
JOB = "fashion"
SERVICE = "fashion-3f2a77c0"
SETTINGS = JobSettings(trainer_image="heterotrain/trainer:dev")
PODS = ("ps-0", "cpu-0", "cpu-1")
"""Names in the job of what `make_job` comes to."""

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
WAITING, TRAINING, FINISHING = control_pb2.PHASE_WAITING, control_pb2.PHASE_TRAINING, control_pb2.PHASE_FINISHING


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def in_(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def make_job(
    *,
    status: HeteroTrainJobStatus | Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
    deleting: bool = False,
    generation: int = 1,
    **spec: Any,
) -> dict[str, Any]:
    """One parameter server and two workers, as the API server has it; `spec` replaces fields."""
    document = make_manifest(JOB, **spec)
    document["metadata"] |= {"namespace": "team", "uid": UID, "generation": generation, "resourceVersion": "7"}
    if annotations:
        document["metadata"]["annotations"] = dict(annotations)
    if deleting:
        document["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    if status is not None:
        document["status"] = status.to_document() if isinstance(status, HeteroTrainJobStatus) else dict(status)
    return document


def make_end(code: int = 0, *, reason: str = "", message: str = "", seconds_ago: float | None = 60.0) -> ContainerEnd:
    """How a container ended, `seconds_ago` (`None`: not known)."""
    finished = None if seconds_ago is None else ago(seconds_ago)
    return ContainerEnd(code, reason or ("Completed" if code == 0 else "Error"), message, finished)


def make_pod(
    name: str = "cpu-0",
    *,
    attempt: int = 1,
    phase: str = "Running",
    ready: bool | None = None,
    trainer: ContainerEnd | None = None,
    coordinator: ContainerEnd | None = None,
    waiting: tuple[str, str] | None = None,
    node: str = "node-1",
    created: float = 300.0,
    containers: tuple[ContainerSeen, ...] | None = None,
    **fields: Any,
) -> PodSeen:
    """A pod by its name in the job; it runs and is ready unless said otherwise."""
    group, _, index = name.rpartition("-")
    names = [Container.TRAINER, Container.COORDINATOR] if name == "ps-0" else [Container.TRAINER]
    ends = {Container.TRAINER: trainer, Container.COORDINATOR: coordinator}

    def seen(container: str) -> ContainerSeen:
        end = ends[container]
        if end is not None:
            return ContainerSeen(container, "terminated", end=end)
        if waiting is not None:
            return ContainerSeen(container, "waiting", *waiting)
        return ContainerSeen(container, "running" if phase == "Running" else "waiting")

    return PodSeen(
        name=pod_name(JOB, group, int(index), attempt),
        uid=f"uid-{name}-{attempt}",
        role=Role.PS if group == "ps" else Role.WORKER,
        group=group,
        index=int(index),
        attempt=attempt,
        phase=phase,
        node=node,
        ip="10.0.0.1",
        ready=phase == "Running" and trainer is None if ready is None else ready,
        deleting=fields.pop("deleting", False),
        created_at=ago(created),
        containers=tuple(seen(container) for container in names) if containers is None else containers,
        **fields,
    )


def pods(*changed: PodSeen, without: tuple[str, ...] = (), names: tuple[str, ...] = PODS) -> tuple[PodSeen, ...]:
    """All pods of `make_job`, running; `changed` ones take the place of those of their slot."""
    taken = {pod.name_in_job for pod in changed} | set(without)
    return tuple(sorted([*changed, *(make_pod(name) for name in names if name not in taken)], key=lambda pod: pod.name))


def make_state(
    phase: control_pb2.Phase.ValueType = TRAINING,
    *,
    workers: Mapping[str, control_pb2.WorkerPhase.ValueType] | None = None,
    events: tuple[control_pb2.Event, ...] = (),
    generation: int = 1,
    effective_round: int = 0,
    **fields: Any,
) -> control_pb2.JobState:
    """The coordinator's state: round 40 of 120, two workers with a share of 4."""
    each = control_pb2.WORKER_PHASE_TRAINING if phase == TRAINING else control_pb2.WORKER_PHASE_JOINED
    phases = {"cpu-0": each, "cpu-1": each} if workers is None else workers
    values: dict[str, Any] = {
        "term": 1,
        "version": 40,
        "rounds_planned": 120,
        "epochs": 3,
        "samples": 320,
        "samples_per_second": 90.0,
        "ideal_samples_per_second": 100.0,
        "pushed_bytes_per_sample": 800.4,
        "pulled_bytes_per_sample": 400.6,
        "message": "epoch 1 of 3, round 40 of 120",
        "synchronization": control_pb2.SynchronizationState(
            mode="Delay",
            wanted=control_pb2.Synchronization(mode="Delay", staleness_bound=3, delay_window_seconds=0.02),
            bound_in_force=5,
            largest_staleness=4,
            staleness={0: 90, 2: 5, 4: 5},
        ),
        **fields,
    }
    return control_pb2.JobState(
        job_uid=UID,
        phase=phase,
        plan=control_pb2.PlanState(generation=generation, effective_round=effective_round, reason="start shares"),
        workers=[
            control_pb2.WorkerState(
                name=name,
                group="cpu",
                phase=worker_phase,
                share_wanted=4,
                share_applied=4,
                samples_per_second=50.0,
                step_seconds=0.1,
                compute_seconds=0.08,
                data_seconds=0.005,
                receive_seconds=0.003,
                other_seconds=0.002,
            )
            for name, worker_phase in phases.items()
        ],
        events=events,
        **values,
    )


def seen(state: control_pb2.JobState, *, connected: bool = True, seconds_ago: float = 1.0) -> TrainingSeen:
    return TrainingSeen(state, ago(seconds_ago), connected)


def make_service(**spec: Any) -> dict[str, Any]:
    """The Service of `make_job` as the API server has it; `spec` replaces fields."""
    stored = service(viewed().context)
    stored["metadata"] |= {"uid": "uid-service", "resourceVersion": "3"}
    stored["spec"] |= {"type": "ClusterIP", "clusterIPs": ["None"], "sessionAffinity": "None", **spec}
    for port in stored["spec"]["ports"]:
        port["protocol"] = "TCP"
    return stored


def make_observed(job: Mapping[str, Any] | None = None, pods: tuple[PodSeen, ...] = (), **fields: Any) -> Observed:
    """What a pass sees: Service and Secret exist once there are pods."""
    return Observed(
        job=make_job() if job is None else job,
        pods=pods,
        service=fields.pop("service", make_service() if pods else None),
        secret_present=fields.pop("secret_present", bool(pods)),
        **fields,
    )


def decided(
    job: Mapping[str, Any] | None = None,
    pods: tuple[PodSeen, ...] = (),
    *,
    now: datetime = NOW,
    settings: JobSettings = SETTINGS,
    **fields: Any,
) -> Decision:
    """One pass's decision."""
    return decide(make_observed(job, pods, **fields), settings, now)


def viewed(job: Mapping[str, Any] | None = None, pods: tuple[PodSeen, ...] = (), **fields: Any) -> View:
    """An observation, read."""
    return read(make_observed(job, pods, **fields), SETTINGS, NOW)


def make_status(
    *said: tuple[ConditionType, ConditionStatus, Reason], at: float = 120.0, **fields: Any
) -> HeteroTrainJobStatus:
    """A status written `at` seconds ago, with these conditions; all others are Unknown."""
    conditions = initial_conditions(generation=1, now=ago(at))
    for kind, status, reason in said:
        conditions = set_condition(conditions, kind, status, reason, generation=1, now=ago(at)).conditions
    base: dict[str, Any] = {"observed_generation": 1, "start_time": ago(at), "update_time": ago(at), "attempt": 1}
    return HeteroTrainJobStatus(conditions=conditions, **base | fields)


def training_status(at: float = 120.0, **fields: Any) -> HeteroTrainJobStatus:
    """The status of a job that has begun to train."""
    return make_status(
        (ConditionType.ACCEPTED, TRUE, Reason.VALID),
        (ConditionType.PODS_READY, TRUE, Reason.ALL_PODS_READY),
        (ConditionType.TRAINING, TRUE, Reason.TRAINING),
        at=at,
        **{"training_start_time": ago(at)} | fields,
    )


def ended_status(succeeded: ConditionStatus = TRUE, *, at: float = 10.0, **fields: Any) -> HeteroTrainJobStatus:
    """The status of a job that was over `at` seconds ago."""
    reason = Reason.EPOCHS_COMPLETED if succeeded is TRUE else Reason.WORKER_FAILED
    return make_status(
        (ConditionType.ACCEPTED, TRUE, Reason.VALID),
        (ConditionType.SUCCEEDED, succeeded, reason),
        at=at,
        **{"completion_time": ago(at), "training_start_time": ago(at + 60)} | fields,
    )


def status_of(decision: Decision) -> HeteroTrainJobStatus:
    """The status that a decision writes."""
    assert decision.status is not None, "no status is written"
    return HeteroTrainJobStatus.model_validate(decision.status)


def written(seconds_ago: float, *, status: HeteroTrainJobStatus | None = None, **fields: Any) -> HeteroTrainJobStatus:
    """The status that a pass wrote `seconds_ago` that saw the job with `status`, and `fields` of `make_observed`."""
    return status_of(decided(make_job(status=status), now=ago(seconds_ago), **fields))


def condition(decision: Decision, kind: ConditionType) -> tuple[str, str, str]:
    """Status, reason and message of a condition that a decision writes."""
    found: Condition | None = get_condition(status_of(decision).conditions, kind)
    assert found is not None
    return found.status.value, found.reason, found.message


def made(decision: Decision) -> list[str]:
    """Names of the pods that a decision makes."""
    return [make.manifest["metadata"]["name"] for make in decision.make]


OUTCOME = '{"state": "%s", "reason": "%s", "message": "%s", "rounds": 120, "samples": 960, "reported": {"accuracy": 0.91}, "model": "%s"}'  # noqa: E501


def outcome(state: str, reason: str, message: str = "all said", model: str = "/output/model.safetensors") -> str:
    """The coordinator's termination message."""
    return OUTCOME % (state, reason, message, model)
