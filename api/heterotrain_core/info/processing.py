"""The machine that applies processing rules: samples in, derived samples and events out. No clock, no store.

Samples of one moment are all taken up before the rules are applied, so that a rule over two metrics of one scrape is
applied once. Rules are applied in the order in which they feed each other. What one rule does never touches another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from heterotrain_core.info.graph import order
from heterotrain_core.info.known import Known
from heterotrain_core.info.rules import DEFAULT_TTL, Emit, ProcessingRule, Trigger
from heterotrain_core.info.target import Made, RuleError, Target
from heterotrain_core.info.values import Entity, Event, Sample

STEP: Final = 16
"""Samples taken up, or rules applied, in one step: a fifth of a millisecond."""


class Derived(NamedTuple):
    """A sample that a rule made."""

    sample: Sample
    expires: float
    """When it is absent: as soon as one of the inputs it was made from is, or after its own ttl."""
    rule: str


@dataclass(slots=True)
class Effects:
    """What became of some samples."""

    derived: list[Derived] = field(default_factory=list)
    withdrawn: list[tuple[Entity, str]] = field(default_factory=list)
    """Outputs that had a value and are absent now."""
    events: list[Event] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    """By rule: the first thing that went wrong, with the entity's name."""
    applied: dict[str, float] = field(default_factory=dict)
    """By each rule that was applied: seconds that took, on the clock given."""


class _Runner:
    def __init__(self, rule: ProcessingRule) -> None:
        self.rule: Final = rule
        self.targets: dict[Entity, Target] = {}
        self.pending: dict[Entity, None] = {}
        self.due: float | None = None

    def target(self, entity: Entity) -> Target:
        found = self.targets.get(entity)
        if found is None:
            if len(self.targets) >= self.rule.cardinality:
                raise RuleError(f"more than {self.rule.cardinality} entities: {entity} and others are left out")
            found = self.targets[entity] = Target(self.rule, entity)
        return found


def _no_labels(_: Entity) -> Mapping[str, str]:
    return {}


class Processor:
    """All rules with their memory. Not thread safe."""

    def __init__(
        self,
        ttl_of: Callable[[str], float] = lambda _: DEFAULT_TTL,
        labels_of: Callable[[Entity], Mapping[str, str]] = _no_labels,
        clock: Callable[[], float] = float,
    ) -> None:
        """`ttl_of`: seconds that a metric is fresh; `labels_of`: an entity's labels; `clock`: measures durations."""
        self._clock: Final = clock
        self._runners: dict[str, _Runner] = {}
        self._order: list[_Runner] = []
        self._readers: dict[str, list[_Runner]] = {}
        self._known: Final = Known(ttl_of, labels_of)

    def set(self, rule: ProcessingRule) -> None:
        """Obey a rule, or its new version with an empty memory. Raises `ValueError` for a ring."""
        runners = {**self._runners, rule.name: _Runner(rule)}
        self._arrange(runners)

    def remove(self, name: str) -> None:
        """Obey a rule no longer."""
        self._arrange({other: runner for other, runner in self._runners.items() if other != name})

    def _arrange(self, runners: dict[str, _Runner]) -> None:
        names = order([runner.rule for runner in runners.values()])
        self._runners = runners
        self._order = [runners[name] for name in names]
        self._readers = {}
        for runner in self._order:
            for metric in {item.metric for item in runner.rule.inputs.values()}:
                self._readers.setdefault(metric, []).append(runner)
        self._known.keep_only(self._readers)

    def targets(self, name: str) -> int:
        """How many entities a rule has a memory of."""
        return len(self._runners[name].targets)

    def feed(self, samples: Iterable[Sample], now: float | None = None) -> Effects:
        """Take samples up and apply the rules; `now` `None`: each at its own time."""
        effects = Effects()
        for _ in self.feeding(samples, now, effects):
            pass
        return effects

    def feeding(self, samples: Iterable[Sample], now: float | None, effects: Effects) -> Iterator[None]:
        """`feed` into `effects`, in steps, for who does other things between; nothing of this may be among them."""
        used = sorted((sample for sample in samples if sample.metric in self._readers), key=attrgetter("time"))
        for time, moment in groupby(used, key=attrgetter("time")):
            for place, sample in enumerate(moment, start=1):
                self._take(sample, None)
                if place % STEP == 0:
                    yield
            yield from self._applying(time, time if now is None else now, effects)

    def tick(self, now: float) -> Effects:
        """Apply the rules whose period is over."""
        effects = Effects()
        for runner in self._order:
            period = runner.rule.period
            if runner.rule.trigger is not Trigger.PERIOD or period is None:
                continue
            if runner.due is None or runner.due <= now:
                if runner.due is not None:
                    runner.pending.update(self._primaries(runner.rule))
                runner.due = (now // period + 1) * period
        for _ in self._applying(now, now, effects):
            pass
        return effects

    def next_tick(self) -> float | None:
        """When `tick` has something to do; `None`: no rule has a period. -inf: at once, to begin."""
        due = [
            float("-inf") if runner.due is None else runner.due
            for runner in self._order
            if runner.rule.trigger is Trigger.PERIOD
        ]
        return min(due, default=None)

    def prune(self, horizon: float) -> None:
        """Forget what had no sample since `horizon`: entities that are gone would else stay for ever."""
        self._known.prune(horizon)
        for runner in self._order:
            for entity in [e for e, target in runner.targets.items() if target.used < horizon]:
                del runner.targets[entity]

    def _primaries(self, rule: ProcessingRule) -> dict[Entity, None]:
        found: dict[Entity, None] = {}
        for item in rule.inputs.values():
            if item.of is None:
                found.update(dict.fromkeys(e for e in self._known.entities(item.metric) if self._known.means(item, e)))
        return found

    def _take(self, sample: Sample, limit: float | None) -> None:
        self._known.take(sample, limit)
        for runner in self._readers.get(sample.metric, ()):
            rule = runner.rule
            if rule.trigger is Trigger.EACH_SAMPLE and any(
                item.of is None and item.metric == sample.metric and self._known.means(item, sample.entity)
                for item in rule.inputs.values()
            ):
                runner.pending[sample.entity] = None

    def _applying(self, time: float, now: float, effects: Effects) -> Iterator[None]:
        for runner in self._order:
            entities, runner.pending = tuple(runner.pending), {}
            for first in range(0, len(entities), STEP):
                began = self._clock()
                for entity in entities[first : first + STEP]:
                    self._apply(runner, entity, (time, now), effects)
                name = runner.rule.name
                effects.applied[name] = effects.applied.get(name, 0.0) + self._clock() - began
                yield

    def _apply(self, runner: _Runner, entity: Entity, times: tuple[float, float], effects: Effects) -> None:
        try:
            made = runner.target(entity).apply(self._known, *times)
        except RuleError as error:
            effects.errors.setdefault(runner.rule.name, str(error))
        else:
            self._carry_out(runner.rule, made, effects)

    def _carry_out(self, rule: ProcessingRule, made: Made, effects: Effects) -> None:
        if made.event is not None and rule.emit is not Emit.VALUE:
            effects.events.append(made.event)
        if made.error:
            effects.errors.setdefault(rule.name, made.error)
        if rule.emit is Emit.EVENT:
            return
        for sample, expires in made.samples:
            effects.derived.append(Derived(sample, expires, rule.name))
            self._take(sample, expires)
        for entity, metric in made.withdrawn:
            effects.withdrawn.append((entity, metric))
            self._known.withdraw(entity, metric)
