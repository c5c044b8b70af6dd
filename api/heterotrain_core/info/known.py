"""The newest value of each series that some rule reads, and when it is absent."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple, cast

from heterotrain_core.info.rules import Input
from heterotrain_core.info.selectors import labels_match, matches, places_of, render
from heterotrain_core.info.stats import AGGREGATES
from heterotrain_core.info.values import ABSENT, Entity, Sample, Value


class _Held(NamedTuple):
    time: float
    value: float | str
    limit: float
    """Absent after this, whatever a ttl says; infinite for what was not derived."""


class Found(NamedTuple):
    """One input of a rule for one target."""

    value: Value
    time: float
    expires: float


_NOT_FOUND: Final = Found(ABSENT, -math.inf, -math.inf)


class Known:
    """Newest values by metric and entity."""

    def __init__(self, ttl_of: Callable[[str], float], labels_of: Callable[[Entity], Mapping[str, str]]) -> None:
        self._ttl_of = ttl_of
        self._labels_of = labels_of
        self._held: dict[str, dict[Entity, _Held]] = {}
        self._members: dict[tuple[str, str], tuple[Entity, ...]] = {}
        """By metric and pattern: the entities meant, until another one appears or one goes."""

    def take(self, sample: Sample, limit: float | None) -> None:
        """The newest value of a series; an older one is left aside."""
        of_metric = self._held.setdefault(sample.metric, {})
        before = of_metric.get(sample.entity)
        if before is None:
            self._forget_members(sample.metric)
        elif before.time > sample.time:
            return
        of_metric[sample.entity] = _Held(sample.time, sample.value, math.inf if limit is None else limit)

    def withdraw(self, entity: Entity, metric: str) -> None:
        """A series is absent from now on."""
        held = self._held.get(metric, {}).get(entity)
        if held is not None:
            self._held[metric][entity] = held._replace(limit=-math.inf)

    def keep_only(self, metrics: Collection[str]) -> None:
        """Forget metrics that no rule reads any more."""
        self._held = {metric: held for metric, held in self._held.items() if metric in metrics}
        self._members.clear()

    def prune(self, horizon: float) -> None:
        """Forget series whose newest value is from before `horizon`."""
        self._held = {
            metric: {entity: held for entity, held in of_metric.items() if held.time >= horizon}
            for metric, of_metric in self._held.items()
        }
        self._members.clear()

    def entities(self, metric: str) -> Collection[Entity]:
        """All entities that have a value of `metric`, absent or not."""
        return self._held.get(metric, {}).keys()

    def means(self, item: Input, entity: Entity) -> bool:
        """Whether an input is about an entity."""
        if not matches(item.entity, entity):
            return False
        return not item.labels or labels_match(item.labels, self._labels_of(entity))

    def find(self, item: Input, target: Entity, now: float) -> Found:
        """The input's value for a target at `now`."""
        if item.of is None:
            return self._at(item, target, now) if self.means(item, target) else _NOT_FOUND
        places = places_of(target, self._labels_of(target))
        pattern = render(item.of, places)
        labels = {name: render(glob, places) for name, glob in item.labels.items()}
        if pattern is None or None in labels.values():
            return _NOT_FOUND
        wanted = {name: glob for name, glob in labels.items() if glob is not None}
        if item.aggregate is not None:
            return self._aggregated(item, (pattern, wanted), now)
        meant = cast("Entity", pattern)  # only looked for, so its form need not be checked
        return self._at(item, meant, now) if labels_match(wanted, self._labels_of(meant)) else _NOT_FOUND

    def _at(self, item: Input, entity: Entity, now: float) -> Found:
        held = self._held.get(item.metric, {}).get(entity)
        if held is None:
            return _NOT_FOUND
        expires = min(held.limit, held.time + (self._ttl_of(item.metric) if item.ttl is None else item.ttl))
        return Found(held.value, held.time, expires) if now <= expires else _NOT_FOUND

    def _aggregated(self, item: Input, meant: tuple[str, Mapping[str, str]], now: float) -> Found:
        pattern, labels = meant
        found = [
            self._at(item, entity, now)
            for entity in self._meant(item.metric, pattern)
            if not labels or labels_match(labels, self._labels_of(entity))
        ]
        there = [one for one in found if isinstance(one.value, float | int)]
        if not there:
            return _NOT_FOUND
        value = AGGREGATES[str(item.aggregate)]([float(one.value) for one in there if one.value is not None])
        return Found(value, max(one.time for one in there), min(one.expires for one in there))

    def _meant(self, metric: str, pattern: str) -> tuple[Entity, ...]:
        key = (metric, pattern)
        if key not in self._members:
            self._members[key] = tuple(entity for entity in self._held.get(metric, {}) if matches(pattern, entity))
        return self._members[key]

    def _forget_members(self, metric: str) -> None:
        for key in [key for key in self._members if key[0] == metric]:
            del self._members[key]
