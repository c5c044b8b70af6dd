"""Runs all rules: a task for each collection rule, one for what is due by period, one that forgets what is too old.

The REST API and the operator talk to this: they set and remove rules, push samples and read states. Clock, sleep and
chance come in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from heterotrain_api.info_collection import CollectionRule
from heterotrain_api.info_rules import ProcessingRule
from heterotrain_api.rule_conditions import RuleReason
from heterotrain_core.info.values import Entity, Sample
from heterotrain_operator.info.collect import Collector
from heterotrain_operator.info.engine import Engine
from heterotrain_operator.info.extract import longest_ttl
from heterotrain_operator.info.push import PushDesk, by_rule
from heterotrain_operator.info.rule_state import RuleKind, RuleState
from heterotrain_operator.info.rules import compile_processing
from heterotrain_operator.info.store import Outcome
from heterotrain_operator.info.telemetry import RULE_METRICS, rule_samples

SWEEP_SECONDS: Final = 60.0
REPORT_SECONDS: Final = 10.0
SERVICE: Final = Entity("service/information")
LONGEST_NAP: Final = 1.0
"""Of the task for rules by period: a new rule is noticed after that."""
JITTER: Final = 0.05
"""Of an interval, so that rules of one source do not stay in step."""
REFUSALS: Final = {
    Outcome.LATE: "is older than the newest of its series, or than what is kept",
    Outcome.FUTURE: "is of the future: send times on a clock that is right, or none",
    Outcome.NOT_FINITE: "must be finite",
    Outcome.WRONG_TYPE: "is not of its metric's type",
    Outcome.NO_ROOM: "finds no room: there are as many series as there may be",
}
"""Why the store refused a pushed sample. One that it has already is no error: pushes may be repeated."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """What became of pushed samples."""

    stored: int
    refused: tuple[tuple[int, str], ...]
    """Place in the list, and why."""


class InfoService:
    """Rules, samples and events of one process. Used on one event loop."""

    def __init__(
        self,
        engine: Engine,
        collector: Collector,
        now: Callable[[], float],
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.engine: Final = engine
        self.collector: Final = collector
        self._now = now
        self._random = random
        self._sleep = sleep
        self._desk = PushDesk()
        self._refused: dict[tuple[RuleKind, str], RuleState] = {}
        """Of rules that are no rules; only told of."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running = False
        for metric in RULE_METRICS:
            engine.store.declare(metric)

    def set_rule(self, rule: CollectionRule | ProcessingRule) -> RuleState:
        """Obey a new or changed rule from now on."""
        kind = RuleKind.PROCESS if isinstance(rule, ProcessingRule) else RuleKind.COLLECT
        self._refused.pop((kind, rule.metadata.name), None)
        if isinstance(rule, ProcessingRule):
            return self.engine.set_rule(compile_processing(rule))
        name = rule.metadata.name
        known = self.collector.rules().get(name)
        state = self.collector.set_rule(rule)
        if known is not None and known.spec == rule.spec:
            return state
        self._desk.remove_rule(name)
        self._stop(name)
        if rule.spec.source.push is not None:
            self._desk.set_rule(rule)
            state.ready, state.reason = True, RuleReason.WAITING_FOR_SAMPLES
        elif self._running:
            self._start(name)
        return state

    def refuse_rule(self, state: RuleState) -> RuleState:
        """Obey none of the name: it cannot be obeyed, and `state` says why."""
        self.remove_rule(state.kind, state.name)
        self._refused[state.kind, state.name] = state
        return state

    def remove_rule(self, kind: RuleKind, name: str) -> None:
        """Obey a rule no longer; its series stop, their past stays."""
        self._refused.pop((kind, name), None)
        if kind is RuleKind.PROCESS:
            self.engine.remove_rule(name)
            return
        self._stop(name)
        self._desk.remove_rule(name)
        self.collector.remove_rule(name)

    def states(self) -> list[RuleState]:
        """How all rules do."""
        return [*self.collector.states().values(), *self.engine.states().values(), *self._refused.values()]

    def push(self, samples: Sequence[Sample]) -> Pushed:
        """Take up samples that somebody sent, if a rule with source push says so."""
        now = self._now()
        taken, refused = by_rule(self._desk, samples)
        stored = 0
        for name, places in taken.items():
            some = [samples[place] for place in places]
            outcomes = self.engine.ingest(some, now)
            state = self.collector.states()[name]
            state.outcomes.update(outcomes)
            state.series = self._desk.series(name)
            count = outcomes.count(Outcome.STORED)
            stored += count
            if count:
                state.reason = RuleReason.SAMPLES_STORED
            state.ran(now, 0.0, count, max(sample.time for sample in some) if count else None)
            refused += [
                (place, REFUSALS[outcome])
                for place, outcome in zip(places, outcomes, strict=True)
                if outcome in REFUSALS
            ]
        return Pushed(stored, tuple(sorted(refused)))

    async def run(self) -> None:
        """Run until cancelled."""
        self._running = True
        for name, rule in self.collector.rules().items():
            if rule.spec.source.push is None:
                self._start(name)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._apply_by_period(), name="rules by period")
                group.create_task(self._forget(), name="what is too old")
                group.create_task(self._report(), name="how the rules do")
        finally:
            self._running = False
            tasks = tuple(self._tasks.values())
            for name in tuple(self._tasks):
                self._stop(name)
            await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, name: str) -> None:
        self._tasks[name] = asyncio.create_task(self._collect(name), name=f"collection rule {name}")

    def _stop(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()

    async def _collect(self, name: str) -> None:
        interval = self.collector.rules()[name].spec.interval
        await self._sleep(self._random() * min(interval, LONGEST_NAP))
        due = self._now()
        while True:
            await self.collector.run(name)
            # Counted from when it was due, so that the duration of a run does not add to the interval.
            due = max(due + interval, self._now())
            await self._sleep(max(0.0, due - self._now()) * (1 - JITTER * self._random()))

    async def _apply_by_period(self) -> None:
        while True:
            due = self.engine.tick(self._now())
            wait = LONGEST_NAP if due is None else due - self._now()
            await self._sleep(min(LONGEST_NAP, max(0.01, wait)))

    async def _forget(self) -> None:
        while True:
            await self._sleep(SWEEP_SECONDS)
            now = self._now()
            self.engine.sweep(now)
            self._desk.prune(now - self.engine.store.limits.retention_seconds)

    async def _report(self) -> None:
        while True:
            await self._sleep(REPORT_SECONDS)
            now = self._now()
            ttls = {name: longest_ttl(rule.spec) for name, rule in self.collector.rules().items()}
            samples = list(rule_samples(self.states(), ttls, now))
            taken = self.engine.outcomes.total()
            if taken:
                cost = self.engine.busy_seconds / taken * 1e6
                samples.append(Sample(SERVICE, "service_microseconds_per_sample", now, cost))
            self.engine.ingest(samples, now)
