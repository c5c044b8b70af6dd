"""Processing rules applied to a list of samples, without a store or a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final

from heterotrain_core.info.graph import refusal
from heterotrain_core.info.processing import Derived, Effects, Processor
from heterotrain_core.info.rules import DEFAULT_TTL, ProcessingRule
from heterotrain_core.info.values import Entity, Event, Sample

MAX_TICKS: Final = 10_000
"""Most applications by period that a dry run makes."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """What the rules make of the samples, in order of time."""

    samples: tuple[Sample, ...]
    events: tuple[Event, ...]
    absent: tuple[tuple[Entity, str], ...]
    """Entity and metric of the outputs that had a value and have none at the end."""
    errors: dict[str, str]
    """By rule: the first thing that went wrong while it was applied."""


def dryrun(
    rules: Sequence[ProcessingRule],
    samples: Sequence[Sample],
    now: float | None = None,
    look: Callable[[], None] = lambda: None,
) -> DryRun:
    """Replay `samples`, each at its own time, and see what is there at `now` (`None`: at the newest sample's time).

    With `now` an output whose newest value is stale by then is absent: none of its samples is given; samples after
    `now` are not there yet. Of two samples of one series and time the first counts. Raises `ValueError` for rules that
    cannot be obeyed (a ring, a wrong parameter), naming the rule. `look` is called again and again and may raise, to
    give up.
    """
    check_rules(rules)
    ttls = {metric.name: metric.ttl for rule in rules for metric in rule.metrics()}
    processor = Processor(lambda metric: ttls.get(metric, DEFAULT_TTL))
    for rule in rules:
        processor.set(rule)
    there = _usable(samples, now)
    end = now if now is not None else max((sample.time for sample in there), default=0.0)
    derived: list[Derived] = []
    events: list[Event] = []
    errors: dict[str, str] = {}
    expires: dict[tuple[Entity, str], float] = {}
    for effects in _replay(processor, there, end):
        look()
        derived += effects.derived
        events += effects.events
        errors = effects.errors | errors
        expires |= {(made.sample.entity, made.sample.metric): made.expires for made in effects.derived}
        expires |= dict.fromkeys(effects.withdrawn, float("-inf"))
    absent = tuple(key for key, until in expires.items() if until < end)
    stale = {key for key in absent if expires[key] > float("-inf")} if now is not None else set()
    kept = tuple(made.sample for made in derived if (made.sample.entity, made.sample.metric) not in stale)
    return DryRun(kept, tuple(events), absent, errors)


def check_rules(rules: Sequence[ProcessingRule]) -> None:
    """Raise `ValueError` for the first of `rules` that cannot be obeyed beside those before it."""
    for index, rule in enumerate(rules):
        before = rules[:index]
        if any(other.name == rule.name for other in before):
            raise ValueError(f"rule {rule.name}: another rule has this name; names must differ")
        reason = refusal(rule, before)
        if reason is not None:
            raise ValueError(f"rule {rule.name}: {reason}")


def _usable(samples: Sequence[Sample], now: float | None) -> list[Sample]:
    first: dict[tuple[Entity, str, float], Sample] = {}
    for sample in samples:
        if now is None or sample.time <= now:
            first.setdefault((sample.entity, sample.metric, sample.time), sample)
    return sorted(first.values(), key=attrgetter("time", "entity", "metric"))


def _replay(processor: Processor, samples: Sequence[Sample], end: float) -> Iterator[Effects]:
    ticks = 0
    for time, moment in groupby(samples, key=attrgetter("time")):
        for effects in _ticks(processor, time):
            ticks += 1
            yield effects
        yield processor.feed(moment)
        if ticks > MAX_TICKS:
            break
    yield from _ticks(processor, end)


def _ticks(processor: Processor, until: float) -> Iterator[Effects]:
    due = processor.next_tick()
    for _ in range(MAX_TICKS):
        if due is None or due > until:
            return
        yield processor.tick(until if due == float("-inf") else due)
        due = processor.next_tick()
