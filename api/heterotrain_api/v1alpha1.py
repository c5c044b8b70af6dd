"""The resource `HeteroTrainJob` in version v1alpha1: what a user writes. Read from top to bottom it is the manual.

The text below each field is its description in the CRD (``kubectl explain``); `heterotrain_api.crd` adds range and
default from the declaration. Rules over several fields are in `heterotrain_api.rules`, the status in
`heterotrain_api.status`.

Once the job exists, everything that decides what is computed cannot be changed (`heterotrain_api.immutability`): no
running process would take the change up. Image pull settings, resources, node selectors, tolerations and templates can
be edited; pods created from then on use them, running pods stay as they are.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import AwareDatetime, BaseModel, Field

from heterotrain_api.contract import API_VERSION
from heterotrain_api.fields import (
    ATOMIC,
    INT32_MAX,
    INT_OR_STRING,
    Argument,
    LabelValue,
    Name,
    Opaque,
    Quantity,
    Resource,
    keyed_by,
    said,
)
from heterotrain_api.status import (
    Condition,
    ConditionStatus,
    Efficiency,
    Failure,
    HeteroTrainJobStatus,
    Model,
    PlanStatus,
    Progress,
    ReportedValue,
    RequestAnswer,
    WorkerPhase,
    WorkerRow,
)

__all__ = [
    "Adaptive",
    "Batch",
    "Condition",
    "ConditionStatus",
    "Device",
    "Discount",
    "Dssp",
    "Efficiency",
    "EnvVar",
    "Escalation",
    "Failure",
    "HeteroTrainJob",
    "HeteroTrainJobSpec",
    "HeteroTrainJobStatus",
    "ImagePullPolicy",
    "Model",
    "Normalization",
    "ObjectMeta",
    "Output",
    "ParameterServers",
    "PlanStatus",
    "PodTemplate",
    "Progress",
    "ReportedValue",
    "RequestAnswer",
    "Resources",
    "Stop",
    "SyncMode",
    "Synchronization",
    "Target",
    "Toleration",
    "Volume",
    "WorkerGroup",
    "WorkerPhase",
    "WorkerRow",
]

KIND: Final = "HeteroTrainJob"
PLURAL: Final = "heterotrainjobs"
SINGULAR: Final = "heterotrainjob"
SHORT_NAME: Final = "htj"

MAX_BATCH: Final = 2**20
MAX_GROUPS: Final = 16
MAX_REPLICAS: Final = 256
"""Of one worker group."""
MAX_PARAMETER_SERVERS: Final = 64
MAX_STALENESS: Final = 100_000
"""Bounds above it bind nobody: they are refused as slips of the pen."""

UNBOUNDED: Final = "None"
"""What stands in place of a number that is no limit."""

_NO_LIMIT: Final = Field(json_schema_extra={INT_OR_STRING: True})
_NoLimit = Annotated[
    str,
    Field(
        max_length=4,
        pattern=f"^{UNBOUNDED}$",
        json_schema_extra=said(f"a number, or the word {UNBOUNDED} for no limit"),
    ),
]
Bound = Annotated[Annotated[int, Field(ge=0, le=MAX_STALENESS)] | _NoLimit, _NO_LIMIT]
"""A staleness bound, or the word None."""
Window = Annotated[Annotated[int, Field(ge=0, le=3_600_000)] | _NoLimit, _NO_LIMIT]
"""Milliseconds, or the word None."""


FOLDER: Final = r"^[A-Za-z0-9_][-A-Za-z0-9_.]*(/[A-Za-z0-9_][-A-Za-z0-9_.]*)*$"
"""A relative path that stays where it begins."""
_FOLDER: Final = said(
    "a path of names of letters, digits, -, _ and ., none of which begins with - or ., with / between"
)


class ImagePullPolicy(StrEnum):
    """When a node pulls an image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class Device(StrEnum):
    """What a worker computes on."""

    CPU = "CPU"
    CUDA = "CUDA"


class SyncMode(StrEnum):
    """How workers wait for each other."""

    BSP = "BSP"
    """Every round waits for the gradients of all workers."""
    ASP = "ASP"
    """Every gradient is applied at once; nobody waits."""
    SSP = "SSP"
    """Every gradient is applied at once; no worker starts more than `stalenessBound` iterations ahead."""
    DSSP = "DSSP"
    """SSP with a bound that moves between `dssp.lower` and `dssp.lower` + `dssp.range`."""
    DELAY = "Delay"
    """A round closes a window after its first gradient; no gradient is more than `stalenessBound` rounds old."""
    BACKUP = "Backup"
    """A round does not wait for its last `backupWorkers` workers; late gradients are dropped, their samples given
    out again.
    """


class Discount(StrEnum):
    """How much less a stale gradient counts."""

    NONE = "None"
    INVERSE = "Inverse"
    """1 / (1 + tau)."""
    POLYNOMIAL = "Polynomial"
    """(1 + tau) ^ -`discountExponent`."""
    STALENESS_AWARE = "StalenessAware"
    """1 / tau from tau 1 on."""


class Normalization(StrEnum):
    """What the weights of a round's gradients are divided by."""

    TARGET = "Target"
    """The global batch: each sample moves the parameters as under BSP."""
    ARRIVED = "Arrived"
    """What has arrived: a full step each round."""


class TolerationOperator(StrEnum):
    """How a toleration's value is compared with a taint's."""

    EQUAL = "Equal"
    EXISTS = "Exists"


class TaintEffect(StrEnum):
    """What a taint does to pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class EnvVar(Resource):
    """One environment variable."""

    name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=256,
            pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$",
            json_schema_extra=said("letters, digits, -, _ and ., with no digit first"),
        ),
    ]
    """Name of the variable. Names that begin with HETEROTRAIN_ are reserved for the job's own settings."""
    value: Argument = ""
    """Value of the variable."""


class LocalObjectReference(Resource):
    """An object of the job's namespace."""

    name: Name
    """Name of the Secret, in the job's namespace."""


class Resources(Resource):
    """Compute resources of a container, as in a pod."""

    requests: Annotated[dict[str, Quantity], Field(max_length=16)] = Field(default_factory=dict)
    """Amounts that the node must have free, by resource (cpu, memory, nvidia.com/gpu)."""
    limits: Annotated[dict[str, Quantity], Field(max_length=16)] = Field(default_factory=dict)
    """Amounts that the container cannot exceed, by resource (cpu, memory, nvidia.com/gpu)."""


class Toleration(Resource):
    """A node taint that the pod accepts, as in a pod."""

    key: Annotated[str, Field(max_length=317)] | None = None
    """Key of the taint. Without it and with operator Exists every taint is accepted."""
    operator: TolerationOperator | None = None
    """How the key's value is compared. Equal if not given."""
    value: Annotated[str, Field(max_length=63)] | None = None
    """Value of the taint, for operator Equal."""
    effect: TaintEffect | None = None
    """Effect of the taint. Without it all effects are accepted."""
    toleration_seconds: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    """Seconds for which a NoExecute taint is accepted. Without it for ever."""


class PodTemplate(Resource):
    """Anything else of a pod. The operator merges its own containers, names and volumes into it."""

    metadata: Opaque | None = None
    """Labels and annotations of the pods, as in a Pod. Labels below heterotrain.io/ are set by the operator."""
    spec: Opaque | None = None
    """Pod spec to start from, as in a Pod. The container named trainer is the one that trains; others run beside it."""


class Batch(Resource):
    """Start value and bounds of one worker's share, in samples a round. They hold for each worker of the group."""

    initial: Annotated[int, Field(ge=1, le=MAX_BATCH)] | None = None
    """Share of each worker in the first round, in samples, before any speed is known. Equal parts if not given."""
    min: Annotated[int, Field(ge=1, le=MAX_BATCH)] = 1
    """Smallest share of each worker, in samples a round."""
    max: Annotated[int, Field(ge=1, le=MAX_BATCH)] | None = None
    """Largest share of each worker, in samples a round: what fits the device's memory. globalBatchSize if not given."""


class WorkerGroup(Resource):
    """Workers that are alike: same template, same device, same bounds."""

    name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=32,
            pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$",
            json_schema_extra=said("small letters, digits and -, with a letter first and no - at the end"),
        ),
    ]
    """Name of the group: small letters, digits, -; begins with a letter; not ps. Workers are named <name>-<index>."""
    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 1
    """Number of workers in the group. It may be edited while the job runs: workers are added, or finish their round and
    leave, the last ones first.
    """
    device: Device = Device.CPU
    """What the workers compute on: CPU, or CUDA for one NVIDIA GPU each."""
    resources: Resources = Resources()
    """Requests and limits of each worker's container."""
    batch: Batch = Batch()
    """Start value and bounds of each worker's share of the global batch."""
    node_selector: Annotated[dict[str, LabelValue], Field(max_length=32)] = Field(default_factory=dict)
    """Labels that a node must have to run a worker of the group."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32, json_schema_extra=ATOMIC)] = ()
    """Node taints that workers of the group accept."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=64, json_schema_extra=keyed_by("name"))] = ()
    """Environment variables of the group's workers; they win over spec.env."""
    template: PodTemplate | None = None
    """Anything else of the group's pods."""


class ParameterServers(Resource):
    """The pods that hold the parameters and run the optimizer."""

    replicas: Annotated[int, Field(ge=1, le=MAX_PARAMETER_SERVERS)] = 1
    """Number of parameter servers; the parameters are spread evenly over them, by bytes."""
    resources: Resources = Resources()
    """Requests and limits of each parameter server's container."""
    template: PodTemplate | None = None
    """Anything else of the parameter servers' pods."""


class PersistentVolumeClaim(Resource):
    """A claim in the job's namespace."""

    claim_name: Name
    """Name of the PersistentVolumeClaim, in the job's namespace."""


class Volume(Resource):
    """Where files are kept: exactly one kind of volume. `to_document` gives it as a pod has it."""

    persistent_volume_claim: PersistentVolumeClaim | None = None
    """A claim that outlives the job."""
    empty_dir: Opaque | None = None
    """Space on the node, gone with the pod: the model must be fetched before the job is deleted."""
    ephemeral: Opaque | None = None
    """A claim made for the pod and deleted with it."""
    nfs: Opaque | None = None
    """A folder on an NFS server (server, path)."""
    csi: Opaque | None = None
    """An inline volume of a CSI driver."""


class Output(Resource):
    """Where the trained model goes."""

    volume: Annotated[Volume | None, Field(json_schema_extra={"minProperties": 1, "maxProperties": 1})] = None
    """Volume for the model; only parameter server 0 mounts it. Without it the model goes when that pod goes."""


class Adaptive(Resource):
    """Range inside which the operator may move stalenessBound while the job runs. Both in the unit of the mode."""

    min: Annotated[int, Field(ge=0, le=MAX_STALENESS)]
    """Smallest staleness bound that the operator may set."""
    max: Annotated[int, Field(ge=0, le=MAX_STALENESS)]
    """Largest staleness bound that the operator may set."""


class Dssp(Resource):
    """Bounds of DSSP, in iterations that a worker may start ahead of the slowest."""

    lower: Annotated[int, Field(ge=0, le=MAX_STALENESS)] = 2
    """Iterations that every worker may be ahead."""
    range: Annotated[int, Field(ge=0, le=MAX_STALENESS)] = 8
    """Largest number of iterations beyond lower that the fastest worker gets if it is predicted to wait less so."""


class Synchronization(Resource):
    """How workers wait for each other. A setting that means nothing in the mode must be left out."""

    mode: SyncMode = SyncMode.BSP
    """BSP: every round waits for all workers. ASP: every gradient is applied at once, nobody waits. SSP: as ASP, but no
    worker starts further ahead than stalenessBound. DSSP: SSP with a bound that moves. Delay: a round closes a window
    after its first gradient. Backup: a round does not wait for its last workers.
    """
    staleness_bound: Bound | None = None
    """SSP: iterations that a worker may start ahead of the slowest. Delay: rounds between the version a gradient was
    computed on and the one it is applied to. 0 is BSP; None (the word) is no bound. 3 if not given.
    """
    adaptive: Adaptive | None = None
    """SSP and Delay: range inside which the operator may move stalenessBound. It stays as it is if not given."""
    delay_window_milliseconds: Window | None = None
    """Delay: milliseconds that a round stays open after its first gradient; None (the word) waits for everybody, as
    BSP. 50 if not given. 5 to 20 % of the fastest worker's step joins gradients that come almost together.
    """
    discount: Discount | None = None
    """ASP, SSP, DSSP and Delay: factor on a gradient that is tau versions stale. None: 1. Inverse: 1/(1+tau).
    Polynomial: (1+tau)^-discountExponent. StalenessAware: 1/tau. If not given: Inverse for Delay, None otherwise.
    """
    discount_exponent: Annotated[float, Field(ge=0, le=10)] | None = None
    """Exponent of discount Polynomial, usually 0.5 to 1. 1 if not given."""
    normalization: Normalization | None = None
    """ASP, SSP, DSSP and Delay: what weights are divided by. Target: the global batch, so that each sample moves the
    parameters as under BSP. Arrived: what has arrived, a full and noisier step each round. Target if not given.
    """
    delay_compensation: Annotated[float, Field(ge=0, le=1_000_000)] | None = None
    """ASP, SSP, DSSP and Delay: strength of the correction of stale gradients for what the parameters have moved since
    (DC-ASGD): strength x gradient^2 x movement is added. None is made if not given.
    """
    dssp: Dssp | None = None
    """DSSP: its bounds. lower 2 and range 8 if not given."""
    backup_workers: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] | None = None
    """Backup: workers that a round does not wait for; fewer than there are workers. 1 if not given."""
    lease_seconds: Annotated[int, Field(ge=2, le=600)] = 15
    """Seconds without a sign of life after which a worker counts as lost."""


class AdaptationMode(StrEnum):
    """What becomes of the plans that the adaptation makes."""

    APPLY = "Apply"
    RECOMMEND = "Recommend"
    OFF = "Off"


class Escalation(StrEnum):
    """A means against a worker that holds the others up."""

    REBALANCE = "Rebalance"
    RELAX_STALENESS = "RelaxStaleness"
    REPLACE = "Replace"


class Adaptation(Resource):
    """How shares follow the workers' speeds while the job runs."""

    mode: AdaptationMode = AdaptationMode.APPLY
    """Apply: better shares are put in force. Recommend: they are shown only. "Off" (quoted: YAML reads it as false)."""
    interval_seconds: Annotated[int, Field(ge=1, le=3600)] = 5
    """Seconds between two looks at the speeds at most; a change of speed or membership is looked at at once."""
    dead_band_percent: Annotated[int, Field(ge=0, le=100)] = 3
    """Percent of the round's time that other shares must save, by the speed models; less changes nothing."""
    cooldown_rounds: Annotated[int, Field(ge=0, le=100_000)] = 10
    """Rounds from one change of shares to the next at least, unless a speed or the membership changed meanwhile."""
    escalation: (
        Annotated[tuple[Escalation, ...], Field(min_length=1, max_length=3, json_schema_extra=ATOMIC)] | None
    ) = None
    """What is tried against a worker that holds the others up, in this order. Rebalance: other shares. RelaxStaleness:
    a higher staleness bound, inside synchronization.adaptive. Replace: its pod is deleted and made again, if it can be
    on another node. If not given: Rebalance, and RelaxStaleness where synchronization.adaptive is given.
    """


class Checkpoint(Resource):
    """When the whole state of the training is written, so that a loss costs no more than the rounds since then."""

    every_rounds: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    """Rounds from one checkpoint to the next. Not by rounds if not given."""
    every_seconds: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    """Seconds of training from one checkpoint to the next. If everyRounds is not given either: 600."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 3
    """Number of checkpoints that are kept; older ones of the same job are removed."""
    path: Annotated[str, Field(min_length=1, max_length=256, pattern=FOLDER, json_schema_extra=_FOLDER)] = "checkpoints"
    """Folder for the checkpoints, below the output volume."""
    resume_from: (
        Annotated[str, Field(min_length=1, max_length=512, pattern=FOLDER, json_schema_extra=_FOLDER)] | None
    ) = None
    """Checkpoint, or folder of some, below the output volume, that a job without one of its own begins from."""


class RunPolicy(Resource):
    """What becomes of a job that loses a part of itself."""

    backoff_limit: Annotated[int, Field(ge=0, le=1000)] | None = None
    """How often the training may go back to a checkpoint, and the pod of each worker or parameter server be started
    again. 3 if not given; 0: the first loss ends the job.
    """


class Target(Resource):
    """A reported value that ends the training once it is reached; exactly one of atLeast and atMost is given."""

    value: Annotated[str, Field(min_length=1, max_length=64)]
    """Name of the value, as given to session.report(<name>=...) in the script."""
    at_least: Annotated[float, Field(ge=-1e12, le=1e12)] | None = None
    """The training ends when the value is this or more, in the value's own unit."""
    at_most: Annotated[float, Field(ge=-1e12, le=1e12)] | None = None
    """The training ends when the value is this or less, in the value's own unit."""


class Stop(Resource):
    """Limits that end the training before the script's last epoch; the model is kept. The first one reached counts."""

    rounds: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    """Rounds (updates of the parameters) after which the training ends. No limit if not given."""
    seconds: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    """Seconds of training, counted from the first round, after which the training ends. No limit if not given."""
    target: Target | None = None
    """A reported value that ends the training once it is reached."""


class HeteroTrainJobSpec(Resource):
    """What to train, on what, and in what shares. Written by users only."""

    image: Annotated[str, Field(min_length=1, max_length=512)]
    """Container image of the workers: the heterotrain trainer image or one built from it, with the script inside."""
    image_pull_policy: ImagePullPolicy | None = None
    """When nodes pull the images. If not given: Always for the tag latest, else IfNotPresent."""
    image_pull_secrets: Annotated[
        tuple[LocalObjectReference, ...], Field(max_length=16, json_schema_extra=keyed_by("name"))
    ] = ()
    """Secrets with which the nodes pull the images."""
    command: Annotated[tuple[Argument, ...], Field(min_length=1, max_length=64, json_schema_extra=ATOMIC)]
    """Command of each worker, one list entry per word; no shell is involved. The script calls heterotrain.join()."""
    args: Annotated[tuple[Argument, ...], Field(max_length=128, json_schema_extra=ATOMIC)] = ()
    """Words added to the command."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=64, json_schema_extra=keyed_by("name"))] = ()
    """Environment variables of all workers."""
    global_batch_size: Annotated[int, Field(ge=1, le=MAX_BATCH)]
    """Samples of one round, over all workers (B): every update of the parameters is the mean over so many samples."""
    batch_grain: Annotated[int, Field(ge=1, le=65536)] = 1
    """Step in which shares change, in samples: a share is batch.min plus a multiple of it."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
    """Seed of the sample order and of each worker's random numbers. Same seed, same result."""
    parameter_servers: ParameterServers = ParameterServers()
    """The pods that hold the parameters and run the optimizer."""
    workers: Annotated[
        tuple[WorkerGroup, ...], Field(min_length=1, max_length=MAX_GROUPS, json_schema_extra=keyed_by("name"))
    ]
    """Groups of workers, at least one. Groups may differ in every way; workers of one group are alike."""
    output: Output = Output()
    """Where the trained model goes."""
    synchronization: Synchronization = Synchronization()
    """How workers wait for each other."""
    adaptation: Adaptation = Adaptation()
    """How shares follow the workers' speeds while the job runs."""
    checkpoint: Checkpoint | None = None
    """When the whole state of the training is written. Without it on command only, and a lost process fails the job."""
    run_policy: RunPolicy = RunPolicy()
    """What becomes of a job that loses a part of itself."""
    stop: Stop = Stop()
    """Limits that end the training before the script's last epoch."""


class ObjectMeta(BaseModel):
    """The part of an object's metadata that we read."""

    model_config = Resource.model_config

    name: str
    namespace: str | None = None
    uid: str | None = None
    generation: int | None = None
    resource_version: str | None = None
    creation_timestamp: AwareDatetime | None = None
    deletion_timestamp: AwareDatetime | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class HeteroTrainJob(Resource):
    """Trains one PyTorch model on workers that are not alike, giving each the share of work that fits its speed."""

    api_version: str = API_VERSION
    kind: str = KIND
    metadata: ObjectMeta
    spec: HeteroTrainJobSpec
    """What to train, on what, and in what shares. Written by users only."""
    status: HeteroTrainJobStatus = HeteroTrainJobStatus()
    """What the job does now. Written by the operator only."""
