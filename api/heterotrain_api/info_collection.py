"""The resource `CollectionRule` in version v1alpha1: what is gathered from where.

Read from top to bottom it is the manual. One run of a rule reads its source once and makes samples of it for all its
metrics. Which entity a sample is about comes from the source's labels by the templates of `entity`. Times are in
seconds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, TypeAlias

from pydantic import Field

from heterotrain_api.contract import API_VERSION
from heterotrain_api.fields import ATOMIC, Argument, Resource, keyed_by, said
from heterotrain_api.info_fields import (
    Cardinality,
    Globs,
    MetricName,
    MetricTypeName,
    Number,
    RuleStatus,
    Seconds,
    Template,
    Unit,
)
from heterotrain_api.v1alpha1 import ObjectMeta

COLLECTION_KIND: Final = "CollectionRule"
COLLECTION_PLURAL: Final = "collectionrules"

URL: Final = r"^https?://[^\s@/]+(/\S*)?$"
URL_WORDS: Final = "http:// or https://, a host and perhaps a path, without user or blanks"
Url: TypeAlias = Annotated[str, Field(min_length=1, max_length=1024, pattern=URL, json_schema_extra=said(URL_WORDS))]
Path: TypeAlias = Annotated[str, Field(min_length=1, max_length=512)]
"""Field names joined by dots; ``[*]`` for each item of a list, ``["a.b"]`` for a name with dots."""
CredentialsName: TypeAlias = Annotated[
    str,
    Field(
        max_length=63,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        json_schema_extra=said("small letters, digits and -, with no - at the ends"),
    ),
]
Templates: TypeAlias = Annotated[dict[str, Template], Field(max_length=16)]
Paths: TypeAlias = Annotated[dict[str, Path], Field(max_length=16)]


class Format(StrEnum):
    """How an answer is written."""

    PROMETHEUS_TEXT = "PrometheusText"
    JSON = "JSON"


class ObjectKind(StrEnum):
    """Objects of the Kubernetes API that can be read."""

    NODES = "nodes"
    PODS = "pods"
    EVENTS = "events"


class KubeletPath(StrEnum):
    """Metrics that every kubelet has."""

    CADVISOR = "cadvisor"
    RESOURCE = "resource"


class Reader(StrEnum):
    """What of this machine is read."""

    PSUTIL = "psutil"
    PROCFS = "procfs"
    CGROUP = "cgroup"
    NVIDIA = "nvidia"


class Combine(StrEnum):
    """What several source series of one entity and metric become."""

    REFUSE = "refuse"
    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    COUNT = "count"


class OnError(StrEnum):
    """What becomes of the values when a run fails."""

    WAIT = "wait"
    ABSENT = "absent"


class PrometheusSource(Resource):
    """A Prometheus server. Each metric has a query."""

    url: Url | None = None
    """Address of the server, without /api/v1. The operator's own setting if not given."""
    values: Annotated[dict[str, Annotated[str, Field(max_length=256)]], Field(max_length=16)] = Field(
        default_factory=dict
    )
    """Texts that ${name} in queries stands for, inside quotes; they are escaped."""
    credentials: CredentialsName | None = None
    """Folder of the operator's credentials with any of token, ca.crt, tls.crt and tls.key; read anew each run."""


class EndpointSource(Resource):
    """Any address that answers a GET request with Prometheus text or JSON."""

    url: Url
    """Address that is read. Redirects are not followed."""
    format: Format = Format.PROMETHEUS_TEXT
    """How the answer is written."""
    items: Path | None = None
    """Path of the things in a JSON answer that each become one entity, as in devices[*]. The whole if not given."""
    labels: Paths = Field(default_factory=dict)
    """Labels of a thing in a JSON answer: name and path from the thing."""
    credentials: CredentialsName | None = None
    """Folder of the operator's credentials with any of token, ca.crt, tls.crt and tls.key; read anew each run."""


class KubernetesSource(Resource):
    """Objects of the Kubernetes API. Labels are namespace, name, uid, node and those that labels names."""

    objects: ObjectKind
    """Which objects are read."""
    label_selector: Annotated[str, Field(max_length=512)] = ""
    """Labels that the objects must have, as kubectl get -l takes them."""
    labels: Paths = Field(default_factory=dict)
    """More labels of an object: name and path from the object."""


class KubeletSource(Resource):
    """Metrics of every node's kubelet, through the API server. The label node has the node's name."""

    path: KubeletPath = KubeletPath.CADVISOR
    """Which of the kubelet's metrics are read."""


class LocalSource(Resource):
    """The machine that the operator runs on. The label node has its name."""

    reader: Reader
    """What is read: psutil, /proc, the own control group, or NVIDIA devices by nvidia-smi."""


class CommandSource(Resource):
    """The output of a program on this machine. Only where the operator's settings allow commands."""

    argv: Annotated[tuple[Argument, ...], Field(min_length=1, max_length=64, json_schema_extra=ATOMIC)]
    """Program and arguments; no shell. The environment is empty but for PATH."""
    format: Format = Format.PROMETHEUS_TEXT
    """How the output is written."""
    items: Path | None = None
    """Path of the things in JSON output that each become one entity. The whole output if not given."""
    labels: Paths = Field(default_factory=dict)
    """Labels of a thing in JSON output: name and path from the thing."""


class PushSource(Resource):
    """Samples that are sent to the REST API, or that trainers report. The rule says what may come."""

    entities: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=512)], ...],
        Field(min_length=1, max_length=16, json_schema_extra=ATOMIC),
    ]
    """Entities that may be pushed, such as worker/*/*/*."""


class Source(Resource):
    """Where samples come from: exactly one of the fields."""

    prometheus: PrometheusSource | None = None
    """A Prometheus server."""
    endpoint: EndpointSource | None = None
    """Any address that answers with Prometheus text or JSON."""
    kubernetes: KubernetesSource | None = None
    """Objects of the Kubernetes API."""
    kubelet: KubeletSource | None = None
    """Metrics of every node's kubelet."""
    local: LocalSource | None = None
    """This machine."""
    command: CommandSource | None = None
    """The output of a program on this machine."""
    push: PushSource | None = None
    """Samples that are sent to the REST API, or that trainers report."""


class EntityMapping(Resource):
    """One way to tell which entity a series is about."""

    name: Template
    """Entity with labels filled in: node/{instance|host}. Filters: host (no port), short (no domain), lower."""
    absent: Annotated[
        tuple[Annotated[str, Field(max_length=128)], ...], Field(max_length=8, json_schema_extra=ATOMIC)
    ] = ()
    """Labels that the series must not have at all, not even empty."""
    match: Globs = Field(default_factory=dict)
    """Labels that the series must have: * for anything, a|b for either, !a for another one."""


EntityMappings: TypeAlias = Annotated[
    tuple[EntityMapping, ...], Field(min_length=1, max_length=8, json_schema_extra=ATOMIC)
]


class CollectedMetric(Resource):
    """One metric, and where in the source it is."""

    name: MetricName
    """Metric that is written."""
    type: MetricTypeName = MetricTypeName.GAUGE
    """What the values are."""
    unit: Unit = ""
    """Unit of the values, as UCUM writes it: s, By, By/s, 1."""
    ttl: Seconds | None = None
    """Seconds after which a value is absent. The rule's if not given."""
    description: Annotated[str, Field(max_length=512)] = ""
    """What the metric says."""
    query: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """PromQL of the metric, for prometheus."""
    time_query: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """PromQL of when each value was measured, with the same labels: timestamp(...). The query's time if not given."""
    range: Seconds | None = None
    """Seconds before now that are asked for with steps between, for prometheus. The newest value only if not given."""
    step: Seconds | None = None
    """Seconds between the values of a range."""
    from_: Annotated[str | None, Field(alias="from", min_length=1, max_length=256)] = None
    """Name of the series in the source. The metric's own name if not given."""
    path: Path | None = None
    """Place of the value in JSON or in an object: status.allocatable.cpu. Quantities become numbers."""
    value_label: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Label whose text is the value, for types state and text, instead of the number."""
    match: Globs = Field(default_factory=dict)
    """Labels that a series must have to count: * for anything, a|b for either, !a|b for none of them."""
    combine: Combine = Combine.REFUSE
    """What several series of one entity become; refuse: the first counts, and the status says so."""
    scale: Number = 1.0
    """What values are multiplied by."""
    min: Number | None = None
    """Smallest value that is believed, after scale; a smaller one is refused and counted."""
    max: Number | None = None
    """Largest value that is believed, after scale; a larger one is refused and counted."""
    entity: EntityMappings | None = None
    """Which entity a series is about, where the rule's does not hold."""


class CollectionRuleSpec(Resource):
    """Where samples come from, how often, and what they become."""

    source: Source
    """Where samples come from."""
    metrics: Annotated[
        tuple[CollectedMetric, ...], Field(min_length=1, max_length=64, json_schema_extra=keyed_by("name"))
    ]
    """What is taken from the source."""
    entity: Annotated[tuple[EntityMapping, ...], Field(max_length=8, json_schema_extra=ATOMIC)] = ()
    """Ways to tell which entity a series is about; the first that fits counts. Pushed samples name it themselves."""
    labels: Templates = Field(default_factory=dict)
    """Labels that the entities get, from the source's: zone: {topology_zone}."""
    interval: Annotated[float, Field(ge=0.1, le=86400)] = 15.0
    """Seconds between runs. If shorter than the source takes to refresh, values look steadier than they are."""
    timeout: Annotated[float, Field(ge=0.05, le=300)] | None = None
    """Seconds that a run may take; at most interval. The interval, but at most 10, if not given."""
    ttl: Seconds | None = None
    """Seconds after which a value is absent. Three intervals if not given."""
    on_error: OnError = OnError.WAIT
    """When a run fails: values wait for their ttl, or are absent at once."""
    cardinality: Cardinality = 1000
    """Most series of one run; others are left out, and the status says so."""


class CollectionRule(Resource):
    """Gathers samples of a source on a schedule. Obeyed in the operator's namespace."""

    api_version: str = API_VERSION
    kind: str = COLLECTION_KIND
    metadata: ObjectMeta
    spec: CollectionRuleSpec
    """Where samples come from, how often, and what they become. Written by users only."""
    status: RuleStatus = RuleStatus()
    """How the rule does. Written by the operator only."""
