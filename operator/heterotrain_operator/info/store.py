"""The newest values and the recent past of every series, in bounded memory.

Absent is absent: a value past its freshness is never given as a present one. What is put in is refused, with a named
outcome, if it is no number, comes twice, comes late, or finds no room. Any thread may call.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from threading import RLock
from typing import Final

from heterotrain_core.info.selectors import labels_match, matches
from heterotrain_core.info.stats import AGGREGATES
from heterotrain_core.info.values import ABSENT, Entity, Metric, MetricType, Sample, Value
from heterotrain_operator.info.ring import Ring

MAX_SKEW_SECONDS: Final = 5.0
"""A sample from further in the future than this is refused."""
SPAN_AGGREGATES: Final = ("mean", "min", "max", "sum", "count", "median", "first", "last")
"""What a range may be reduced by."""


class Outcome(StrEnum):
    """What became of a sample."""

    STORED = "stored"
    DUPLICATE = "duplicate"
    """The series has a sample of this time already; the first one counts."""
    LATE = "late"
    """Older than the series' newest, or than the retention."""
    FUTURE = "future"
    NOT_FINITE = "not_finite"
    WRONG_TYPE = "wrong_type"
    """A word for a numeric metric, or a number for one of words."""
    NO_ROOM = "no_room"
    """The store has as many series as it may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is kept at most; 16 bytes a number."""

    retention_seconds: float = 3600.0
    samples_per_series: int = 1024
    samples: int = 4_000_000
    """In all; from then on no series grows, each drops its own oldest."""
    series: int = 60_000


@dataclass(frozen=True, slots=True)
class Reading:
    """The newest value of a series."""

    entity: Entity
    metric: str
    time: float
    """When the newest value was taken, whether or not it still counts; seconds since the epoch."""
    value: Value
    """`ABSENT` if the newest value is no longer fresh or was withdrawn."""
    expires: float
    """When it is absent at the latest."""
    revision: int
    """Grows with every change in the store: later changes have higher ones."""


@dataclass(frozen=True, slots=True)
class EntityInfo:
    """An entity that something is known of."""

    entity: Entity
    labels: Mapping[str, str]
    metrics: tuple[str, ...]


@dataclass(slots=True)
class _Series:
    entity: Entity
    metric: str
    ring: Ring
    expires: float = -math.inf
    revision: int = 0
    withdrawn: bool = False


@dataclass(slots=True)
class _EntityEntry:
    labels: dict[str, str] = field(default_factory=dict)
    series: dict[str, _Series] = field(default_factory=dict)


class Store:
    """All series; one lock, held for microseconds."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits: Final = limits or Limits()
        self._lock = RLock()
        self._metrics: dict[str, Metric] = {}
        self._guessed: set[str] = set()
        """Metrics that nobody declared; forgotten with their last series."""
        self._entities: dict[Entity, _EntityEntry] = {}
        self._in_order: Sequence[Entity] | None = None
        """The entities by name; `None` once another one has come or one has gone."""
        self._by_metric: dict[str, dict[Entity, _Series]] = {}
        self._order: OrderedDict[tuple[Entity, str], _Series] = OrderedDict()
        """Series by their last change, the newest last."""
        self._revision = 0
        self._allocated = 0
        self._journals: list[Callable[[Sample, float], None]] = []

    # ---- what is put in

    def declare(self, metric: Metric) -> None:
        """Say what a metric is; a change of type begins its series anew."""
        with self._lock:
            known = self._metrics.get(metric.name)
            if known is not None and known.type.numeric != metric.type.numeric:
                for series in tuple(self._by_metric.get(metric.name, {}).values()):
                    self._forget(series)
            self._metrics[metric.name] = metric
            self._guessed.discard(metric.name)

    def set_labels(self, entity: Entity, labels: Mapping[str, str]) -> None:
        """Add to the labels of an entity that has series; of another one nothing is kept."""
        with self._lock:
            entry = self._entities.get(entity)
            if entry is not None and labels:
                entry.labels.update(labels)

    def put(self, sample: Sample, now: float, expires: float | None = None) -> Outcome:
        """Take a sample up. It is absent after `expires`; `None`: after its metric's ttl. Infinity is a number."""
        with self._lock:
            outcome, series = self._check(sample, now)
            if series is None:
                return outcome
            ring = series.ring
            ring.drop_before(now - self.limits.retention_seconds)
            before = ring.allocated
            ring.append(sample.time, sample.value, may_grow=self._allocated < self.limits.samples)
            self._allocated += ring.allocated - before
            series.expires = sample.time + self._metrics[sample.metric].ttl if expires is None else expires
            series.withdrawn = False
            self._changed(series)
            for journal in self._journals:
                journal(sample, series.expires)
            return outcome

    def withdraw(self, entity: Entity, metric: str) -> None:
        """The present value is absent from now on; the past stays."""
        with self._lock:
            series = self._by_metric.get(metric, {}).get(entity)
            if series is not None and not series.withdrawn:
                series.expires, series.withdrawn = -math.inf, True
                self._changed(series)

    def on_put(self, journal: Callable[[Sample, float], None]) -> None:
        """Have `journal` called with each sample stored and when it expires; under the lock, so it must be quick."""
        self._journals.append(journal)

    def sweep(self, now: float) -> int:
        """Forget series without a sample within the retention, and entities without series; gives how many series.

        To be called every minute or so: what is gone (a deleted pod) would else stay for ever.
        """
        with self._lock:
            horizon = now - self.limits.retention_seconds
            dead = [s for s in self._order.values() if not len(s.ring) or s.ring.last()[0] < horizon]
            for series in dead:
                self._forget(series)
            return len(dead)

    # ---- what is read

    @property
    def revision(self) -> int:
        """That of the last change."""
        return self._revision

    @property
    def size(self) -> tuple[int, int]:
        """Series, and slots for samples in memory."""
        return len(self._order), self._allocated

    def metrics(self) -> list[Metric]:
        """All metrics declared or seen, by name."""
        with self._lock:
            return [self._metrics[name] for name in sorted(self._metrics)]

    def metric(self, name: str) -> Metric | None:
        """A metric, `None` if nobody declared or sent it."""
        return self._metrics.get(name)

    def labels(self, entity: Entity) -> Mapping[str, str]:
        """An entity's labels; empty if it is not known."""
        with self._lock:
            entry = self._entities.get(entity)
            return dict(entry.labels) if entry else {}

    def entities(self, glob: str = "*", labels: Mapping[str, str] | None = None) -> list[EntityInfo]:
        """Entities that `glob` (see `heterotrain_core.info.selectors.matches`) and `labels` mean, in order."""
        with self._lock:
            return [
                EntityInfo(entity, dict(entry.labels), tuple(sorted(entry.series)))
                for entity, entry in sorted(self._entities.items())
                if matches(glob, entity) and labels_match(labels or {}, entry.labels)
            ]

    def names(self) -> Sequence[Entity]:
        """All entities, in order; not to be changed."""
        with self._lock:
            if self._in_order is None:
                self._in_order = sorted(self._entities)
            return self._in_order

    def keys(
        self,
        limit: int,
        *,
        after: tuple[str, str] | None = None,
        glob: str = "*",
        metrics: Collection[str] = (),
        labels: Mapping[str, str] | None = None,
        wanted: Callable[[Entity], bool] = lambda _: True,
    ) -> list[tuple[Entity, str]]:
        """Entity and metric of the first `limit` series after `after`, in order, that all the others mean.

        No `metrics`: all. Costs what is looked at, not what there is: for reading in pages.
        """
        found: list[tuple[Entity, str]] = []
        with self._lock:
            entities = self.names()
            first = 0 if after is None else bisect_left(entities, after[0])
            for entity in islice(entities, first, None):
                entry = self._entities[entity]
                if matches(glob, entity) and labels_match(labels or {}, entry.labels) and wanted(entity):
                    chosen = sorted(entry.series.keys() & metrics if metrics else entry.series)
                    found += [(entity, name) for name in chosen if after is None or (entity, name) > after]
                    if len(found) >= limit:
                        break
        return found[:limit]

    def latest(
        self, now: float, glob: str = "*", metric: str | None = None, labels: Mapping[str, str] | None = None
    ) -> list[Reading]:
        """Newest values by entity and metric; those no longer fresh have the value `ABSENT`."""
        with self._lock:
            found = [
                _reading(series, now)
                for series in self._chosen(glob, metric)
                if labels_match(labels or {}, self._entities[series.entity].labels)
            ]
            return sorted(found, key=lambda reading: (reading.entity, reading.metric))

    def get(self, entity: Entity, metric: str, now: float) -> Reading | None:
        """One series' newest value; `None` if there is no such series."""
        with self._lock:
            series = self._by_metric.get(metric, {}).get(entity)
            return None if series is None else _reading(series, now)

    def changes(self, after: int, now: float) -> list[Reading]:
        """Newest values of the series that changed after revision `after`, oldest change first."""
        with self._lock:
            found: list[Reading] = []
            for series in reversed(self._order.values()):
                if series.revision <= after:
                    break
                found.append(_reading(series, now))
            return found[::-1]

    def span(
        self,
        entity: Entity,
        metric: str,
        begin: float,
        end: float,
        *,
        step: float | None = None,
        aggregate: str = "last",
    ) -> list[tuple[float, float | str]]:
        """Samples with `begin` <= time <= `end`, oldest first.

        With `step` (seconds): one for each multiple of `step` that has samples in [multiple, multiple + step), reduced
        by `aggregate`, one of `SPAN_AGGREGATES`; words take ``first``, ``last`` and ``count`` only. Raises
        `ValueError`.
        """
        if aggregate not in SPAN_AGGREGATES:
            raise ValueError(f"unknown aggregate {aggregate!r}; there are {', '.join(SPAN_AGGREGATES)}")
        if step is not None and not (step > 0 and math.isfinite(step)):
            raise ValueError(f"step must be more than 0 seconds, not {step}")
        with self._lock:
            series = self._by_metric.get(metric, {}).get(entity)
            samples = [] if series is None else list(series.ring.between(begin, end))
        return samples if step is None else list(_reduced(samples, step, aggregate))

    # ---- within

    def _check(self, sample: Sample, now: float) -> tuple[Outcome, _Series | None]:
        known = self._metrics.get(sample.metric)
        if known is None:
            known = Metric(sample.metric, MetricType.TEXT if isinstance(sample.value, str) else MetricType.GAUGE)
        refusal = _refusal(sample, known, now, self.limits.retention_seconds)
        if refusal is not None:
            return refusal, None
        series = self._by_metric.get(sample.metric, {}).get(sample.entity)
        if series is None:
            series = self._new_series(sample, known)
            return (Outcome.NO_ROOM if series is None else Outcome.STORED), series
        if len(series.ring) and sample.time <= series.ring.last()[0]:
            return (Outcome.DUPLICATE if sample.time == series.ring.last()[0] else Outcome.LATE), None
        return Outcome.STORED, series

    def _new_series(self, sample: Sample, known: Metric) -> _Series | None:
        if len(self._order) >= self.limits.series:
            return None
        if known.name not in self._metrics:
            self._metrics[known.name] = known
            self._guessed.add(known.name)
        ring = Ring(self.limits.samples_per_series, numeric=known.type.numeric)
        series = _Series(sample.entity, sample.metric, ring)
        if sample.entity not in self._entities:
            self._in_order = None
        self._by_metric.setdefault(sample.metric, {})[sample.entity] = series
        self._entities.setdefault(sample.entity, _EntityEntry()).series[sample.metric] = series
        self._order[sample.entity, sample.metric] = series
        return series

    def _changed(self, series: _Series) -> None:
        self._revision += 1
        series.revision = self._revision
        self._order.move_to_end((series.entity, series.metric))

    def _forget(self, series: _Series) -> None:
        self._allocated -= series.ring.allocated
        del self._order[series.entity, series.metric]
        of_metric = self._by_metric[series.metric]
        del of_metric[series.entity]
        if not of_metric:
            del self._by_metric[series.metric]
            if series.metric in self._guessed:
                self._guessed.remove(series.metric)
                del self._metrics[series.metric]
        entry = self._entities[series.entity]
        del entry.series[series.metric]
        if not entry.series:
            del self._entities[series.entity]
            self._in_order = None

    def _chosen(self, glob: str, metric: str | None) -> Iterable[_Series]:
        if metric is not None:
            return [series for entity, series in self._by_metric.get(metric, {}).items() if matches(glob, entity)]
        return [s for entity, entry in self._entities.items() if matches(glob, entity) for s in entry.series.values()]


def _refusal(sample: Sample, metric: Metric, now: float, retention: float) -> Outcome | None:
    """Why a sample is no good whatever the store holds; `None` if it is good."""
    if isinstance(sample.value, str) == metric.type.numeric:
        return Outcome.WRONG_TYPE
    if not math.isfinite(sample.time) or (not isinstance(sample.value, str) and math.isnan(sample.value)):
        return Outcome.NOT_FINITE
    if sample.time > now + MAX_SKEW_SECONDS:
        return Outcome.FUTURE
    return Outcome.LATE if sample.time < now - retention else None


def _reading(series: _Series, now: float) -> Reading:
    time, value = series.ring.last() if len(series.ring) else (-math.inf, ABSENT)
    reading = Reading(series.entity, series.metric, time, value, series.expires, series.revision)
    return reading if now <= series.expires else replace(reading, value=ABSENT)


def _reduced(
    samples: Iterable[tuple[float, float | str]], step: float, aggregate: str
) -> Iterator[tuple[float, float | str]]:
    buckets: dict[int, list[float | str]] = {}
    for time, value in samples:
        buckets.setdefault(math.floor(time / step), []).append(value)
    for index, values in buckets.items():
        yield index * step, _reduce(values, aggregate)


def _reduce(values: list[float | str], aggregate: str) -> float | str:
    match aggregate:
        case "first":
            return values[0]
        case "last":
            return values[-1]
        case "count":
            return float(len(values))
    numbers = [value for value in values if not isinstance(value, str)]
    if len(numbers) < len(values):
        raise ValueError(f"{aggregate} needs numbers; of words take first, last or count")
    return AGGREGATES[aggregate](numbers)
