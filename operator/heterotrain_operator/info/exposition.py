"""Derived values, and how the rules do, as Prometheus metrics: the user's Prometheus keeps the long history.

What the rules collect is not shown again, but what trainers report is, since nobody else has it. A metric ``x`` of
``node/a`` is ``heterotrain_x{kind="node",name="a"}``. Asked in the thread of the metrics' server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector as PrometheusCollector

from heterotrain_core.info.values import Metric, MetricType
from heterotrain_operator.info.loop import InfoService
from heterotrain_operator.info.rule_state import RuleState
from heterotrain_operator.info.store import Reading
from heterotrain_operator.info.telemetry import RULE_METRICS

PREFIX: Final = "heterotrain_"
RESERVED: Final = ("operator_", "info_")
"""Metrics of rules that begin so are not shown: the names are the operator's own."""
LABELS: Final = ("kind", "name")


class DerivedValues(PrometheusCollector):
    """Registered with the operator's metrics."""

    def __init__(self, service: InfoService, most_series: int, now: Callable[[], float]) -> None:
        """`most_series`: of all metrics together; what finds no room is counted. `now`: time of day, s."""
        self._service = service
        self._most_series = most_series
        self._now = now

    def describe(self) -> Iterable[Family]:
        """Nothing is known before it is asked for."""
        return ()

    def collect(self) -> Iterator[Family]:
        """Fresh values only."""
        now, room, dropped = self._now(), self._most_series, 0
        taken: set[str] = set()
        for metric in self._metrics():
            family = family_of(metric)
            readings = [r for r in self._service.engine.store.latest(now, metric=metric.name) if r.value is not None]
            if not readings:
                continue
            if family is None or family.name in taken or len(readings) > room:
                dropped += len(readings)
                continue
            taken.add(family.name)
            room -= len(readings)
            yield filled(family, metric, readings)
        yield from self._own(dropped)
        yield outcomes_family(self._service.states())

    def _metrics(self) -> Sequence[Metric]:
        """What is shown, the service's own first: a rule that makes too much must not hide how it does."""
        store = self._service.engine.store
        names = [metric.name for metric in RULE_METRICS]
        for _, pushed in sorted(self._service.collector.rules().items()):
            if pushed.spec.source.push is not None:
                names += [metric.name for metric in pushed.spec.metrics]
        for _, rule in sorted(self._service.engine.rules().items()):
            names += [metric.name for metric in rule.metrics()]
        found = (store.metric(name) for name in dict.fromkeys(names))
        return [metric for metric in found if metric is not None]

    def _own(self, dropped: int) -> Iterator[Family]:
        engine = self._service.engine
        outcomes = CounterMetricFamily(f"{PREFIX}info_samples", "Samples by what became of them.", labels=["outcome"])
        for outcome, count in list(engine.outcomes.items()):
            outcomes.add_metric([outcome], count)
        yield outcomes
        series, slots = engine.store.size
        yield GaugeMetricFamily(f"{PREFIX}info_series", "Series in memory.", value=series)
        yield GaugeMetricFamily(f"{PREFIX}info_sample_slots", "Room for samples in memory, 16 bytes each.", value=slots)
        yield CounterMetricFamily(
            f"{PREFIX}info_busy_seconds", "CPU time spent in storing and processing samples.", value=engine.busy_seconds
        )
        yield GaugeMetricFamily(f"{PREFIX}info_series_not_shown", "Derived series without room here.", value=dropped)


def family_of(metric: Metric) -> Family | None:
    """An empty family for a metric; `None` if it is of texts, or its name is the operator's."""
    if metric.type is MetricType.TEXT or metric.name.startswith(RESERVED):
        return None
    text = metric.description or "Given by a rule."
    match metric.type:
        case MetricType.COUNTER:
            return CounterMetricFamily(PREFIX + metric.name, text, labels=LABELS)
        case MetricType.STATE:
            return GaugeMetricFamily(
                PREFIX + metric.name, f"{text} 1 for the present state.", labels=[*LABELS, "state"]
            )
        case _:
            return GaugeMetricFamily(PREFIX + metric.name, text, labels=LABELS)


def filled(family: Family, metric: Metric, readings: Iterable[Reading]) -> Family:
    """The family with a sample for each reading."""
    suffix = "_total" if isinstance(family, CounterMetricFamily) else ""
    for reading in readings:
        labels = {"kind": reading.entity.kind, "name": reading.entity.name}
        match metric.type, reading.value:
            case MetricType.STATE, str(state):
                family.add_sample(family.name, {**labels, "state": state}, 1.0)
            case _, float() | int() as value:
                family.add_sample(family.name + suffix, labels, value)
            case _:
                continue
    return family


def outcomes_family(states: Iterable[RuleState]) -> Family:
    """What became of each rule's runs and samples."""
    family = CounterMetricFamily(
        f"{PREFIX}info_rule_outcomes", "Samples and runs of a rule by what became of them.", labels=["rule", "outcome"]
    )
    for state in states:
        for outcome, count in list(state.outcomes.items()):
            family.add_metric([f"{state.kind}/{state.name}", outcome], count)
    return family
