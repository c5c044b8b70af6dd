"""Condition types, the closed list of reasons, and how conditions change. Pure: `now` is an argument.

A condition is a statement about the job, not a step of a program. `Succeeded` is the one that ends a job: Unknown while
it is active, then True or False for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from heterotrain_api.status import Condition, ConditionStatus

MAX_MESSAGE: Final = 1024


class ConditionType(StrEnum):
    """The statements that every job makes, in the order in which they become true."""

    ACCEPTED = "Accepted"
    """The manifest is valid and the job's objects could be created."""
    PODS_READY = "PodsReady"
    """All pods of the job run and their processes answer."""
    TRAINING = "Training"
    """Rounds are being trained now."""
    PLAN_APPLIED = "PlanApplied"
    """Every live worker follows the newest plan."""
    BALANCED = "Balanced"
    """No other shares would make rounds noticeably faster, by the workers' speeds."""
    STRAGGLER_DETECTED = "StragglerDetected"
    """A worker holds the others up although it has its smallest share."""
    METRICS_AVAILABLE = "MetricsAvailable"
    """The steps of every live worker are told."""
    RECOVERING = "Recovering"
    """A part of the job was lost and does not work again yet. False at the end says what was lost in all."""
    SUCCEEDED = "Succeeded"
    """The training ended as asked for and the model is saved. Unknown while the job is active."""


class Reason(StrEnum):
    """Every reason of a condition, an event, a failure or the coordinator's state; `REASONS` explains each."""

    # Before training.
    NOT_YET_KNOWN = "NotYetKnown"
    VALID = "Valid"
    INVALID_SPEC = "InvalidSpec"
    QUOTA_EXCEEDED = "QuotaExceeded"
    CREATE_REFUSED = "CreateRefused"
    NAME_CONFLICT = "NameConflict"
    PODS_PENDING = "PodsPending"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_CONFIG_FAILED = "ContainerConfigFailed"
    VOLUME_PENDING = "VolumePending"
    PODS_CREATED = "PodsCreated"
    PODS_REPLACED = "PodsReplaced"
    ALL_PODS_READY = "AllPodsReady"
    WAITING_FOR_SHARDS = "WaitingForShards"
    WAITING_FOR_WORKERS = "WaitingForWorkers"
    WORKER_JOINED = "WorkerJoined"
    # Training and plans.
    STARTED = "Started"
    TRAINING = "Training"
    FINISHING = "Finishing"
    COORDINATOR_UNREACHABLE = "CoordinatorUnreachable"
    PLAN_PENDING = "PlanPending"
    PLAN_AGREED = "PlanAgreed"
    PLAN_DERIVED = "PlanDerived"
    PLAN_REFUSED = "PlanRefused"
    PLAN_RECOMMENDED = "PlanRecommended"
    SHARES_FIT = "SharesFit"
    SHARES_DIFFER = "SharesDiffer"
    STRAGGLER = "Straggler"
    NO_STRAGGLER = "NoStraggler"
    STRAGGLER_REPLACED = "StragglerReplaced"
    ESCALATION_EXHAUSTED = "EscalationExhausted"
    METRICS_COMPLETE = "MetricsComplete"
    METRICS_LOST = "MetricsLost"
    ADAPTATION_OFF = "AdaptationOff"
    REQUEST_ACCEPTED = "RequestAccepted"
    REQUEST_REFUSED = "RequestRefused"
    GRADIENT_NOT_FINITE = "GradientNotFinite"
    MOMENTUM_WITH_STALENESS = "MomentumWithStaleness"
    REPORT_IGNORED = "ReportIgnored"
    WORKER_DRAINED = "WorkerDrained"
    WORKER_FINISHED = "WorkerFinished"
    CHECKPOINT_SAVED = "CheckpointSaved"
    CHECKPOINT_FAILED = "CheckpointFailed"
    CHECKPOINT_UNUSABLE = "CheckpointUnusable"
    RESTORED = "Restored"
    # Losses.
    NOTHING_LOST = "NothingLost"
    POD_RESTARTED = "PodRestarted"
    RECOVERED = "Recovered"
    # Good ends.
    SUCCEEDED = "Succeeded"
    EPOCHS_COMPLETED = "EpochsCompleted"
    ROUNDS_REACHED = "RoundsReached"
    SECONDS_REACHED = "SecondsReached"
    TARGET_REACHED = "TargetReached"
    SCRIPTS_ENDED = "ScriptsEnded"
    MODEL_SAVED = "ModelSaved"
    MODEL_NOT_DURABLE = "ModelNotDurable"
    # Bad ends.
    STOPPED = "Stopped"
    WORKER_FAILED = "WorkerFailed"
    WORKER_LOST = "WorkerLost"
    SHARD_FAILED = "ShardFailed"
    COORDINATOR_FAILED = "CoordinatorFailed"
    OUT_OF_MEMORY = "OutOfMemory"
    POD_DELETED = "PodDeleted"
    EVICTED = "Evicted"
    JOIN_REFUSED = "JoinRefused"
    MODEL_MISMATCH = "ModelMismatch"
    HYPERPARAMETERS_DIFFER = "HyperparametersDiffer"
    SCRIPTS_DIFFER = "ScriptsDiffer"
    OPTIMIZER_NOT_SUPPORTED = "OptimizerNotSupported"
    SAVE_FAILED = "SaveFailed"
    # After the end.
    PODS_ENDED = "PodsEnded"


class ReasonDoc(NamedTuple):
    """What a reason means to a person."""

    cause: str
    remedy: str
    """What to do; empty: nothing."""


REASONS: Final[dict[Reason, ReasonDoc]] = {
    Reason.NOT_YET_KNOWN: ReasonDoc(
        "The operator has not looked at this aspect yet.", "Wait; after a minute read the operator's log."
    ),
    Reason.VALID: ReasonDoc("The manifest is valid and the job's objects exist.", ""),
    Reason.INVALID_SPEC: ReasonDoc(
        "The manifest breaks a rule that the API server could not check.",
        "Correct the field that the message names; `heterotrain validate` checks a file.",
    ),
    Reason.QUOTA_EXCEEDED: ReasonDoc(
        "The namespace's ResourceQuota leaves no room for the job's pods.",
        "Raise the quota, delete other pods, or ask for fewer resources or replicas.",
    ),
    Reason.CREATE_REFUSED: ReasonDoc(
        "The API server refused to create one of the job's objects.",
        "Read the API server's own words in the message; often the template or a policy of the namespace.",
    ),
    Reason.NAME_CONFLICT: ReasonDoc(
        "An object of a name that the job needs exists and belongs to somebody else.",
        "Delete that object or give the job another name.",
    ),
    Reason.PODS_PENDING: ReasonDoc("Pods are being started.", "Wait; the message names what is missing."),
    Reason.UNSCHEDULABLE: ReasonDoc(
        "No node fits a pod.", "Compare requests, nodeSelector and tolerations with `kubectl describe nodes`."
    ),
    Reason.IMAGE_PULL_FAILED: ReasonDoc(
        "A node cannot pull an image.",
        "Check spec.image, spec.imagePullSecrets and that the node reaches the image's registry.",
    ),
    Reason.CONTAINER_CONFIG_FAILED: ReasonDoc(
        "A container cannot be started as configured, for example because a ConfigMap or Secret is missing.",
        "Create what the message names.",
    ),
    Reason.VOLUME_PENDING: ReasonDoc(
        "The volume of spec.output cannot be mounted yet.", "Check the claim with `kubectl describe pvc`."
    ),
    Reason.PODS_CREATED: ReasonDoc("All pods of the job were created.", ""),
    Reason.PODS_REPLACED: ReasonDoc(
        "Pods that were gone before training began (deleted, evicted) were created again.",
        "Find out who removed them if it happens often.",
    ),
    Reason.ALL_PODS_READY: ReasonDoc("All pods run and answer.", ""),
    Reason.WAITING_FOR_SHARDS: ReasonDoc(
        "Not all parameter servers answer yet.", "Read the log of the parameter server that the message names."
    ),
    Reason.WAITING_FOR_WORKERS: ReasonDoc(
        "Not all workers have called heterotrain.join() and session.prepare().",
        "Read the log of a worker whose phase is Absent or Joined.",
    ),
    Reason.WORKER_JOINED: ReasonDoc("A worker has joined.", ""),
    Reason.STARTED: ReasonDoc("The first round was granted.", ""),
    Reason.TRAINING: ReasonDoc("Rounds are being trained.", ""),
    Reason.FINISHING: ReasonDoc(
        "Training is over; the model is being saved or workers still have work of their own.", ""
    ),
    Reason.COORDINATOR_UNREACHABLE: ReasonDoc(
        "The operator cannot reach the coordinator in pod ps-0; training goes on without it.",
        "Check network policies between the operator and the pod, and the pod's log.",
    ),
    Reason.PLAN_PENDING: ReasonDoc(
        "A plan was proposed and is not in force yet.", "Wait for the round that status.plan names."
    ),
    Reason.PLAN_AGREED: ReasonDoc("All live workers follow the plan.", ""),
    Reason.PLAN_DERIVED: ReasonDoc("The coordinator gave a missing worker's share to the others by itself.", ""),
    Reason.PLAN_REFUSED: ReasonDoc(
        "The coordinator or a worker refused a plan; the one before stays in force.",
        "Keep the sum of the shares equal to globalBatchSize, and each share on the grain from batch.min to batch.max.",
    ),
    Reason.PLAN_RECOMMENDED: ReasonDoc(
        "Other shares would make rounds faster; spec.adaptation.mode is Recommend, so they are only shown.",
        "Set the mode to Apply, or the shares with `heterotrain plan set`.",
    ),
    Reason.SHARES_FIT: ReasonDoc("By the workers' speeds other shares would gain less than the dead band.", ""),
    Reason.SHARES_DIFFER: ReasonDoc(
        "By the workers' speeds other shares would make rounds faster; the message says what they wait for.",
        "Wait; if the shares are frozen, find out why the speed of a worker goes up and down.",
    ),
    Reason.STRAGGLER: ReasonDoc(
        "A worker takes longer than the others although it has its smallest share.",
        "Lower batch.min of its group, find out what slows its node down, or drain it.",
    ),
    Reason.NO_STRAGGLER: ReasonDoc("No worker holds the others up.", ""),
    Reason.STRAGGLER_REPLACED: ReasonDoc(
        "The pod of a worker that holds the others up is deleted and made again, if it can be on another node"
        " (spec.adaptation.escalation).",
        "The message says why it was slow.",
    ),
    Reason.ESCALATION_EXHAUSTED: ReasonDoc(
        "All that spec.adaptation.escalation names was tried against a worker that holds the others up; training goes"
        " on.",
        "Find out what slows its node down, drain the worker, or lower batch.min of its group.",
    ),
    Reason.METRICS_COMPLETE: ReasonDoc("The steps of all workers are told.", ""),
    Reason.METRICS_LOST: ReasonDoc(
        "The steps of a worker are not told, or the times mean nothing: its share stays, then start shares hold.",
        "Read the worker's log.",
    ),
    Reason.ADAPTATION_OFF: ReasonDoc(
        "spec.adaptation.mode is Off: shares change by hand only.", "Set the mode to Apply or Recommend."
    ),
    Reason.REQUEST_ACCEPTED: ReasonDoc("A request in an annotation of the job (plan, command) was carried out.", ""),
    Reason.REQUEST_REFUSED: ReasonDoc(
        "A request in an annotation of the job (plan, command) cannot be read, or the coordinator refused it.",
        "Read the message; `heterotrain plan set` and `heterotrain stop` write requests that can be read.",
    ),
    Reason.GRADIENT_NOT_FINITE: ReasonDoc(
        "A gradient with NaN or infinity was discarded on all shards; its samples count as used.",
        "If it happens often, lower the learning rate, clip the norm, or check the data.",
    ),
    Reason.MOMENTUM_WITH_STALENESS: ReasonDoc(
        "Gradients are applied to newer parameters than they were computed on, and the optimizer has momentum, which"
        " multiplies the harm of that.",
        "Lower the momentum, the learning rate or the staleness bound; the message has the largest stable rate.",
    ),
    Reason.REPORT_IGNORED: ReasonDoc(
        "A reported value could not be taken, as the message says.",
        "Give session.report() finite numbers under few, short names.",
    ),
    Reason.WORKER_DRAINED: ReasonDoc("A worker finished what it was granted and left as asked.", ""),
    Reason.WORKER_FINISHED: ReasonDoc("A worker's script ended without error.", ""),
    Reason.CHECKPOINT_SAVED: ReasonDoc("The whole state of the training at one version was written.", ""),
    Reason.CHECKPOINT_FAILED: ReasonDoc(
        "A checkpoint could not be written; the training goes on, and the checkpoints before it are as they were.",
        "Check space and rights of spec.output.volume.",
    ),
    Reason.CHECKPOINT_UNUSABLE: ReasonDoc(
        "A checkpoint is damaged or not whole, so the one before it was taken.",
        "Look at the file that the message names; what the disk damaged once it may damage again.",
    ),
    Reason.RESTORED: ReasonDoc(
        "A part of the job was lost and the training has gone back to a checkpoint; the message says how many rounds"
        " that cost.",
        "If it happens often, look at what ended the part that was lost; spec.checkpoint bounds what a loss costs.",
    ),
    Reason.NOTHING_LOST: ReasonDoc("No pod was lost since training began.", ""),
    Reason.POD_RESTARTED: ReasonDoc(
        "A pod was lost while the job trained and is started again, at most spec.runPolicy.backoffLimit times.",
        "The message says what ended it; if its node did, see to that.",
    ),
    Reason.RECOVERED: ReasonDoc(
        "What was lost while the job trained is there again; the message says what it was and what that cost.", ""
    ),
    Reason.SUCCEEDED: ReasonDoc("The training ended as asked for and the model is saved.", ""),
    Reason.EPOCHS_COMPLETED: ReasonDoc("The last epoch of the script is over.", ""),
    Reason.ROUNDS_REACHED: ReasonDoc("spec.stop.rounds was reached.", ""),
    Reason.SECONDS_REACHED: ReasonDoc("spec.stop.seconds was reached.", ""),
    Reason.TARGET_REACHED: ReasonDoc("The value of spec.stop.target was reached.", ""),
    Reason.SCRIPTS_ENDED: ReasonDoc(
        "All scripts ended before their last epoch, without error.",
        "If that was not meant, look for a break or return in the script's loop.",
    ),
    Reason.MODEL_SAVED: ReasonDoc("The model is saved; status.model says where.", ""),
    Reason.MODEL_NOT_DURABLE: ReasonDoc(
        "The model lies in the pod of parameter server 0 and goes with it.",
        "Give spec.output.volume a claim. Until the pod is deleted, the file can be read on its node.",
    ),
    Reason.STOPPED: ReasonDoc("Somebody asked the job to stop; the model so far is saved.", ""),
    Reason.WORKER_FAILED: ReasonDoc(
        "A worker's script ended with an error.", "Read status.failure and the worker's log; correct the script."
    ),
    Reason.WORKER_LOST: ReasonDoc(
        "A worker's connection broke, or it was silent for longer than synchronization.leaseSeconds.",
        "Look at the worker's pod and node; raise leaseSeconds if the network or the node stalls.",
    ),
    Reason.SHARD_FAILED: ReasonDoc(
        "A parameter server ended or stopped answering.", "Read its log; often it needs more memory."
    ),
    Reason.COORDINATOR_FAILED: ReasonDoc(
        "The coordinator ended with an error.", "Read the log of container coordinator in pod ps-0."
    ),
    Reason.OUT_OF_MEMORY: ReasonDoc(
        "A container used more memory than its limit and was killed.",
        "Raise resources.limits.memory, or lower batch.max for the group.",
    ),
    Reason.POD_DELETED: ReasonDoc(
        "A pod of the job was deleted and could not be started again.",
        "Find out who deleted it; create the job again, with spec.checkpoint and a claim in spec.output.volume.",
    ),
    Reason.EVICTED: ReasonDoc(
        "A node evicted a pod, or the node went away, and the pod could not be started again.",
        "Give requests that cover what the pod uses; create the job again, with spec.checkpoint and a claim in"
        " spec.output.volume.",
    ),
    Reason.JOIN_REFUSED: ReasonDoc(
        "The coordinator refused a worker: wrong certificate, unknown name or another version of heterotrain.",
        "Build the image from the trainer image of the operator's version.",
    ),
    Reason.MODEL_MISMATCH: ReasonDoc(
        "A worker's model has other tensors than the first worker's.",
        "Build the same model on every worker, whatever its device or share.",
    ),
    Reason.HYPERPARAMETERS_DIFFER: ReasonDoc(
        "Workers gave different hyperparameters for the same round.",
        "Compute learning rates and clipping from the session's schedule, not from local state.",
    ),
    Reason.SCRIPTS_DIFFER: ReasonDoc(
        "The workers' scripts do not ask for the same epochs or the same evaluations.",
        "Run the same script with the same settings on every worker.",
    ),
    Reason.OPTIMIZER_NOT_SUPPORTED: ReasonDoc(
        "The optimizer is not one of the classes that can run on shards.",
        "Take one of the classes that the message lists.",
    ),
    Reason.SAVE_FAILED: ReasonDoc("The model could not be written.", "Check space and rights of spec.output.volume."),
    Reason.PODS_ENDED: ReasonDoc(
        "Pods that still ran half a minute after the end of the job were deleted.",
        "Let the script, and containers beside it, end by themselves.",
    ),
}


class Change(NamedTuple):
    """Conditions after `set_condition`."""

    conditions: tuple[Condition, ...]
    changed: bool
    """Whether anything but the generation differs, so that somebody should be told."""


def set_condition(
    conditions: Sequence[Condition],
    kind: ConditionType,
    status: ConditionStatus,
    reason: Reason,
    message: str = "",
    *,
    generation: int,
    now: datetime,
) -> Change:
    """Replace or add the condition `kind`; foreign conditions stay, in their order.

    `lastTransitionTime` moves only when the status changes. The message is cut to one line of `MAX_MESSAGE` characters.
    """
    old = get_condition(conditions, kind)
    new = Condition(
        type=kind.value,
        status=status,
        observed_generation=generation,
        last_transition_time=old.last_transition_time if old is not None and old.status == status else now,
        reason=reason.value,
        message=one_line(message),
    )
    if old is None:
        return Change((*conditions, new), changed=True)
    changed = (old.status, old.reason, old.message) != (new.status, new.reason, new.message)
    return Change(tuple(new if c.type == kind else c for c in conditions), changed)


def initial_conditions(*, generation: int, now: datetime) -> tuple[Condition, ...]:
    """All known conditions as Unknown: what is written at first sight of a job."""
    conditions: tuple[Condition, ...] = ()
    for kind in ConditionType:
        conditions = set_condition(
            conditions, kind, ConditionStatus.UNKNOWN, Reason.NOT_YET_KNOWN, generation=generation, now=now
        ).conditions
    return conditions


def get_condition(conditions: Sequence[Condition], kind: ConditionType) -> Condition | None:
    """The condition `kind`, if it was ever set."""
    return next((c for c in conditions if c.type == kind), None)


def is_true(conditions: Sequence[Condition], kind: ConditionType) -> bool:
    """Whether the condition `kind` is set and True."""
    condition = get_condition(conditions, kind)
    return condition is not None and condition.status is ConditionStatus.TRUE


def is_finished(conditions: Sequence[Condition]) -> bool:
    """Whether the job is over, well or not. What is over never runs again."""
    succeeded = get_condition(conditions, ConditionType.SUCCEEDED)
    return succeeded is not None and succeeded.status is not ConditionStatus.UNKNOWN


def display_state(conditions: Sequence[Condition]) -> str:
    """One word for a person, with the reason where it helps: ``Training``, ``Failed: WorkerLost``."""
    succeeded, accepted, ready, training = (
        get_condition(conditions, kind)
        for kind in (ConditionType.SUCCEEDED, ConditionType.ACCEPTED, ConditionType.PODS_READY, ConditionType.TRAINING)
    )
    state: str
    match _status(succeeded), _status(accepted), _status(training), _status(ready):
        case ConditionStatus.TRUE, _, _, _:
            state = "Succeeded"
        case ConditionStatus.FALSE, _, _, _:
            stopped = succeeded is not None and succeeded.reason == Reason.STOPPED
            state = "Stopped" if stopped else _with_reason("Failed", succeeded)
        case _, ConditionStatus.UNKNOWN, _, _:
            state = "Pending"
        case _, ConditionStatus.FALSE, _, _:
            state = _with_reason("Blocked", accepted)
        case _, _, ConditionStatus.TRUE, _:
            state = "Training"
        case _, _, _, ConditionStatus.TRUE:
            state = _with_reason("Running", training)
        case _:
            state = _with_reason("Starting", ready)
    return state


def _status(condition: Condition | None) -> ConditionStatus:
    return ConditionStatus.UNKNOWN if condition is None else condition.status


def _with_reason(state: str, condition: Condition | None) -> str:
    return state if condition is None or condition.reason == Reason.NOT_YET_KNOWN else f"{state}: {condition.reason}"


def one_line(text: str) -> str:
    """`text` without line breaks, cut to `MAX_MESSAGE` characters."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"
