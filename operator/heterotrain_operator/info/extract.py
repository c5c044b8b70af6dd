"""Samples out of a source's rows: which rows count, which entity each is about, several rows made one. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from statistics import fmean
from typing import Final

from heterotrain_api.info_collection import CollectedMetric, CollectionRuleSpec, Combine, EntityMapping
from heterotrain_core.info.selectors import labels_match, names_in, render
from heterotrain_core.info.values import Entity, Metric, MetricType, Sample
from heterotrain_operator.info.sources.base import Reply, Row

MAX_NOTES: Final = 3
"""Kinds of trouble that a status names."""
STEP: Final = 32
"""Rows that are looked at in one step: a fifth of a millisecond."""
MAX_TEXT: Final = 512
"""Characters of a state or text."""

_REDUCTIONS: Final[Mapping[Combine, Callable[[Sequence[float]], float]]] = {
    Combine.SUM: math.fsum,
    Combine.MEAN: fmean,
    Combine.MIN: min,
    Combine.MAX: max,
    Combine.COUNT: lambda values: float(len(values)),
}


class Refused(StrEnum):
    """Why a row gave no sample; the word that is counted."""

    NOT_FINITE = "not_finite"
    WRONG_TYPE = "wrong_type"
    OUT_OF_BOUNDS = "out_of_bounds"
    UNMAPPED = "unmapped"
    """No template of the rule fits its labels: it is about nobody we know."""
    SEVERAL = "several"
    """Another row was about the same entity at the same time, and the rule does not combine."""
    CARDINALITY = "cardinality"
    """The rule has as many series as it may have."""
    EMPTY = "empty"
    """Not a row: a metric without any."""


@dataclass(slots=True)
class Extracted:
    """What one run gave."""

    samples: list[Sample] = field(default_factory=list)
    """In order of time."""
    series: list[tuple[Entity, str]] = field(default_factory=list)
    """Of the samples, each once."""
    labels: dict[Entity, dict[str, str]] = field(default_factory=dict)
    refused: Counter[Refused] = field(default_factory=Counter)
    notes: dict[Refused, str] = field(default_factory=dict)
    """The first case of each kind, in words."""

    def refuse(self, reason: Refused, note: str) -> None:
        """Count a row that gave nothing."""
        self.refused[reason] += 1
        if reason not in self.notes:
            self.notes[reason] = note

    def trouble(self) -> str:
        """What went wrong, in one line; empty if nothing. Metrics without a row are none while others have some."""
        told = [
            f"{self.refused[reason]} {note}"
            for reason, note in self.notes.items()
            if reason is not Refused.EMPTY or not self.samples
        ]
        return "; ".join(told[:MAX_NOTES])


def declared(spec: CollectionRuleSpec) -> list[Metric]:
    """The rule's metrics as the store knows them; without any ttl a value is fresh for three intervals."""
    ttl = 3 * spec.interval if spec.ttl is None else spec.ttl
    return [
        Metric(m.name, MetricType(m.type.value), m.unit, ttl if m.ttl is None else m.ttl, m.description)
        for m in spec.metrics
    ]


def longest_ttl(spec: CollectionRuleSpec) -> float:
    """Seconds after which nothing of the rule's last good run is fresh any more."""
    ttl = 3 * spec.interval if spec.ttl is None else spec.ttl
    return max(ttl if metric.ttl is None else metric.ttl for metric in spec.metrics)


def extract(spec: CollectionRuleSpec, reply: Reply, received: float, skew_seconds: float = 0.0) -> Extracted:
    """Samples in order of time. Those of rows without a time are of `received`."""
    out = Extracted()
    for _ in extracting(spec, reply, (received, skew_seconds), out):
        pass
    return out


def extracting(spec: CollectionRuleSpec, reply: Reply, times: tuple[float, float], out: Extracted) -> Iterator[None]:
    """`extract` into `out`, in steps, for who has other things to do between."""
    of_all = _Mapper(spec.entity)
    for metric in spec.metrics:
        rows = reply.rows.get(metric.name, ())
        if not rows and metric.name not in reply.errors:
            out.refuse(Refused.EMPTY, "metrics without a series: none for " + metric.name)
        mapper = of_all if metric.entity is None else _Mapper(metric.entity)
        by_entity = yield from _sorting(spec, metric, mapper, rows, out)
        for place, (entity, found) in enumerate(by_entity.items(), start=1):
            if place % STEP == 0:
                yield
            if len(out.samples) >= spec.cardinality:
                out.refuse(
                    Refused.CARDINALITY, f"series above cardinality {spec.cardinality}: {metric.name} of {entity}"
                )
                continue
            _make(metric, entity, found, times, out)
    out.samples.sort(key=attrgetter("time"))


class _Mapper:
    """`map_entity` of one rule in one run. Most series of a run are about a few entities: each is named once."""

    def __init__(self, mappings: Sequence[EntityMapping]) -> None:
        self._mappings = mappings
        self._names = sorted({
            name for mapping in mappings for name in (*names_in(mapping.name), *mapping.absent, *mapping.match)
        })  # fmt: skip
        self._found: dict[tuple[str | None, ...], Entity | None] = {}

    def find(self, labels: Mapping[str, str]) -> Entity | None:
        """The entity of a series; `None`: nobody's."""
        key = tuple(map(labels.get, self._names))
        if key not in self._found:
            self._found[key] = map_entity(self._mappings, labels)
        return self._found[key]


def _sorting(
    spec: CollectionRuleSpec, metric: CollectedMetric, mapper: _Mapper, rows: Sequence[Row], out: Extracted
) -> Generator[None, None, dict[Entity, list[Row]]]:
    """The rows that count, by entity; in steps."""
    by_entity: dict[Entity, list[Row]] = {}
    for place, row in enumerate(rows, start=1):
        if place % STEP == 0:
            yield
        if metric.match and not labels_match(metric.match, row.labels):
            continue
        value = _value(metric, row, out)
        if value is None:
            continue
        entity = mapper.find(row.labels)
        if entity is None:
            labels = ", ".join(f"{name}={text}" for name, text in sorted(row.labels.items()))
            out.refuse(Refused.UNMAPPED, f"series name no entity: {metric.name} {{{labels:.200}}}")
            continue
        if spec.labels and entity not in out.labels:
            rendered = {name: render(template, row.labels) for name, template in spec.labels.items()}
            out.labels[entity] = {name: text for name, text in rendered.items() if text is not None}
        by_entity.setdefault(entity, []).append(Row(row.labels, value, row.timestamp))
    return by_entity


def map_entity(mappings: Sequence[EntityMapping], labels: Mapping[str, str]) -> Entity | None:
    """The entity of a series by the first mapping that fits; `None`: nobody's, rather than a wrong one's."""
    for mapping in mappings:
        if any(name in labels for name in mapping.absent) or not labels_match(mapping.match, labels):
            continue
        name = render(mapping.name, labels)
        if name is None:
            continue
        try:
            return Entity(name)
        except ValueError:
            continue
    return None


def _value(metric: CollectedMetric, row: Row, out: Extracted) -> float | str | None:
    value: float | str = row.value if metric.value_label is None else row.labels.get(metric.value_label, "")
    if metric.type in ("state", "text"):
        text = value if isinstance(value, str) else f"{value:.12g}"
        return text[:MAX_TEXT] or None
    if isinstance(value, str):
        out.refuse(Refused.WRONG_TYPE, f"values are no numbers: {metric.name} is {value[:40]!r}")
        return None
    number = value * metric.scale
    if not math.isfinite(number):
        out.refuse(Refused.NOT_FINITE, f"values are not finite: {metric.name} is {value}")
        return None
    if (metric.min is not None and number < metric.min) or (metric.max is not None and number > metric.max):
        out.refuse(Refused.OUT_OF_BOUNDS, f"values are out of bounds: {metric.name} is {number:g}")
        return None
    return number


def _make(
    metric: CollectedMetric, entity: Entity, rows: Sequence[Row], times: tuple[float, float], out: Extracted
) -> None:
    """The samples of one series of ours."""
    received, skew = times
    out.series.append((entity, metric.name))

    def time_of(row: Row) -> float:
        return received if row.timestamp is None else row.timestamp + skew

    if len(rows) == 1:
        out.samples.append(Sample(entity, metric.name, time_of(rows[0]), rows[0].value))
        return
    is_range = len({id(row.labels) for row in rows}) < len(rows)
    moments: dict[float, list[Row]] = {}
    newest = max(time_of(row) for row in rows)
    for row in rows:
        # Parts of one thing may have been measured at slightly different times; the values of a range are many moments.
        moments.setdefault(time_of(row) if is_range else newest, []).append(row)
    for time, together in moments.items():
        values = [row.value for row in together]
        if len(values) > 1 and metric.combine is Combine.REFUSE:
            for _ in values[1:]:
                out.refuse(
                    Refused.SEVERAL, f"series are about an entity that has one: {metric.name} of {entity}; set combine"
                )
        out.samples.append(Sample(entity, metric.name, time, _combined(metric.combine, values)))


def _combined(combine: Combine, values: Sequence[float | str]) -> float | str:
    numbers = [value for value in values if not isinstance(value, str)]
    if combine is Combine.REFUSE or len(values) == 1 or len(numbers) < len(values):
        return values[0]
    return _REDUCTIONS[combine](numbers)
