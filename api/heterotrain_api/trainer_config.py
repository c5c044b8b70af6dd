"""The file that whoever starts a job (operator or local runner) writes and the coordinator reads, once, at start."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class WorkerConfig(_Frozen):
    """One worker that may join. Its ordinal (the order of summation) is its place in `TrainerConfig.workers`."""

    name: str
    group: str
    share: int
    """Start share, samples a round."""
    minimum: int
    maximum: int
    """Bounds of the share in samples, both inclusive."""


class ShardConfig(_Frozen):
    """Where a parameter server answers, as ``host:port``."""

    control_address: str
    tensor_address: str


class StopConfig(_Frozen):
    """When training ends before the script's last epoch; `None` means never for that reason."""

    rounds: int | None = None
    seconds: float | None = None
    """Seconds of training since the first grant."""
    target_name: str | None = None
    """Name of a reported value (`Session.report`)."""
    target_at_least: float | None = None
    target_at_most: float | None = None


class SynchronizationConfig(_Frozen):
    """How workers wait for each other; what means nothing in the mode is passed over."""

    mode: str = "BSP"
    staleness_bound: int | None = 3
    """SSP: iterations; Delay: rounds. `None`: no bound."""
    delay_window_seconds: float | None = 0.05
    """Delay. `None`: wait for everybody."""
    discount: str | None = None
    """``None``, ``Polynomial`` or ``StalenessAware``; `None`: the mode's own."""
    discount_exponent: float = 1.0
    normalization: str = "Target"
    delay_compensation: float = 0.0
    dssp_lower: int = 2
    dssp_range: int = 8
    backup_workers: int = 1


class CheckpointConfig(_Frozen):
    """When checkpoints are made without a command, and how many are kept."""

    rounds: int | None = None
    """Every so many rounds."""
    seconds: float | None = None
    """Every so many seconds of training."""
    keep: int = 3
    folder: str = "checkpoints"
    """Below `TrainerConfig.output`."""


class TrainerConfig(_Frozen):
    """Everything the coordinator must know before the first worker joins."""

    job_name: str
    job_uid: str
    seed: int
    global_batch_size: int
    batch_grain: int = 1
    workers: tuple[WorkerConfig, ...]
    shards: tuple[ShardConfig, ...]
    replicas: Mapping[str, int] = {}
    """Workers of each group, where the group was scaled since: then all begin with equal shares."""
    stop: StopConfig = StopConfig()
    synchronization: SynchronizationConfig = SynchronizationConfig()
    lease_seconds: float = 15.0
    """A worker silent for so long is lost."""
    output: str = ""
    """Folder, seen from shard 0, for the model."""
    checkpoint: CheckpointConfig | None = None
    """`None`: on command only."""
    resume: str = ""
    """Checkpoint, or folder of some, that a job without one of its own begins from; seen from shard 0."""
    restore_limit: int = 0
    """How often the job may go back to a checkpoint because a process was lost; after that, or at 0, it fails."""
    rejoin_limit: int = 0
    """Losses of each worker that the job goes on from, taking it back if it comes; one more, or at 0 the first, fails
    it."""
    recording: str = ""
    """File for what the synchronisation policy is told, seen from the coordinator; empty: none is written."""
    recovery_seconds: float = 120.0
    """How long a lost parameter server may stay away, or all workers together."""
