"""From a job to what its processes are started with. Pure; shared by the local runner and the operator.

The coordinator reads one file (`TrainerConfig`); every process reads its environment (`Env`), once, when it starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from heterotrain_api.contract import Env, worker_name
from heterotrain_api.rules import RULES
from heterotrain_api.trainer_config import (
    CheckpointConfig,
    ShardConfig,
    StopConfig,
    SynchronizationConfig,
    TrainerConfig,
    WorkerConfig,
)
from heterotrain_api.v1alpha1 import Discount, EnvVar, HeteroTrainJob, HeteroTrainJobSpec, Synchronization, WorkerGroup
from heterotrain_core.shares import start_shares

THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""How many threads the numerical libraries start."""


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """A worker of the job: its name and the group it belongs to. The order of slots is the order of summation."""

    name: str
    group: WorkerGroup


def worker_slots(spec: HeteroTrainJobSpec) -> tuple[WorkerSlot, ...]:
    """All workers in the order of the manifest."""
    return tuple(WorkerSlot(worker_name(group.name, i), group) for group in spec.workers for i in range(group.replicas))


def trainer_config(
    job: HeteroTrainJob,
    *,
    uid: str,
    shards: Sequence[ShardConfig],
    output: str,
    restarts: bool = False,
    resume: str = "",
    recording: str = "",
) -> TrainerConfig:
    """Return what the coordinator must know before the first worker joins.

    `job` has passed validation; `uid` is that of the certificates. `output`: folder, seen from shard 0, for the model.
    `restarts`: whoever asks starts lost processes again. `resume`: a checkpoint in place of the one that `job` names.
    `recording`: file for what the policy is told.
    """
    spec = job.spec
    return TrainerConfig(
        job_name=job.metadata.name,
        job_uid=uid,
        seed=spec.seed,
        global_batch_size=spec.global_batch_size,
        batch_grain=spec.batch_grain,
        workers=worker_configs(spec),
        shards=tuple(shards),
        stop=_stop(spec),
        synchronization=_synchronization(spec.synchronization),
        lease_seconds=float(spec.synchronization.lease_seconds),
        output=output,
        checkpoint=_checkpoint(spec),
        resume=resume or _resume(spec, output),
        recording=recording,
        restore_limit=backoff_limit(spec) if restarts else 0,
        rejoin_limit=rejoin_limit(spec) if restarts else 0,
    )


DEFAULT_CHECKPOINT_SECONDS: Final = 600.0
DEFAULT_BACKOFF_LIMIT: Final = 3


def backoff_limit(spec: HeteroTrainJobSpec) -> int:
    """How often the job may go back to a checkpoint."""
    if spec.checkpoint is None:
        return 0
    limit = spec.run_policy.backoff_limit
    return DEFAULT_BACKOFF_LIMIT if limit is None else limit


def rejoin_limit(spec: HeteroTrainJobSpec) -> int:
    """How often each worker may be lost and come back."""
    limit = spec.run_policy.backoff_limit
    return DEFAULT_BACKOFF_LIMIT if limit is None else limit


def _checkpoint(spec: HeteroTrainJobSpec) -> CheckpointConfig | None:
    wanted = spec.checkpoint
    if wanted is None:
        return None
    seconds = None if wanted.every_seconds is None else float(wanted.every_seconds)
    if seconds is None and wanted.every_rounds is None:
        seconds = DEFAULT_CHECKPOINT_SECONDS
    return CheckpointConfig(rounds=wanted.every_rounds, seconds=seconds, keep=wanted.keep, folder=wanted.path)


def _resume(spec: HeteroTrainJobSpec, output: str) -> str:
    wanted = spec.checkpoint.resume_from if spec.checkpoint is not None else None
    return f"{output}/{wanted}" if wanted is not None else ""


def with_replicas(job: HeteroTrainJob, replicas: Mapping[str, int]) -> HeteroTrainJob:
    """The job with so many workers in these groups."""
    groups = tuple(
        group.model_copy(update={"replicas": replicas.get(group.name, group.replicas)}) for group in job.spec.workers
    )
    return job.model_copy(update={"spec": job.spec.model_copy(update={"workers": groups})})


def _given_shares(spec: HeteroTrainJobSpec, slots: Sequence[WorkerSlot]) -> list[int | None]:
    """The start shares of the manifest; of a job that was scaled they may not fit any more: then all are equal."""
    fits = all(rule.holds(spec) for rule in RULES if rule.at_creation)
    return [slot.group.batch.initial if fits else None for slot in slots]


def worker_configs(spec: HeteroTrainJobSpec) -> tuple[WorkerConfig, ...]:
    """Each worker with its start share and bounds: ``batch.initial`` where given, equal parts of the rest elsewhere."""
    slots = worker_slots(spec)
    minimum = [slot.group.batch.min for slot in slots]
    maximum = [slot.group.batch.max if slot.group.batch.max is not None else spec.global_batch_size for slot in slots]
    shares = start_shares(
        _given_shares(spec, slots),
        minimum,
        maximum,
        spec.global_batch_size,
        spec.batch_grain,
        names=[slot.name for slot in slots],
    )
    return tuple(
        WorkerConfig(name=slot.name, group=slot.group.name, share=share, minimum=low, maximum=high)
        for slot, share, low, high in zip(slots, shares, minimum, maximum, strict=True)
    )


def _stop(spec: HeteroTrainJobSpec) -> StopConfig:
    target = spec.stop.target
    return StopConfig(
        rounds=spec.stop.rounds,
        seconds=None if spec.stop.seconds is None else float(spec.stop.seconds),
        target_name=None if target is None else target.value,
        target_at_least=None if target is None else target.at_least,
        target_at_most=None if target is None else target.at_most,
    )


def _synchronization(wanted: Synchronization) -> SynchronizationConfig:
    """What the manifest leaves out keeps the default of `SynchronizationConfig`."""
    return SynchronizationConfig.model_validate(synchronization_settings(wanted))


def synchronization_settings(wanted: Synchronization) -> dict[str, Any]:
    """What the manifest gives, under the names of `SynchronizationConfig`; `None` is no limit."""
    given: dict[str, Any] = {"mode": wanted.mode.value}
    if wanted.staleness_bound is not None:
        given["staleness_bound"] = _limit(wanted.staleness_bound)
    if wanted.delay_window_milliseconds is not None:
        milliseconds = _limit(wanted.delay_window_milliseconds)
        given["delay_window_seconds"] = None if milliseconds is None else milliseconds / 1000
    if wanted.discount is not None:
        # Inverse is a polynomial of exponent 1.
        given["discount"] = (Discount.POLYNOMIAL if wanted.discount is Discount.INVERSE else wanted.discount).value
    if wanted.discount_exponent is not None:
        given["discount_exponent"] = wanted.discount_exponent
    if wanted.normalization is not None:
        given["normalization"] = wanted.normalization.value
    if wanted.delay_compensation is not None:
        given["delay_compensation"] = wanted.delay_compensation
    if wanted.dssp is not None:
        given |= {"dssp_lower": wanted.dssp.lower, "dssp_range": wanted.dssp.range}
    if wanted.backup_workers is not None:
        given["backup_workers"] = wanted.backup_workers
    return given


def _limit(value: int | str) -> int | None:
    """A number, or no limit."""
    return value if isinstance(value, int) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What every process of a job is told about itself."""

    job_name: str
    job_uid: str
    name: str
    """The process's own name in the job."""
    certificates: str
    """Folder with its credentials."""

    def environment(self) -> dict[str, str]:
        """Return the variables."""
        return {
            Env.JOB_NAME: self.job_name,
            Env.JOB_UID: self.job_uid,
            Env.NAME: self.name,
            Env.CERTIFICATES: self.certificates,
        }


def ps_environment(member: Membership, *, output: str) -> dict[str, str]:
    """Environment of a parameter server. `output`: folder for the model."""
    return {**member.environment(), Env.OUTPUT: output}


def coordinator_environment(member: Membership, *, config: str, termination_log: str) -> dict[str, str]:
    """Environment of the coordinator. `config`: path of the `TrainerConfig`; `termination_log`: file for its
    outcome.
    """
    return {**member.environment(), Env.CONFIG: config, Env.TERMINATION_LOG: termination_log}


def worker_environment(
    member: Membership, spec: HeteroTrainJobSpec, group: WorkerGroup, *, coordinator: str
) -> dict[str, str]:
    """Environment of a worker: the user's variables (the group's win), then the job's own, which nobody overrides."""
    return {**user_environment(spec, group), **worker_identity(member, group, coordinator=coordinator)}


def worker_identity(member: Membership, group: WorkerGroup, *, coordinator: str) -> dict[str, str]:
    """The job's own variables of a worker."""
    return {**member.environment(), Env.COORDINATOR: coordinator, Env.DEVICE: group.device.value}


def user_environment(spec: HeteroTrainJobSpec, group: WorkerGroup) -> Mapping[str, str]:
    """The variables that the manifest gives to the workers of `group`."""
    return {variable.name: variable.value for variable in _variables(spec, group)}


def _variables(spec: HeteroTrainJobSpec, group: WorkerGroup) -> Iterator[EnvVar]:
    yield from spec.env
    yield from group.env
