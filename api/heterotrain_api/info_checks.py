"""Rules over several fields of information rules, each declared once: as CEL for the API server and as Python."""

from __future__ import annotations

from typing import Final

from heterotrain_api.info_collection import CollectedMetric, CollectionRuleSpec, Source
from heterotrain_api.info_rules import OperatorName, OperatorStep, ProcessingRuleSpec, RuleInput, TriggerName
from heterotrain_api.rules import Rule

_REQUIRED: Final = {
    "alpha": OperatorName.EWMA,
    "half_life": OperatorName.EWMA_T,
    "q": OperatorName.QUANTILE,
    "hi": OperatorName.THRESHOLD,
    "lo": OperatorName.THRESHOLD,
    "ref": OperatorName.CUSUM,
    "h": OperatorName.CUSUM,
    "expression": OperatorName.EXPR,
}
_OPTIONAL: Final = {
    "hold": OperatorName.THRESHOLD,
    "drift": OperatorName.CUSUM,
    "reset": OperatorName.CUSUM,
    "bytes": OperatorName.ALPHA_BETA,
    "seconds": OperatorName.ALPHA_BETA,
}
SOURCES: Final = tuple(Source.model_fields)


def _required(name: str, operator: OperatorName) -> Rule:
    def holds(step: OperatorStep) -> bool:
        return (getattr(step, name) is not None) == (step.operator is operator)

    return Rule(
        "spec.chain[*]",
        f"has(self.{name}) == (self.operator == '{operator}')",
        f"must be given with operator {operator}, and only with it",
        holds,
        field=f".{name}",
    )


def _optional(name: str, operator: OperatorName) -> Rule:
    def holds(step: OperatorStep) -> bool:
        return getattr(step, name) is None or step.operator is operator

    return Rule(
        "spec.chain[*]",
        f"!has(self.{name}) || self.operator == '{operator}'",
        f"must be left out unless operator is {operator}",
        holds,
        field=f".{name}",
    )


def _lo_to_hi(step: OperatorStep) -> bool:
    return step.lo is None or step.hi is None or step.lo <= step.hi


def _one_output(spec: ProcessingRuleSpec) -> bool:
    return (spec.output is None) != (spec.outputs is None)


def _period_with_trigger(spec: ProcessingRuleSpec) -> bool:
    return (spec.period is not None) == (spec.trigger is TriggerName.PERIOD)


def _has_target(spec: ProcessingRuleSpec) -> bool:
    return any(item.of is None for item in spec.inputs.values())


def _aggregate_with_of(spec: ProcessingRuleSpec) -> bool:
    return all(_aggregates_rightly(item) for item in spec.inputs.values())


def _aggregates_rightly(item: RuleInput) -> bool:
    if item.of is None:
        return item.aggregate is None
    return item.aggregate is not None or "*" not in item.of


PROCESSING_RULES: Final[tuple[Rule, ...]] = (
    *(_required(name, operator) for name, operator in _REQUIRED.items()),
    *(_optional(name, operator) for name, operator in _OPTIONAL.items()),
    Rule(
        "spec.chain[*]",
        "!has(self.lo) || !has(self.hi) || self.lo <= self.hi",
        "must be at most hi",
        _lo_to_hi,
        field=".lo",
    ),
    Rule(
        "spec",
        "has(self.output) != has(self.outputs)",
        "must have exactly one of output and outputs",
        _one_output,
    ),
    Rule(
        "spec",
        "has(self.period) == (self.trigger == 'period')",
        "must be given with trigger: period, and only with it",
        _period_with_trigger,
        field=".period",
    ),
    Rule(
        "spec",
        "self.inputs.exists(name, !has(self.inputs[name].of))",
        "must have an input without of: its entities are what the rule is applied to",
        _has_target,
        field=".inputs",
    ),
    Rule(
        "spec",
        "self.inputs.all(name, has(self.inputs[name].of) "
        "? (has(self.inputs[name].aggregate) || !self.inputs[name].of.contains('*')) "
        ": !has(self.inputs[name].aggregate))",
        "must have aggregate where of means several entities (has a *), and never without of",
        _aggregate_with_of,
        field=".inputs",
    ),
)


def _one_source(source: Source) -> bool:
    return sum(getattr(source, name) is not None for name in SOURCES) == 1


def _timeout_in_interval(spec: CollectionRuleSpec) -> bool:
    return spec.timeout is None or spec.timeout <= spec.interval


def _queries(spec: CollectionRuleSpec) -> bool:
    asked = spec.source.prometheus is not None
    return all((metric.query is not None) == asked for metric in spec.metrics)


def _mapped(spec: CollectionRuleSpec) -> bool:
    pushed = spec.source.push is not None
    return pushed or bool(spec.entity) or all(metric.entity is not None for metric in spec.metrics)


def _step_with_range(metric: CollectedMetric) -> bool:
    return (metric.range is None) == (metric.step is None) and (metric.range is None or metric.query is not None)


def _time_query_with_query(metric: CollectedMetric) -> bool:
    return metric.time_query is None or (metric.query is not None and metric.range is None)


def _label_for_words(metric: CollectedMetric) -> bool:
    return metric.value_label is None or metric.type in ("state", "text")


def _min_to_max(metric: CollectedMetric) -> bool:
    return metric.min is None or metric.max is None or metric.min <= metric.max


COLLECTION_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "spec.source",
        f"[{', '.join(f'has(self.{name})' for name in SOURCES)}].filter(given, given).size() == 1",
        f"must have exactly one of {', '.join(SOURCES)}",
        _one_source,
    ),
    Rule(
        "spec",
        "!has(self.timeout) || self.timeout <= self.interval",
        "must be at most interval: a run that still waits would delay the next",
        _timeout_in_interval,
        field=".timeout",
    ),
    Rule(
        "spec",
        "self.metrics.all(m, has(m.query) == has(self.source.prometheus))",
        "must have a query each with source prometheus, and none with another source",
        _queries,
        field=".metrics",
    ),
    Rule(
        "spec",
        "has(self.source.push) || (has(self.entity) && self.entity.size() > 0) || self.metrics.all(m, has(m.entity))",
        "must say which entity a series is about, here or in each metric: write for instance [{name: 'node/{node}'}]",
        _mapped,
        field=".entity",
    ),
    Rule(
        "spec.metrics[*]",
        "has(self.range) == has(self.step) && (!has(self.range) || has(self.query))",
        "must be given together with step, for a query",
        _step_with_range,
        field=".range",
    ),
    Rule(
        "spec.metrics[*]",
        "!has(self.timeQuery) || (has(self.query) && !has(self.range))",
        "must be left out unless there is a query without range: a range has times",
        _time_query_with_query,
        field=".timeQuery",
    ),
    Rule(
        "spec.metrics[*]",
        "!has(self.valueLabel) || self.type == 'state' || self.type == 'text'",
        "must be left out unless type is state or text",
        _label_for_words,
        field=".valueLabel",
    ),
    Rule(
        "spec.metrics[*]",
        "!has(self.min) || !has(self.max) || self.min <= self.max",
        "must be at most max",
        _min_to_max,
        field=".min",
    ),
)
