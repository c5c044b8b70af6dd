"""The documents and parameters of the API: what the OpenAPI document and the checks of requests are both made from.

Requests are strict: a field or parameter that does not exist is refused, a number is no text. Times are seconds since
the epoch, as numbers. Lists come in pages: go on with ``cursor=`` what ``next`` says, until it is null.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeAlias

from fastapi import Path
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from heterotrain_api.info_fields import RuleStatus
from heterotrain_core.info.selectors import matches
from heterotrain_core.info.values import MAX_ENTITY_LENGTH, Entity
from heterotrain_operator.info.push import MAX_SAMPLES
from heterotrain_operator.rest.errors import Code

MAX_LIMIT: Final = 10_000
DEFAULT_LIMIT: Final = 1000
MAX_LABELS: Final = 16
MAX_METRICS: Final = 64
MAX_DRYRUN_RULES: Final = 64
MAX_VALUE_LENGTH: Final = 256
LATEST_TIME: Final = 1e12

_ENTITY_PATTERN: Final = r"^[a-z][a-z0-9-]{0,31}(/[A-Za-z0-9]([A-Za-z0-9._:@-]{0,251}[A-Za-z0-9])?){1,5}$"
_METRIC_PATTERN: Final = r"^[A-Za-z_:][A-Za-z0-9_:]*$"
_LABEL_PATTERN: Final = r"^[^=]{1,253}="
PATTERN_WORDS: Final = {
    _ENTITY_PATTERN: "must be an entity: kind/name, such as node/a or pod/namespace/name",
    _METRIC_PATTERN: "must be a metric: letters, digits, _ and :, no digit first",
    _LABEL_PATTERN: "must be name=value, such as zone=eu",
}
"""What a text must be that does not have the form."""


def _entity(text: str) -> str:
    return Entity(text)


EntityName: TypeAlias = Annotated[
    str,
    Field(
        min_length=3,
        max_length=MAX_ENTITY_LENGTH,
        pattern=_ENTITY_PATTERN,
        examples=["node/a"],
        description="Kind and name: node/NAME, pod/NAMESPACE/NAME, worker/NAMESPACE/JOB/NAME, job/NAMESPACE/NAME, "
        "link/FROM/TO, accelerator/NODE/ID, or any other kind with 1 to 5 parts.",
    ),
    AfterValidator(_entity),
]
MetricName: TypeAlias = Annotated[
    str, Field(min_length=1, max_length=128, pattern=_METRIC_PATTERN, examples=["node_cpu_busy_cores"])
]
Time: TypeAlias = Annotated[float, Field(ge=-LATEST_TIME, le=LATEST_TIME, allow_inf_nan=False)]
SampleValue: TypeAlias = Annotated[
    float | Annotated[str, Field(max_length=MAX_VALUE_LENGTH)],
    Field(description="A number, or a text for metrics of words. The texts +Inf and -Inf are the infinite numbers."),
]
Glob: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_ENTITY_LENGTH)]
Label: TypeAlias = Annotated[str, Field(max_length=512, pattern=_LABEL_PATTERN)]


class Document(BaseModel):
    """Base of what is sent and answered: camelCase outside."""

    model_config = ConfigDict(
        extra="forbid", strict=True, alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True
    )


class FieldFault(Document):
    """One thing that is wrong with a request."""

    field: str
    """Where: samples[3].entity; empty for the request as a whole."""
    message: str
    """What is allowed, and what to do where that is not plain."""


class Error(Document):
    """What every error looks like."""

    code: Code
    """What went wrong, for programs."""
    message: str
    """What went wrong and what to do, for people."""
    fields: list[FieldFault]
    """What is wrong with the request, field by field; empty if it is not about fields."""


class Health(Document):
    """Whether the server answers."""

    status: Literal["ok"]


class EntityDocument(Document):
    """Something that information is about."""

    entity: EntityName
    kind: str
    """The first part of the entity's name."""
    name: str
    """All after the kind."""
    labels: dict[str, str]
    metrics: list[str]
    """Metrics that it has samples of, present or past."""


class Entities(Document):
    """A page of entities, in the order of their names."""

    entities: list[EntityDocument]
    next: str | None
    """Cursor of the next page; null: this is the last one."""


class MetricDocument(Document):
    """What is known of a metric."""

    metric: MetricName
    type: Literal["gauge", "counter", "state", "text"]
    unit: str
    """Of the values, as UCUM writes it; empty if nobody said."""
    ttl: float
    """Seconds after which a value is absent, unless its rule says otherwise."""
    description: str


class Metrics(Document):
    """A page of metrics, in the order of their names."""

    metrics: list[MetricDocument]
    next: str | None
    """Cursor of the next page; null: this is the last one."""


class SampleDocument(Document):
    """One value of one metric of one entity."""

    entity: EntityName
    metric: MetricName
    time: float
    value: SampleValue


class Samples(Document):
    """A page of samples, by entity, metric and time."""

    samples: list[SampleDocument]
    next: str | None
    """Cursor of the next page; null: this is the last one."""


class LatestDocument(Document):
    """The newest value of a series."""

    entity: EntityName
    metric: MetricName
    time: float | None
    """When the value was measured; of an absent one: when the last one was."""
    value: SampleValue | None
    """Null: there is none now. An old value is never given as a present one."""
    expires: float | None
    """When the value will be absent if no other comes."""


class Latest(Document):
    """A page of newest values, by entity and metric."""

    samples: list[LatestDocument]
    next: str | None
    """Cursor of the next page; null: this is the last one."""


class EventDocument(Document):
    """Something that a processing rule told."""

    rule: str
    entity: EntityName
    metric: MetricName
    time: float
    value: SampleValue
    previous: SampleValue | None
    """The value before; null if there was none."""
    message: str


class NumberedEvent(EventDocument):
    """An event with the cursor to go on after it."""

    cursor: str


class Events(Document):
    """Events, the oldest first."""

    events: list[NumberedEvent]
    cursor: str
    """What to give as since to get what comes after these; always there."""


class RuleDocument(Document):
    """A rule as it is kept."""

    kind: Literal["CollectionRule", "ProcessingRule"]
    name: str
    generation: int
    """Grows with each change of the spec. PUT needs the present one."""
    spec: dict[str, Any]
    """As the resource of the kind has it, with defaults in place."""
    status: RuleStatus


class Rules(Document):
    """A page of rules, in the order of their names."""

    rules: list[RuleDocument]
    next: str | None
    """Cursor of the next page; null: this is the last one."""


class PushedSample(Document):
    """A sample that is sent."""

    entity: EntityName
    metric: MetricName
    time: Time | None = None
    """When it was measured, on a clock that is right; now if not given."""
    value: SampleValue


class Push(Document):
    """Samples to be taken up, as rules with source push allow it."""

    samples: Annotated[list[PushedSample], Field(min_length=1, max_length=MAX_SAMPLES)]


class RefusedSample(Document):
    """A sample that was not taken up."""

    index: int
    """Its place in the list, from 0 on."""
    message: str


class Pushed(Document):
    """What became of samples that were sent."""

    stored: int
    refused: list[RefusedSample]


class GivenSample(Document):
    """A sample of a dry run."""

    entity: EntityName
    metric: MetricName
    time: Time
    value: SampleValue


class DryRunRequest(Document):
    """Processing rules, and samples to apply them to."""

    rules: Annotated[list[Any], Field(min_length=1, max_length=MAX_DRYRUN_RULES)]
    """Specs of processing rules, or whole manifests. One without a name is rule-1, rule-2 and so on."""
    samples: Annotated[list[GivenSample], Field(max_length=MAX_SAMPLES)]
    """In any order; each is taken up at its own time."""
    now: Time | None = None
    """When to look; the time of the newest sample if not given. What is stale by then is absent."""
    explain: bool = False
    """Whether the answer has absent and errors too."""


class AbsentOutput(Document):
    """An output that had a value and has none at the end."""

    entity: EntityName
    metric: MetricName


class DryRunAnswer(Document):
    """What the rules make of the samples, in order of time."""

    samples: list[SampleDocument]
    events: list[EventDocument]
    absent: list[AbsentOutput] | None = None
    """Only if explain was asked for."""
    errors: dict[str, str] | None = None
    """By rule: the first thing that went wrong; only if something did, or if explain was asked for."""


RuleName: TypeAlias = Annotated[str, Path(description="Name of the rule: small letters, digits, - and .")]
KindName: TypeAlias = Annotated[str, Path(description="Kind of the entity, such as pod.")]
RestOfName: TypeAlias = Annotated[str, Path(description="All after the kind, such as namespace/name.")]


class Parameters(BaseModel):
    """Base of query parameters: those that do not exist are refused."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Page(Parameters):
    """Which part of a list."""

    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT
    """Most entries of the answer."""
    cursor: Annotated[str, Field(max_length=4096)] | None = None
    """What next of the page before said; the other parameters must be the same."""


_ENTITY_HELP: Final = "Entities: * stands for anything in one part of a name, ** for more; a kind alone for all of it."
_LABEL_HELP: Final = "Labels that the entities must have: zone=eu, zone=*, zone=eu|us, zone=!eu."


class EntityParameters(Page):
    """Which entities."""

    kind: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")] | None = None
    """Kind of the entities, such as node."""
    entity: Annotated[Glob, Field(description=_ENTITY_HELP)] = "*"
    label: Annotated[list[Label], Field(max_length=MAX_LABELS, description=_LABEL_HELP)] = []

    def means(self, entity: str) -> bool:
        """Whether an entity is of the kind and pattern."""
        return matches(self.kind or "*", entity) and matches(self.entity, entity)


class SeriesParameters(Page):
    """Which series."""

    entity: Annotated[Glob, Field(description=_ENTITY_HELP)] = "*"
    metric: Annotated[list[MetricName], Field(max_length=MAX_METRICS, description="Metrics; all if not given.")] = []
    label: Annotated[list[Label], Field(max_length=MAX_LABELS, description=_LABEL_HELP)] = []


class LatestParameters(SeriesParameters):
    """Which newest values."""

    absent: bool = False
    """Whether series without a present value are listed too, with the value null."""


class SpanAggregate(StrEnum):
    """What the samples of one step become."""

    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    SUM = "sum"
    COUNT = "count"
    MEDIAN = "median"
    FIRST = "first"
    LAST = "last"


class SampleParameters(SeriesParameters):
    """Which samples."""

    from_: Annotated[Time | None, Field(alias="from")] = None
    """Oldest time, included. All that is kept if not given."""
    to: Time | None = None
    """Newest time, included."""
    step: Annotated[float, Field(ge=0.001, le=1e9, allow_inf_nan=False)] | None = None
    """Seconds: one sample for each multiple of it that has samples, of those from there to the next."""
    agg: SpanAggregate | None = None
    """What the samples of one step become; last if not given. Of words first, last and count only."""


class EventParameters(Parameters):
    """Which events."""

    since: Annotated[str, Field(max_length=64)] = "0"
    """The cursor of the last event read; 0: all that are kept."""
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT
    """Most events of the answer."""
    entity: Annotated[Glob, Field(description=_ENTITY_HELP)] = "*"


class What(StrEnum):
    """What is watched."""

    EVENTS = "events"
    SAMPLES = "samples"


class WatchParameters(Parameters):
    """What is watched."""

    what: Annotated[list[What], Field(max_length=2, description="Events, newest values, or both.")] = [What.EVENTS]
    since: Annotated[str, Field(max_length=64)] | None = None
    """The cursor of the last event read; 0: all that are kept. Without it, and without Last-Event-ID, only new ones."""
    entity: Annotated[Glob, Field(description=_ENTITY_HELP)] = "*"
    metric: Annotated[list[MetricName], Field(max_length=MAX_METRICS, description="Metrics; all if not given.")] = []
    label: Annotated[list[Label], Field(max_length=MAX_LABELS, description=_LABEL_HELP)] = []
    interval: Annotated[float, Field(ge=0.1, le=60, allow_inf_nan=False)] = 1.0
    """Seconds between looks for changed values; of several changes between two looks the newest is told."""


class DeleteParameters(Parameters):
    """Which version of a rule."""

    generation: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """Only if this is still the rule's generation."""


class PutParameters(Parameters):
    """Which version of a rule."""

    generation: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """The rule's present generation, where the body does not say it."""
