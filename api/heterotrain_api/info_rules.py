"""The resource `ProcessingRule` in version v1alpha1: values made from values. Read from top to bottom it is the manual.

`heterotrain_api.info_collection` has the other kind of rule. Rules over several fields are in
`heterotrain_api.info_checks`. What a chain's parameters mean is fixed in `heterotrain_core.info.operators`. Times are
in seconds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from heterotrain_api.contract import API_VERSION
from heterotrain_api.fields import ATOMIC, Resource, said
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

PROCESSING_KIND: Final = "ProcessingRule"
PROCESSING_PLURAL: Final = "processingrules"

InputName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=63,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        json_schema_extra=said("letters, digits and _, with no digit first"),
    ),
]


class Aggregate(StrEnum):
    """What the values of several entities are made one by."""

    MEAN = "mean"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    MEDIAN = "median"
    MAD = "mad"
    COUNT = "count"


class OperatorName(StrEnum):
    """The operators that a chain is made of."""

    EWMA = "ewma"
    EWMA_T = "ewma_t"
    RATE = "rate"
    QUANTILE = "quantile"
    MEDIAN = "median"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    MAD = "mad"
    ROBUST_Z = "robust_z"
    THRESHOLD = "threshold"
    CUSUM = "cusum"
    ALPHA_BETA = "alpha_beta"
    EXPR = "expr"


class TriggerName(StrEnum):
    """When a rule is applied."""

    EACH_SAMPLE = "each sample"
    PERIOD = "period"


class EmitName(StrEnum):
    """What a rule's result becomes."""

    VALUE = "value"
    EVENT = "event"
    BOTH = "both"


class RuleInput(Resource):
    """Where one input of a rule comes from."""

    metric: MetricName
    """Metric that is read."""
    entity: Annotated[str, Field(min_length=1, max_length=512)] = "*"
    """Entities that the rule is applied to: node/*. * stands for anything in one part of a name, ** for more."""
    labels: Globs = Field(default_factory=dict)
    """Labels that the entities must have: * for anything, a|b for either, !a for another. With of also parts: {1}."""
    of: Template | None = None
    """Reads another entity instead: job/{1}/{2} for the job of a worker/ns/job/name; with * all that match."""
    aggregate: Aggregate | None = None
    """How the values of the entities that of means become one."""
    ttl: Seconds | None = None
    """Seconds after which a value is absent. The metric's own if not given."""


class OperatorStep(Resource):
    """One operator with its parameters."""

    operator: OperatorName
    """What is done with the result before, or with the input."""
    alpha: Annotated[float, Field(ge=1e-9, le=1)] | None = None
    """Weight of the newest value, for ewma."""
    half_life: Annotated[Seconds | None, Field(alias="half_life")] = None
    """Seconds after which a value counts half, for ewma_t."""
    q: Annotated[float, Field(ge=0, le=1)] | None = None
    """Which quantile, for quantile."""
    hi: Number | None = None
    """Above this the state becomes HOT, for threshold."""
    lo: Number | None = None
    """Below this the state becomes OK, for threshold."""
    hold: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Consecutive samples that change the state, for threshold. 1 if not given."""
    ref: Number | None = None
    """Value from which the drop is counted, for cusum."""
    drift: Annotated[float, Field(ge=0, le=1e18)] | None = None
    """Drop that is not counted, for cusum. 0 if not given."""
    h: Annotated[float, Field(ge=0, le=1e18)] | None = None
    """Sum of drops above which there is an alarm, for cusum."""
    reset: bool | None = None
    """Whether the sum begins again at 0 after an alarm, for cusum. True if not given."""
    bytes: InputName | None = None
    """Input that has the sizes, for alpha_beta. Named bytes if not given."""
    seconds: InputName | None = None
    """Input that has the durations, for alpha_beta. Named seconds if not given."""
    expression: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Arithmetic over the inputs by name, for expr; value is the result before."""

    def parameters(self) -> dict[str, float | str | bool]:
        """Those that are given, by name."""
        return {k: v for k, v in self.model_dump(exclude_none=True).items() if k != "operator"}


class RuleOutput(Resource):
    """What a result is stored as."""

    metric: MetricName
    """Metric that is written; no other processing rule may write it."""
    type: MetricTypeName | None = None
    """What the values are. State after threshold and gauge after anything else if not given."""
    unit: Unit = ""
    """Unit of the values, as UCUM writes it: s, By, By/s, 1."""
    ttl: Seconds | None = None
    """Seconds after which a value is absent. Without it with the first of the inputs, or after two periods."""
    entity: Template | None = None
    """Entity that is written, from parts of the one the rule is applied to: node/{1}. The same entity if not given."""
    description: Annotated[str, Field(max_length=512)] = ""
    """What the metric says."""


class ProcessingRuleSpec(Resource):
    """What is read, what is done with it, and what it becomes."""

    inputs: Annotated[dict[str, RuleInput], Field(min_length=1, max_length=16)]
    """Inputs by name. The rule is applied to each entity of those without of."""
    window: Seconds | None = None
    """Seconds of the past that operators over several samples look at. Without it the last windowSamples."""
    window_samples: Annotated[int, Field(ge=2, le=4096)] = 256
    """Most samples that operators over several samples look at; alpha_beta looks at 64 at most."""
    chain: Annotated[tuple[OperatorStep, ...], Field(min_length=1, max_length=16, json_schema_extra=ATOMIC)]
    """Operators, each applied to the result of the one before. With several inputs the first is expr or alpha_beta."""
    output: RuleOutput | None = None
    """What the result is stored as."""
    outputs: Annotated[dict[str, RuleOutput], Field(min_length=1, max_length=8)] | None = None
    """What the parts of the result are stored as: delta, bandwidth of alpha_beta; s, alarm of cusum; value of any."""
    trigger: TriggerName = TriggerName.EACH_SAMPLE
    """Whether the rule is applied with each sample of its inputs, or every period seconds."""
    period: Annotated[float, Field(ge=0.1, le=86400)] | None = None
    """Seconds between applications, for trigger period."""
    hold: Annotated[float, Field(ge=0, le=86400)] = 0.0
    """Seconds that a changed state must last before it is stored and told."""
    emit: EmitName = EmitName.VALUE
    """Whether the result becomes a sample, an event when a state changes or a number becomes other than 0, or both."""
    message: Annotated[str, Field(max_length=512)] = ""
    """Text of events; {entity}, {value}, {previous} and parts {1}, {2} are filled in. A plain sentence if empty."""
    cardinality: Cardinality = 1000
    """Most entities that the rule is applied to; others are left out, and the status says so."""


class ProcessingRule(Resource):
    """Makes new values from values: smoothed, compared, combined. Obeyed in the operator's namespace."""

    api_version: str = API_VERSION
    kind: str = PROCESSING_KIND
    metadata: ObjectMeta
    spec: ProcessingRuleSpec
    """What is read, what is done with it, and what it becomes. Written by users only."""
    status: RuleStatus = RuleStatus()
    """How the rule does. Written by the operator only."""
