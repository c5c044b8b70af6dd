"""The heart: takes samples up, keeps them, applies the processing rules to them, tells events.

Used on one event loop; the store may be read from anywhere. A rule that fails, or that cannot be obeyed, has its error
in its state and stops no other one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import thread_time
from typing import Final

from heterotrain_api.rule_conditions import RuleReason
from heterotrain_core.info.graph import refusal
from heterotrain_core.info.processing import Effects, Processor
from heterotrain_core.info.rules import DEFAULT_TTL, ProcessingRule
from heterotrain_core.info.values import Sample
from heterotrain_operator.info.events import EventLog
from heterotrain_operator.info.rule_state import RuleKind, RuleState
from heterotrain_operator.info.store import Outcome, Store
from heterotrain_operator.info.turns import Turns

logger = logging.getLogger(__name__)

STEP: Final = 50
"""Samples that are stored in one step: a fifth of a millisecond."""


class Engine:
    """Store, events and processing rules together."""

    def __init__(self, store: Store, events: EventLog, turns: Turns, clock: Callable[[], float] = thread_time) -> None:
        """`turns`: of the event loop; `clock` measures what processing costs, in CPU seconds."""
        self.store: Final = store
        self.events: Final = events
        self.turns: Final = turns
        self.outcomes: Final[Counter[Outcome]] = Counter()
        """What became of all samples that were given to `ingest`."""
        self.busy_seconds = 0.0
        """Spent in storing and processing since the start; over the sum of `outcomes` it is the cost of a sample."""
        self._clock = clock
        self._rules: dict[str, ProcessingRule] = {}
        self._states: dict[str, RuleState] = {}
        self._refused: set[str] = set()
        self._processor = Processor(self._ttl_of, store.labels, clock)
        self._processing = asyncio.Lock()
        self._begun: Iterator[None] = iter(())
        """The rest of what is processed gently just now: to be finished before anything else of the kind."""

    def refusal(self, rule: ProcessingRule) -> str | None:
        """Why a new or changed rule cannot be obeyed beside the others; `None` if it can.

        A wrong parameter, a ring, an output that another rule writes.
        """
        return refusal(rule, self._accepted(rule.name))

    def set_rule(self, rule: ProcessingRule) -> RuleState:
        """Obey a new or changed rule from now on, with an empty memory; a refused one has the reason as its error."""
        if self._rules.get(rule.name) != rule:
            self._finish()
            self._rules[rule.name] = rule
            self._states[rule.name] = RuleState(RuleKind.PROCESS, rule.name, rule.generation)
            self._admit(rule)
            self._admit_refused()
        return self._states[rule.name]

    def remove_rule(self, name: str) -> None:
        """No new values of this rule; what it gave stays until it is too old."""
        if name in self._rules:
            self._finish()
            del self._rules[name]
            del self._states[name]
            self._refused.discard(name)
            self._processor.remove(name)
            self._admit_refused()

    def ingest(self, samples: Sequence[Sample], now: float) -> list[Outcome]:
        """Store samples, pushed or collected, and apply the rules; what became of each."""
        self._finish()
        outcomes: list[Outcome] = []
        _go_through(self._timed(self._storing(samples, now, outcomes)))
        _go_through(self._timed(self._apply(samples, outcomes, now)))
        return outcomes

    async def ingest_gently(self, samples: Sequence[Sample], now: float) -> list[Outcome]:
        """`ingest` of many samples, letting others have the event loop between some and some; rules see all at once."""
        outcomes: list[Outcome] = []
        await self.turns.work(self._timed(self._storing(samples, now, outcomes)))
        async with self._processing:
            self._begun = self._timed(self._apply(samples, outcomes, now))
            try:
                await self.turns.work(self._begun)
            finally:
                self._finish()
        return outcomes

    def tick(self, now: float) -> float | None:
        """Apply the rules that are due by period; when the next one is, `None` if none has a period."""
        self._finish()
        began = self._clock()
        _go_through(self._carrying_out(self._processor.tick(now), now))
        self.busy_seconds += self._clock() - began
        return self._processor.next_tick()

    def sweep(self, now: float) -> None:
        """Forget what is older than the retention; to be called every minute or so."""
        self._finish()
        self.store.sweep(now)
        self._processor.prune(now - self.store.limits.retention_seconds)

    def rules(self) -> dict[str, ProcessingRule]:
        """Rules in force or refused, by name."""
        return dict(self._rules)

    def states(self) -> dict[str, RuleState]:
        """How each processing rule does, by name."""
        return dict(self._states)

    def _ttl_of(self, metric: str) -> float:
        known = self.store.metric(metric)
        return DEFAULT_TTL if known is None else known.ttl

    def _accepted(self, but: str) -> list[ProcessingRule]:
        return [rule for name, rule in self._rules.items() if name != but and name not in self._refused]

    def _admit(self, rule: ProcessingRule) -> None:
        state = self._states[rule.name]
        reason = self.refusal(rule)
        if reason is not None:
            self._refused.add(rule.name)
            self._processor.remove(rule.name)
            if state.error != reason:
                logger.warning("Processing rule %s is not obeyed: %s.", rule.name, reason)
            state.ready, state.error = False, reason
            state.accepted, state.reason = False, RuleReason.RULE_CONFLICT
            return
        self._refused.discard(rule.name)
        self._processor.set(rule)
        for metric in rule.metrics():
            self.store.declare(metric)
        state.ready, state.error = True, ""
        state.accepted, state.reason = True, RuleReason.WAITING_FOR_SAMPLES

    def _admit_refused(self) -> None:
        """What was in a refused rule's way may be gone."""
        for name in sorted(self._refused):
            self._admit(self._rules[name])

    def _finish(self) -> None:
        """What is half done is done before something else begins; then nobody sees or changes a half."""
        begun, self._begun = self._begun, iter(())
        _go_through(begun)

    def _timed(self, steps: Iterator[None]) -> Iterator[None]:
        began = self._clock()
        for _ in steps:
            self.busy_seconds += self._clock() - began
            yield
            began = self._clock()
        self.busy_seconds += self._clock() - began

    def _storing(self, samples: Sequence[Sample], now: float, outcomes: list[Outcome]) -> Iterator[None]:
        for first in range(0, len(samples), STEP):
            some = [self.store.put(sample, now) for sample in samples[first : first + STEP]]
            self.outcomes.update(some)
            outcomes += some
            yield

    def _apply(self, samples: Sequence[Sample], outcomes: Sequence[Outcome], now: float) -> Iterator[None]:
        stored = [sample for sample, outcome in zip(samples, outcomes, strict=True) if outcome is Outcome.STORED]
        effects = Effects()
        yield from self._processor.feeding(stored, now, effects)
        yield from self._carrying_out(effects, now)

    def _carrying_out(self, effects: Effects, now: float) -> Iterator[None]:
        stored: Counter[str] = Counter()
        newest: dict[str, float] = {}
        for place, made in enumerate(effects.derived, start=1):
            if place % STEP == 0:
                yield
            outcome = self.store.put(made.sample, now, made.expires)
            self._states[made.rule].outcomes[outcome] += 1
            if outcome is Outcome.STORED:
                stored[made.rule] += 1
                newest[made.rule] = made.sample.time
        for entity, metric in effects.withdrawn:
            self.store.withdraw(entity, metric)
        for event in effects.events:
            self.events.append(event)
        for name, seconds in effects.applied.items():
            state = self._states[name]
            state.ran(now, seconds, stored[name], newest.get(name))
            state.series = self._processor.targets(name)
            self._judge(state, effects.errors.get(name, ""))

    @staticmethod
    def _judge(state: RuleState, error: str) -> None:
        if error and error != state.error:
            logger.warning("Processing rule %s failed: %s.", state.name, error)
        state.failures += bool(error)
        state.ready, state.error = not error, error
        if error:
            state.reason = RuleReason.RULE_FAILED
        else:
            state.reason = RuleReason.SAMPLES_STORED if state.samples else RuleReason.WAITING_FOR_SAMPLES


def _go_through(steps: Iterable[None]) -> None:
    for _ in steps:
        pass
