"""What a `TrainingRun` is told: by workers, by shards, by the operator and by the clock. Immutable; no I/O.

Workers go by name here; ordinals (the order of summation) appear only towards the shards and the policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from heterotrain_core.memory import NO_MEMORY_USE, MemoryUse
from heterotrain_core.run_values import NO_TIMINGS, NO_TRAFFIC, Clip, Manifest, RunReason, Timings, Traffic
from heterotrain_core.synchronization import Synchronization
from heterotrain_core.types import Share


@dataclass(frozen=True, slots=True)
class Joined:
    """A session opened; `worker` is the certificate's name."""

    worker: str
    protocol_version: int
    library_version: str = ""
    device: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class ManifestGiven:
    """A worker has described its model."""

    worker: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class ShardsWaited:
    """Some shards do not answer yet; none named: all answer."""

    shards: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShardsConfigured:
    """All shards have laid out the model; when the job goes on from a checkpoint, they hold its version too."""


@dataclass(frozen=True, slots=True)
class WorkersSeated:
    """All shards know who may push, as of `SeatWorkers` of this number."""

    number: int


@dataclass(frozen=True, slots=True)
class InitialValuesPushed:
    """The worker that was asked for them has pushed the initial values to all shards."""

    worker: str


@dataclass(frozen=True, slots=True)
class InitialPublished:
    """All shards have published version 0."""


@dataclass(frozen=True, slots=True)
class Started:
    """A worker is ready for its first grant."""

    worker: str
    epochs: int


@dataclass(frozen=True, slots=True)
class Done:
    """A worker's gradient is on all shards; `refusal` is not empty if one of them found it not finite."""

    worker: str
    term: int
    iteration: int
    base_version: int
    samples: int
    refusal: str | None = None
    groups: tuple[str, ...] = ()
    clip: Clip | None = None
    absent: frozenset[int] = frozenset()
    timings: Timings = NO_TIMINGS
    traffic: Traffic = NO_TRAFFIC
    memory: MemoryUse = NO_MEMORY_USE


@dataclass(frozen=True, slots=True)
class Committed:
    """All shards have published ``version + 1``."""

    version: int


@dataclass(frozen=True, slots=True)
class PlanRequested:
    """The operator proposes shares, perhaps of some workers only; `generation` 0 means the next one.

    A worker that has not answered `deadline_seconds` later refuses by silence.
    """

    request: int
    generation: int
    shares: Mapping[str, Share]
    reason: str
    deadline_seconds: float
    synchronization: Synchronization | None = None
    """`None`: it stays as it is."""


@dataclass(frozen=True, slots=True)
class PlanAnswered:
    """A worker's answer to a proposal."""

    worker: str
    generation: int
    accepted: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EvaluationCalled:
    """A worker's script reached its `call`-th evaluation."""

    worker: str
    call: int
    dataset_size: int
    version: int = 0
    """What its model holds."""


@dataclass(frozen=True, slots=True)
class EvaluationPart:
    """A worker's sums over its part of the evaluation."""

    worker: str
    call: int
    sums: Mapping[str, float]
    seconds: float


@dataclass(frozen=True, slots=True)
class Reported:
    """Values that a script reports for the job's status."""

    worker: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A worker lives; with `version`, after an end of an epoch, its model holds that version."""

    worker: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """A script raised; `error` is its traceback or last lines. `lost_shard`: it ended because it lost that one.

    `too_many`: samples that it computed at once when it ran out of memory; it begins anew. 0: it did not.
    """

    worker: str
    error: str
    lost_shard: str = ""
    too_many: int = 0


@dataclass(frozen=True, slots=True)
class Leaving:
    """A worker's process was told to end: it finishes what it was granted, then says goodbye."""

    worker: str


@dataclass(frozen=True, slots=True)
class SaidGoodbye:
    """A script ended without error."""

    worker: str


@dataclass(frozen=True, slots=True)
class SessionBroken:
    """A session ended without goodbye."""

    worker: str
    detail: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time given by `TrainingRun.next_timer` may have come."""


@dataclass(frozen=True, slots=True)
class StopCommanded:
    """Finish what was granted, save the model, end as Stopped."""

    reason: str


@dataclass(frozen=True, slots=True)
class DrainCommanded:
    """Let one worker finish what it was granted and leave."""

    request: int
    worker: str


@dataclass(frozen=True, slots=True)
class ScaleCommanded:
    """Let a group have so many workers, by name: those beyond leave, new ones are expected."""

    request: int
    group: str
    replicas: int


@dataclass(frozen=True, slots=True)
class CheckpointCommanded:
    """Make a checkpoint of the newest version."""

    request: int


@dataclass(frozen=True, slots=True)
class Exported:
    """Shard 0 has written `file`; its full path is `path`."""

    file: str
    path: str


@dataclass(frozen=True, slots=True)
class ExportFailed:
    """Shard 0 could not write `file`."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """The checkpoint of `version` is whole and on disk, in the folder `path`."""

    version: int
    path: str


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """The checkpoint of `version` could not be written; older ones are as they were."""

    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class ShardFailed:
    """A shard is gone, or (with `refused`) does not accept what it is told."""

    shard: str
    detail: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Aborted:
    """The coordinator itself cannot go on."""

    reason: RunReason
    message: str


WorkerEvent: TypeAlias = (
    ManifestGiven | InitialValuesPushed | Started | Done | PlanAnswered | EvaluationCalled | EvaluationPart
    | Reported | Heartbeat | WorkerFailed | Leaving | SaidGoodbye | SessionBroken
)  # fmt: skip
RunEvent: TypeAlias = (
    WorkerEvent | Joined | ShardsWaited | ShardsConfigured | WorkersSeated | InitialPublished | Committed
    | PlanRequested | TimerFired | StopCommanded | DrainCommanded | ScaleCommanded | CheckpointCommanded | Exported
    | ExportFailed | CheckpointSaved | CheckpointFailed | ShardFailed | Aborted
)  # fmt: skip
