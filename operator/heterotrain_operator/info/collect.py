"""One run of a collection rule: ask the source within the deadline, extract, hand over, account for what happened."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final

from heterotrain_api.info_collection import CollectionRule, CollectionRuleSpec, OnError
from heterotrain_api.rule_conditions import RuleReason
from heterotrain_core.info.values import Entity
from heterotrain_operator.info.breaker import Breaker
from heterotrain_operator.info.engine import Engine
from heterotrain_operator.info.extract import Extracted, declared, extracting, longest_ttl
from heterotrain_operator.info.rule_state import RuleKind, RuleState
from heterotrain_operator.info.skew import Skew
from heterotrain_operator.info.sources.base import Reason, Reply, Source, SourceError
from heterotrain_operator.info.sources.web import parsed
from heterotrain_operator.info.store import Outcome

logger = logging.getLogger(__name__)

LONGEST_DEFAULT_TIMEOUT: Final = 10.0
_NOT_THE_TARGETS: Final = frozenset(
    [Reason.QUERY, Reason.EMPTY, Reason.FORBIDDEN, Reason.CREDENTIALS, Reason.BREAKER_OPEN, Reason.UNEXPECTED]
)
"""Errors that say nothing about whether the target is worth asking."""
CONDITION_REASONS: Final[Mapping[Reason, RuleReason]] = {
    Reason.TIMEOUT: RuleReason.SOURCE_UNREACHABLE,
    Reason.CONNECT: RuleReason.SOURCE_UNREACHABLE,
    Reason.BREAKER_OPEN: RuleReason.SOURCE_UNREACHABLE,
    Reason.TLS: RuleReason.SOURCE_REFUSED,
    Reason.REDIRECT: RuleReason.SOURCE_REFUSED,
    Reason.DENIED: RuleReason.SOURCE_REFUSED,
    Reason.HTTP_STATUS: RuleReason.SOURCE_REFUSED,
    Reason.CREDENTIALS: RuleReason.SOURCE_REFUSED,
    Reason.COMMAND: RuleReason.SOURCE_REFUSED,
    Reason.FORBIDDEN: RuleReason.SOURCE_NOT_ALLOWED,
    Reason.QUERY: RuleReason.QUERY_REFUSED,
    Reason.TOO_LARGE: RuleReason.ANSWER_UNUSABLE,
    Reason.NOT_METRICS: RuleReason.ANSWER_UNUSABLE,
    Reason.MALFORMED: RuleReason.ANSWER_UNUSABLE,
    Reason.EMPTY: RuleReason.NO_SAMPLES,
    Reason.UNEXPECTED: RuleReason.UNEXPECTED_ERROR,
}
"""What a failed run means for the rule's condition."""
_SEEN: Final = (Outcome.STORED, Outcome.DUPLICATE)
"""Outcomes of a source that works: its newest value may be one that we have."""


def timeout_of(spec: CollectionRuleSpec) -> float:
    """Seconds that a run may take."""
    return min(spec.interval, LONGEST_DEFAULT_TIMEOUT) if spec.timeout is None else spec.timeout


def target_of(spec: CollectionRuleSpec) -> str | None:
    """What a breaker is for; `None` for sources on this machine."""
    source = spec.source
    if source.prometheus is not None:
        return f"prometheus {source.prometheus.url}" if source.prometheus.url else "prometheus"
    if source.endpoint is not None:
        url = parsed(source.endpoint.url)
        return f"endpoint {url.netloc.decode()}{url.path}"
    return "kubernetes" if source.kubernetes is not None or source.kubelet is not None else None


@dataclass(slots=True)
class _Collected:
    rule: CollectionRule
    state: RuleState
    skew: Skew = field(default_factory=Skew)
    series: Sequence[tuple[Entity, str]] = ()
    """That the last good run gave."""


class Collector:
    """All collection rules, one run at a time each. Used on one event loop."""

    def __init__(
        self,
        engine: Engine,
        readers: Mapping[str, Source],
        now: Callable[[], float],
        random: Callable[[], float],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`readers`: by the source's field (`make_readers`); `now`: time of day, s; `clock`: for durations."""
        self._engine = engine
        self._readers = readers
        self._now = now
        self._random = random
        self._clock = clock
        self._rules: dict[str, _Collected] = {}
        self._breakers: dict[str, Breaker] = {}

    def set_rule(self, rule: CollectionRule) -> RuleState:
        """Obey a new or changed rule from its next run on."""
        name = rule.metadata.name
        known = self._rules.get(name)
        if known is None or known.rule.spec != rule.spec:
            generation = rule.metadata.generation or 1
            self._rules[name] = _Collected(rule, RuleState(RuleKind.COLLECT, name, generation))
            for metric in declared(rule.spec):
                self._engine.store.declare(metric)
        elif rule.metadata.generation is not None:
            known.state.generation = rule.metadata.generation
        return self._rules[name].state

    def remove_rule(self, name: str) -> None:
        """No more runs; what it gave stays until it is too old."""
        self._rules.pop(name, None)
        targets = {target_of(collected.rule.spec) for collected in self._rules.values()}
        self._breakers = {target: breaker for target, breaker in self._breakers.items() if target in targets}

    def rules(self) -> dict[str, CollectionRule]:
        """Rules by name."""
        return {name: collected.rule for name, collected in self._rules.items()}

    def states(self) -> dict[str, RuleState]:
        """How each rule does, by name."""
        return {name: collected.state for name, collected in self._rules.items()}

    async def run(self, name: str) -> None:
        """One run of a rule. Whatever the source does ends in its state; only cancellation is raised."""
        collected = self._rules[name]
        began = self._clock()
        try:
            reply = await self._ask(collected.rule.spec)
        except SourceError as error:
            if self._rules.get(name) is collected:
                self._failed(collected, error, began)
            return
        if self._rules.get(name) is collected:  # not changed or removed meanwhile
            try:
                await self._take(collected, reply, began)
            except Exception as error:
                logger.exception("What rule %s read could not be taken up; this was not foreseen.", name)
                message = f"{type(error).__name__}: {error}"
                self._failed(collected, SourceError(Reason.UNEXPECTED, message), began)

    async def _ask(self, spec: CollectionRuleSpec) -> Reply:
        kind = next(field for field in type(spec.source).model_fields if getattr(spec.source, field) is not None)
        target = target_of(spec)
        breaker = self._breakers.setdefault(target, Breaker()) if target is not None else Breaker()
        if not breaker.allows(self._now()):
            message = f"{target} failed {breaker.failures} times and is asked again soon; the last time: {breaker.why}"
            raise SourceError(Reason.BREAKER_OPEN, message)
        try:
            reply = await self._read(kind, spec)
        except SourceError as error:
            if error.reason in _NOT_THE_TARGETS:
                breaker.succeeded()
            else:
                breaker.failed(self._now(), self._random(), f"{error.reason}: {error}")
            raise
        breaker.succeeded()
        return reply

    async def _read(self, kind: str, spec: CollectionRuleSpec) -> Reply:
        seconds = timeout_of(spec)
        try:
            async with asyncio.timeout(seconds):
                return await self._readers[kind].read(spec, self._now())
        except TimeoutError as error:
            raise SourceError(Reason.TIMEOUT, f"no whole answer within {seconds:g} s") from error
        except (SourceError, asyncio.CancelledError):
            raise
        except Exception as error:
            logger.exception("Reading a source of kind %s failed in a way that was not foreseen.", kind)
            raise SourceError(Reason.UNEXPECTED, f"{type(error).__name__}: {error}") from error

    def _failed(self, collected: _Collected, error: SourceError, began: float) -> None:
        state = collected.state
        state.outcomes[error.reason] += 1
        state.failures += 1
        message = f"{error.reason}: {error}"
        if state.error != message:
            logger.warning("Collection rule %s failed: %s.", state.name, message)
        state.ready, state.error, state.series = False, message, 0
        state.reason = CONDITION_REASONS[error.reason]
        state.ran(self._now(), self._clock() - began, 0, None)
        if collected.rule.spec.on_error is OnError.ABSENT:
            for entity, metric in collected.series:
                self._engine.store.withdraw(entity, metric)

    async def _take(self, collected: _Collected, reply: Reply, began: float) -> None:
        now, spec, state = self._now(), collected.rule.spec, collected.state
        collected.skew.observe(now, reply.source_time)
        extracted = Extracted()
        await self._engine.turns.work(extracting(spec, reply, (now, collected.skew.seconds), extracted))
        if self._rules.get(state.name) is not collected:
            return  # changed or removed meanwhile
        counts = Counter(await self._engine.ingest_gently(extracted.samples, now))
        for entity, labels in extracted.labels.items():
            self._engine.store.set_labels(entity, labels)
        collected.series = extracted.series
        state.series = len(collected.series)
        state.outcomes.update(counts)
        state.outcomes.update(extracted.refused)
        state.outcomes.update(error.reason for error in reply.errors.values())
        if collected.skew.seconds:
            state.outcomes["clock_skew"] += 1
        newest = extracted.samples[-1].time if extracted.samples else None
        age = 0.0 if newest is None else now - newest
        old = f"no sample is fresh: the newest is {age:.0f} s old" if age > longest_ttl(spec) else ""
        self._judge(state, reply, extracted, 0 if old else sum(counts[outcome] for outcome in _SEEN), old)
        state.ran(now, self._clock() - began, counts[Outcome.STORED], newest if counts[Outcome.STORED] else None)

    @staticmethod
    def _judge(state: RuleState, reply: Reply, extracted: Extracted, seen: int, old: str) -> None:
        told = [f"{what}: {error.reason}: {error}" for what, error in list(reply.errors.items())[:2]]
        trouble = "; ".join(filter(None, (old, *told, extracted.trouble())))
        if not seen and not trouble:
            trouble = "no sample could be stored: all are too late, in the future or without room"
        if trouble and trouble != state.error:
            logger.info("Collection rule %s: %s.", state.name, trouble)
        state.failures += not seen
        state.ready, state.error = bool(seen), trouble
        partly = RuleReason.SAMPLES_MISSING if seen else RuleReason.NO_SAMPLES
        state.reason = partly if trouble else RuleReason.SAMPLES_STORED
