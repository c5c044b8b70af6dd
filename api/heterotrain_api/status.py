"""The status of a `HeteroTrainJob`: what the job does now, written by the operator only, one write per pass.

Numbers are integers where they can be, so that a status that did not change looks the same. Enumerations are plain
strings here: an older operator must be able to read what a newer one wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final, TypeAlias

from pydantic import AwareDatetime, Field, PlainSerializer

from heterotrain_api.fields import ATOMIC, INT32_MAX, Count, Message, Resource, keyed_by, without_empty

MAX_GROUP_ROWS: Final = 16
"""As many as a job may have groups."""
MAX_RESTARTS: Final = 400
"""Places of a job, at most."""
MAX_DECISIONS: Final = 12
"""Entries that `HeteroTrainJobStatus.decisions` keeps, the newest ones."""
MAX_RECORD: Final = 8192
"""Characters of `AdaptationDecision.record`."""
MAX_REQUESTS: Final = 16
"""Answers that `HeteroTrainJobStatus.requests` keeps, the newest ones."""

MAX_ROWS: Final = 64
"""Rows of `HeteroTrainJobStatus.workers`; a larger job shows its first ones and the totals."""


def format_time(time: datetime) -> str:
    """`time` as Kubernetes writes it: UTC, whole seconds, ``2026-01-31T12:00:00Z``."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


Time: TypeAlias = Annotated[AwareDatetime, PlainSerializer(format_time, return_type=str, when_used="json")]
Reason: TypeAlias = Annotated[
    str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
]
ReadyCount: TypeAlias = Annotated[str, Field(max_length=16, pattern=r"^[0-9]+/[0-9]+$")]
Percent: TypeAlias = Annotated[int, Field(ge=0, le=1000)]
Samples: TypeAlias = Annotated[int, Field(ge=0, le=INT32_MAX)]


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class WorkerPhase(StrEnum):
    """What a worker does now (`WorkerRow.phase`)."""

    ABSENT = "Absent"
    """Its process does not run, or has not joined yet."""
    JOINED = "Joined"
    """Joined; the model is not agreed on yet."""
    TRAINING = "Training"
    FINISHED = "Finished"
    """Said goodbye after its last work."""
    LOST = "Lost"
    """Connection or lease lost, or it reported an error."""


class Condition(Resource):
    """One aspect of the object, as a statement that is True, False or Unknown."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """Name of the aspect, in CamelCase."""
    status: ConditionStatus
    """Whether it holds."""
    observed_generation: Count = 0
    """Generation of the manifest that this statement is about."""
    last_transition_time: Time
    """When the status last changed."""
    reason: Reason
    """Why, as one word of the documented list."""
    message: Message = ""
    """Why, in words, for people."""


class Progress(Resource):
    """How far the training is."""

    epoch: Count = 0
    """Epoch that is trained now, counted from 0; epochs once all are over."""
    epochs: Count = 0
    """Epochs that the script asks for; 0 while not known."""
    round: Count = 0
    """Rounds done (updates of the parameters)."""
    rounds: Count = 0
    """Rounds that the whole training comes to; 0 while not known."""
    samples: Count = 0
    """Samples used up, over all epochs."""
    step: Annotated[str, Field(max_length=48)] = ""
    """Rounds done of rounds in all, for display: 120/354."""


class Efficiency(Resource):
    """How well the machines are used, over the last rounds."""

    samples_per_second: Count = 0
    """Speed of the job, in samples a second."""
    ideal_samples_per_second: Count = 0
    """Sum of the workers' own speeds, in samples a second: what could be reached if nobody ever waited."""
    percent_of_ideal: Percent = 0
    """Speed of the job in percent of the sum of the workers' own speeds. 100: nobody ever waits; what is missing goes
    into waiting for others, transfers and updates.
    """
    idle_percent: Percent = 0
    """Part of their time that workers wait for others and for transfers, on average, in percent."""
    imbalance_percent: Percent = 0
    """How much less time the fastest worker computes in a round than the slowest, in percent of the slowest's."""
    pushed_bytes_per_sample: Count = 0
    """Bytes that workers send to the parameter servers, for each sample: larger batches need fewer."""
    pulled_bytes_per_sample: Count = 0
    """Bytes that workers get from the parameter servers, for each sample."""


class PlanStatus(Resource):
    """The plan in force: who gets which share. The shares are in the workers' rows."""

    generation: Count = 0
    """Number of the newest plan."""
    applied_generation: Count = 0
    """Number of the plan that the workers follow now; lower than generation until the newer one is in force."""
    effective_round: Count = 0
    """First round of the newest plan."""
    reason: Message = ""
    """Why the plan was made, in words."""


class SynchronizationStatus(Resource):
    """How workers wait for each other, and how stale gradients really were."""

    mode: Annotated[str, Field(max_length=16)] = ""
    """Mode in force."""
    staleness_bound: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    """Bound in force: iterations ahead (SSP, DSSP) or rounds (Delay); 0 under BSP. Left out: no bound."""
    wanted: Annotated[str, Field(max_length=128)] = ""
    """Mode and bounds as last asked for, in words; in force once older gradients are in."""
    largest_staleness: Count = 0
    """Largest staleness of any gradient applied, in versions of the parameters."""
    mean_staleness_milli: Count = 0
    """Mean staleness of the gradients applied, in thousandths of a version."""
    staleness: Annotated[str, Field(max_length=48)] = ""
    """Largest staleness seen, and the bound in force, for display: 2 (bound 3)."""


class WorkerRow(Resource):
    """One worker."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """Name of the worker in the job: <group>-<index>."""
    group: Annotated[str, Field(max_length=63)] = ""
    """Group that the worker belongs to."""
    pod: Annotated[str, Field(max_length=253)] = ""
    """Name of its pod."""
    node: Annotated[str, Field(max_length=253)] = ""
    """Name of the node that the pod runs on."""
    phase: Annotated[str, Field(max_length=32)] = WorkerPhase.ABSENT.value
    """What the worker does now: Absent, Joined, Training, Finished or Lost."""
    share: Samples = 0
    """Share in the newest plan, in samples a round."""
    applied_share: Samples = 0
    """Share in the worker's last round, in samples."""
    samples_per_second: Count = 0
    """Own speed while computing, in samples a second; 0 while not known."""
    step_milliseconds: Count = 0
    """Median time from one round to the next, in milliseconds."""
    wait_milliseconds: Count = 0
    """Median part of it spent waiting for the others and for transfers, in milliseconds."""
    message: Message = ""
    """Last error, or what the worker waits for."""

    def to_document(self) -> dict[str, Any]:
        """As of every resource, without figures before there are any."""
        document = super().to_document()
        figures = [name for name, value in document.items() if isinstance(value, int)]
        return document if any(document[name] for name in figures) else _left_out(document, figures)


class ReportedValue(Resource):
    """A value that the script reported."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    """Name of the value, as given to session.report(<name>=...)."""
    value: Annotated[str, Field(max_length=64)]
    """Newest value, as a decimal number."""


class Model(Resource):
    """The trained model."""

    path: Annotated[str, Field(max_length=4096)]
    """Path of the model file, seen from parameter server 0."""
    volume: Annotated[str, Field(max_length=253)] = ""
    """Volume that holds it, as kind/name: persistentVolumeClaim/fashion."""
    durable: bool = False
    """Whether the file outlives the job's pods."""


class Failure(Resource):
    """What made the job fail first."""

    pod: Annotated[str, Field(max_length=253)] = ""
    """Name of the pod."""
    container: Annotated[str, Field(max_length=63)] = ""
    """Name of the container."""
    exit_code: Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX)] | None = None
    """Exit code of the container; left out if it never ran."""
    reason: Reason
    """Why, as one word of the documented list."""
    message: Message = ""
    """Last error line, or what the API server said."""


class GroupStatus(Resource):
    """A worker group as the job has it now; spec has what is wanted."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """Name of the group."""
    replicas: Count = 0
    """Workers that the job counts on."""


class Restart(Resource):
    """A pod that was lost while the job trained and was started again."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """Name in the job of what was lost: ps-0, cpu-1."""
    count: Count = 1
    """How often it was started again."""
    attempt: Count = 0
    """Attempt that takes the place of the newest one that was lost."""
    pod: Annotated[str, Field(max_length=253)] = ""
    """Name of the pod of that attempt, once it exists."""
    reason: Reason
    """Why the newest one was lost, as one word of the documented list."""
    message: Message = ""
    """The same in words."""
    time: Time
    """When it was found to be lost."""
    term: Count = 0
    """Term in which the job had trained then; a parameter server is made good in a later one. 0: not known."""


class Recovery(Resource):
    """What was lost while the job trained, and what that cost."""

    restarts: Annotated[tuple[Restart, ...], Field(max_length=MAX_RESTARTS, json_schema_extra=keyed_by("name"))] = ()
    """Pods that were started again, one entry for each place in the job."""
    restores: Count = 0
    """How often the training went back to a checkpoint."""
    rounds_lost: Count = 0
    """Rounds that were trained again because of that."""
    checkpoint_version: Count | None = None
    """Version of the newest whole checkpoint; left out: none is known."""


class AdaptationDecision(Resource):
    """Something that the adaptation did, what came of it, or how it last found the shares."""

    time: Time
    """When it was decided."""
    action: Annotated[str, Field(max_length=16)]
    """What was done: Propose, RollBack, FallBack, Relax, Replace, GiveUp, Recommend, Answer or Keep."""
    message: Message = ""
    """Why, in words."""
    record: Annotated[str, Field(max_length=MAX_RECORD)] = ""
    """All that it rests on, as JSON: samples, speeds, findings, gain. heterotrain explain shows it."""


class RequestAnswer(Resource):
    """What became of a request that a user wrote into an annotation of the job."""

    id: Annotated[str, Field(min_length=1, max_length=63)]
    """Id that the request carries."""
    accepted: bool
    """Whether it was carried out: the plan is in force, the command was done."""
    message: Message = ""
    """What was done, or why it was refused."""


class HeteroTrainJobStatus(Resource):
    """What the job does now. Written by the operator only."""

    conditions: Annotated[tuple[Condition, ...], Field(max_length=32, json_schema_extra=keyed_by("type"))] = ()
    """Statements about the job; Succeeded is True or False once it is over."""
    observed_generation: Count = 0
    """Generation of the manifest that the operator has acted on."""
    state: Annotated[str, Field(max_length=128)] = ""
    """Summary of the conditions, for display only."""
    start_time: Time | None = None
    """When the operator first acted on the job."""
    training_start_time: Time | None = None
    """When the operator first saw rounds being trained. From then on a pod that is lost is counted in recovery."""
    completion_time: Time | None = None
    """When the job was over."""
    update_time: Time | None = None
    """When this status was written; figures are at most half a minute older."""
    progress: Progress = Progress()
    """How far the training is."""
    efficiency: Efficiency = Efficiency()
    """How well the machines are used, over the last rounds."""
    synchronization: SynchronizationStatus = SynchronizationStatus()
    """How workers wait for each other now."""
    ready_workers: ReadyCount | None = None
    """Workers that have joined, of all workers: 4/4."""
    ready_parameter_servers: ReadyCount | None = None
    """Parameter servers that answer, of all: 2/2."""
    plan: PlanStatus = PlanStatus()
    """The plan in force."""
    workers: Annotated[tuple[WorkerRow, ...], Field(max_length=MAX_ROWS, json_schema_extra=keyed_by("name"))] = ()
    """One row per worker, the first ones of a larger job."""
    reported: Annotated[tuple[ReportedValue, ...], Field(max_length=64, json_schema_extra=keyed_by("name"))] = ()
    """Newest values that the script reported."""
    decisions: Annotated[tuple[AdaptationDecision, ...], Field(max_length=MAX_DECISIONS, json_schema_extra=ATOMIC)] = ()
    """What the adaptation decided lately, the newest last."""
    model: Model | None = None
    """The trained model, once it is saved."""
    failure: Failure | None = None
    """What made the job fail first."""
    groups: Annotated[
        tuple[GroupStatus, ...], Field(max_length=MAX_GROUP_ROWS, json_schema_extra=keyed_by("name"))
    ] = ()
    """How many workers each group has now."""
    recovery: Recovery = Recovery()
    """What was lost while the job trained, and what that cost."""
    requests: Annotated[
        tuple[RequestAnswer, ...], Field(max_length=MAX_REQUESTS, json_schema_extra=keyed_by("id"))
    ] = ()
    """Answers to the newest requests in the annotations heterotrain.io/plan-request and heterotrain.io/command."""
    attempt: Count = 0
    """Highest attempt of any pod, once all pods existed together; a pod that is made again gets a higher one."""
    last_event_sequence: Count = 0
    """Newest of the coordinator's events that was shown as an event of the job."""

    def to_document(self) -> dict[str, Any]:
        """As of every resource, without what says nothing: empty texts and lists, and parts that are not known yet.

        The status is written whole, so that what is left out goes from the API server too.
        """
        unknown = [
            str(info.alias)
            for name, info in type(self).model_fields.items()
            if isinstance(info.default, Resource) and getattr(self, name) == info.default
        ]
        rows = [row.to_document() for row in self.workers]
        return without_empty(_left_out({**super().to_document(), "workers": rows}, unknown))


def _left_out(document: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}
