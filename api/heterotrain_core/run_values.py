"""What a `TrainingRun` is configured with, and the words for where it stands. Immutable; no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from heterotrain_core.layout import TensorSpec
from heterotrain_core.synchronization import BSP, Synchronization
from heterotrain_core.types import Bounds


class Phase(StrEnum):
    """Where a job is."""

    WAITING = "Waiting"
    """Not all workers have joined and agreed on the model."""
    TRAINING = "Training"
    FINISHING = "Finishing"
    """Training is over; the model is being saved, or workers still have work of their own after it."""
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"
    """Ended early on request, model saved if there was one."""


class WorkerPhase(StrEnum):
    """Where a worker is."""

    ABSENT = "Absent"
    """Expected, has not joined yet."""
    JOINED = "Joined"
    """Has joined; training has not begun."""
    TRAINING = "Training"
    FINISHED = "Finished"
    """Said goodbye: its script is over, or it was drained, scaled away or told to end."""
    LOST = "Lost"
    """Connection or lease lost, or it reported an error. It may join again if the job goes on."""


class RunReason(StrEnum):
    """Why a job is in its phase; also the reasons of its events. All are `Reason`s of ``heterotrain_api``."""

    WAITING_FOR_WORKERS = "WaitingForWorkers"
    WAITING_FOR_SHARDS = "WaitingForShards"
    STARTED = "Started"
    TRAINING = "Training"
    FINISHING = "Finishing"

    EPOCHS_COMPLETED = "EpochsCompleted"
    ROUNDS_REACHED = "RoundsReached"
    SECONDS_REACHED = "SecondsReached"
    TARGET_REACHED = "TargetReached"
    SCRIPTS_ENDED = "ScriptsEnded"
    """All scripts ended before their last epoch, without error."""
    STOPPED = "Stopped"

    WORKER_LOST = "WorkerLost"
    WORKER_FAILED = "WorkerFailed"
    SHARD_FAILED = "ShardFailed"
    OPTIMIZER_NOT_SUPPORTED = "OptimizerNotSupported"
    MODEL_MISMATCH = "ModelMismatch"
    HYPERPARAMETERS_DIFFER = "HyperparametersDiffer"
    SCRIPTS_DIFFER = "ScriptsDiffer"
    """Scripts do not say the same number of epochs or do not evaluate alike."""
    SAVE_FAILED = "SaveFailed"
    COORDINATOR_FAILED = "CoordinatorFailed"

    WORKER_JOINED = "WorkerJoined"
    JOIN_REFUSED = "JoinRefused"
    WORKER_FINISHED = "WorkerFinished"
    WORKER_DRAINED = "WorkerDrained"
    GRADIENT_NOT_FINITE = "GradientNotFinite"
    MOMENTUM_WITH_STALENESS = "MomentumWithStaleness"
    """Gradients are stale and the optimizer has momentum, which multiplies the harm."""
    PLAN_AGREED = "PlanAgreed"
    PLAN_DERIVED = "PlanDerived"
    PLAN_REFUSED = "PlanRefused"
    REPORT_IGNORED = "ReportIgnored"
    CHECKPOINT_SAVED = "CheckpointSaved"
    CHECKPOINT_FAILED = "CheckpointFailed"
    CHECKPOINT_UNUSABLE = "CheckpointUnusable"
    RESTORED = "Restored"
    MODEL_SAVED = "ModelSaved"


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker that may join; its ordinal is its place in `RunConfig.workers`."""

    name: str
    group: str
    share: int
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class StopLimits:
    """When training ends before the script's last epoch; `None` means never for that reason."""

    rounds: int | None = None
    seconds: float | None = None
    target_name: str | None = None
    target_at_least: float | None = None
    target_at_most: float | None = None

    def reached_by(self, values: Mapping[str, float]) -> str | None:
        """The target that `values` fulfil, in words; `None` if they do not."""
        value = values.get(self.target_name) if self.target_name else None
        if value is None:
            return None
        if self.target_at_least is not None and value >= self.target_at_least:
            return f"{self.target_name} = {value:g} has reached {self.target_at_least:g}"
        if self.target_at_most is not None and value <= self.target_at_most:
            return f"{self.target_name} = {value:g} has fallen to {self.target_at_most:g}"
        return None


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """When checkpoints are made without a command, and at the end; `None`: not for that reason."""

    rounds: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RunConfig:
    """What is fixed before the first worker joins."""

    workers: tuple[WorkerSpec, ...]
    global_batch_size: int
    protocol_version: int
    batch_grain: int = 1
    stop: StopLimits = StopLimits()
    lease_seconds: float = 15.0
    """A worker silent for so long is lost."""
    model_file: str = "model.safetensors"
    term: int = 1
    seed: int = 0
    synchronization: Synchronization = BSP
    """Mode and bounds to begin with."""
    checkpoint: CheckpointPolicy | None = None
    """`None`: checkpoints on command only."""
    rejoin_limit: int = 0
    """Losses of each worker that the job goes on from; one more fails it."""
    recovery_seconds: float = 120.0
    """How long the job waits for workers to come back: when none is left, and before it goes on from a checkpoint."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The model as one worker describes it. `groups`: hyperparameters of each parameter group, a JSON object each."""

    tensors: tuple[TensorSpec, ...]
    optimizer: str
    groups: tuple[str, ...]
    dataset_size: int
    smallest_batch: int = 1
    """Samples that the model needs at once to be trained: 2 with BatchNorm."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Parts of one iteration, in seconds (see ``session.proto``)."""

    data: float = 0.0
    compute: float = 0.0
    push: float = 0.0
    pull: float = 0.0
    step: float = 0.0
    receive: float = 0.0
    other: float = 0.0
    cpu: float = 0.0
    """Processor time of the computing, which is no part of the iteration's time: 0 if it is not known."""


NO_TIMINGS = Timings()


class Traffic(NamedTuple):
    """Bytes between a worker and the shards."""

    pushed: int = 0
    pulled: int = 0


NO_TRAFFIC = Traffic()


@dataclass(frozen=True, slots=True)
class Clip:
    """Norm clipping of the aggregate; `norm_type` is p, infinity included."""

    max_norm: float
    norm_type: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the job ended."""

    phase: Phase
    reason: RunReason
    message: str
    rounds: int
    samples: int
    reported: Mapping[str, float] = field(default_factory=dict)
    model: str = ""


class RunFault(Exception):  # noqa: N818  # says what it is: the job cannot go on
    """The job cannot go on: the reason and a message for the user. Caught by `TrainingRun`."""

    def __init__(self, reason: RunReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
