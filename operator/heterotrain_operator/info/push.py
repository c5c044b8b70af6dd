"""Which samples may be pushed: those that a rule with source push says, and no others."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from heterotrain_api.info_collection import CollectedMetric, CollectionRule
from heterotrain_core.info.selectors import matches
from heterotrain_core.info.values import Entity, MetricType, Sample
from heterotrain_operator.info.extract import MAX_TEXT

MAX_SAMPLES: Final = 10_000
"""Of one push."""


class PushDesk:
    """Looks at every pushed sample."""

    def __init__(self) -> None:
        self._rules: dict[str, CollectionRule] = {}
        self._series: dict[str, dict[tuple[Entity, str], float]] = {}
        """By rule: its series, each with the time of its newest sample."""

    def set_rule(self, rule: CollectionRule) -> None:
        """Obey a rule with source push."""
        self._rules[rule.metadata.name] = rule
        self._series.setdefault(rule.metadata.name, {})

    def remove_rule(self, name: str) -> None:
        """Obey it no longer."""
        self._rules.pop(name, None)
        self._series.pop(name, None)

    def series(self, name: str) -> int:
        """How many series a rule has."""
        return len(self._series[name])

    def prune(self, horizon: float) -> None:
        """Forget series without a sample since `horizon`, so that others have room."""
        for name, series in self._series.items():
            self._series[name] = {key: time for key, time in series.items() if time >= horizon}

    def rule_of(self, sample: Sample) -> tuple[str | None, str]:
        """The rule that takes a sample, or `None` and why there is none."""
        reason = f"no rule with source push has metric {sample.metric}: add one"
        for name, rule in self._rules.items():
            metric = next((m for m in rule.spec.metrics if m.name == sample.metric), None)
            if metric is None:
                continue
            fault = self._fault(name, rule, metric, sample)
            if fault is None:
                self._series[name][sample.entity, sample.metric] = sample.time
                return name, ""
            reason = fault
        return None, reason

    def _fault(self, name: str, rule: CollectionRule, metric: CollectedMetric, sample: Sample) -> str | None:
        push = rule.spec.source.push
        if push is None or not any(matches(glob, sample.entity) for glob in push.entities):
            return f"rule {name} does not take {sample.metric} of {sample.entity}"
        series = self._series[name]
        if (sample.entity, sample.metric) not in series and len(series) >= rule.spec.cardinality:
            return f"rule {name} has {rule.spec.cardinality} series, which is its cardinality"
        fault = value_fault(metric, sample.value)
        return None if fault is None else f"{sample.metric} {fault}"


def value_fault(metric: CollectedMetric, value: float | str) -> str | None:
    """What is wrong with a pushed value; `None` if it may be stored."""
    if isinstance(value, str) == MetricType(metric.type.value).numeric:
        return f"is a {metric.type.value}: send {'a number' if isinstance(value, str) else 'a text'}"
    if isinstance(value, str):
        return None if len(value) <= MAX_TEXT else f"must have at most {MAX_TEXT} characters"
    if not math.isfinite(value):
        return "must be finite"
    low = -math.inf if metric.min is None else metric.min
    high = math.inf if metric.max is None else metric.max
    return None if low <= value <= high else f"must be between {low:g} and {high:g}"


def by_rule(desk: PushDesk, samples: Iterable[Sample]) -> tuple[dict[str, list[int]], list[tuple[int, str]]]:
    """Places of the samples by the rule that takes them, and the others' places with the reason."""
    taken: dict[str, list[int]] = {}
    refused: list[tuple[int, str]] = []
    for index, sample in enumerate(samples):
        name, reason = desk.rule_of(sample)
        if name is None:
            refused.append((index, reason))
        else:
            taken.setdefault(name, []).append(index)
    return taken, refused
