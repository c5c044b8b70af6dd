"""What a `TrainingRun` wants done: messages to workers, calls of shards, answers, the end. Immutable; no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from heterotrain_core.progress import Progress
from heterotrain_core.run_values import Clip, Manifest, Outcome
from heterotrain_core.types import Bounds, EpochEnd, Grant, Plan, TrainingEnd


@dataclass(frozen=True, slots=True)
class Welcome:
    """A session is open."""

    ordinal: int
    incarnation: int
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class ManifestAccepted:
    """The model is agreed; with `push_initial_values` this worker gives the values, else it pulls `version`."""

    push_initial_values: bool
    version: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """A grant, an end of an epoch or the end of training, with where schedules by samples then stand."""

    item: Grant | EpochEnd | TrainingEnd
    schedule_step: int
    dropped: bool = False
    """The gradient that the worker handed in last came too late: it is in no version."""


@dataclass(frozen=True, slots=True)
class PlanProposal:
    """To be accepted or refused."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class EvaluationWork:
    """Samples ``start <= i < stop`` of the evaluation's data set; may be none."""

    call: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class EvaluationOutcome:
    """Sums over all samples."""

    call: int
    sums: Mapping[str, float]
    samples: int


Message: TypeAlias = Welcome | ManifestAccepted | Work | PlanProposal | EvaluationWork | EvaluationOutcome


@dataclass(frozen=True, slots=True)
class Send:
    """Give a worker a message."""

    worker: str
    message: Message


@dataclass(frozen=True, slots=True)
class RefuseJoin:
    """End the session that has just asked to join; a live one of the same name goes on."""

    worker: str
    reason: str
    retry: bool = False
    """It may be let in later."""


@dataclass(frozen=True, slots=True)
class Dismiss:
    """End a worker's session; `fault`: the job has failed. `again`: its script may begin anew and join again."""

    worker: str
    reason: str
    fault: bool
    again: bool = False


@dataclass(frozen=True, slots=True)
class ConfigureShards:
    """Have all shards lay out the model; answered by `ShardsConfigured`."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class SeatWorkers:
    """Tell all shards who may push, after the commits that were decided before; answered by `WorkersSeated`."""

    number: int
    workers: tuple[tuple[str, int], ...]
    """By ordinal: the name, and the least incarnation that may push."""


@dataclass(frozen=True, slots=True)
class GroupsChanged:
    """How many workers each group shall have from now on, in every later term too."""

    replicas: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PublishInitial:
    """Have all shards publish version 0; answered by `InitialPublished`."""


@dataclass(frozen=True, slots=True)
class GradientKey:
    """Which gradient: of which worker (ordinal), pushed by which incarnation, in which iteration."""

    worker: int
    incarnation: int
    iteration: int


@dataclass(frozen=True, slots=True)
class CommitRound:
    """Have all shards make ``version + 1`` of `version`; answered by `Committed`. Executed strictly in order."""

    version: int
    contributions: tuple[tuple[GradientKey, float], ...]
    """In worker order, with weights that sum to 1."""
    scale: float
    groups: tuple[str, ...]
    absent: tuple[int, ...]
    retain: tuple[int, ...]
    clip: Clip | None
    discard: tuple[GradientKey, ...]
    compensation: float = 0.0
    """Strength of the delay compensation of contributions that were computed on an older version; 0: none."""


@dataclass(frozen=True, slots=True)
class Export:
    """Once `version` is published: have shard 0 write it; answered by `Exported` or `ExportFailed`."""

    version: int
    file: str


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    """Once `progress.version` is published, before the next commit: have all shards hold it, and shard 0 write it.

    Answered by `CheckpointSaved` or `CheckpointFailed`; commits go on meanwhile.
    """

    progress: Progress


@dataclass(frozen=True, slots=True)
class Refusal:
    """Who refused a plan and why; no worker: the coordinator."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """The verdict on a `PlanRequested`; without refusals the plan is in force from `effective_round`."""

    request: int
    generation: int
    effective_round: int = -1
    refusals: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerCommand:
    """The answer to a command that has a request number."""

    request: int
    accepted: bool
    reason: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing follows; tell the shards to end, leave the outcome, exit."""

    outcome: Outcome


Effect: TypeAlias = (
    Send | RefuseJoin | Dismiss | ConfigureShards | SeatWorkers | GroupsChanged | PublishInitial | CommitRound | Export
    | SaveCheckpoint | AnswerPlan | AnswerCommand | Finish
)  # fmt: skip
