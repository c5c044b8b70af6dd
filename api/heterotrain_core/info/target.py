"""One rule applied to one entity: its inputs found, its chain stepped, its result held, stored and told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from heterotrain_core.info.chain import Chain
from heterotrain_core.info.known import Known
from heterotrain_core.info.operators import OK, Parts
from heterotrain_core.info.rules import MAIN, Output, ProcessingRule
from heterotrain_core.info.selectors import places_of, render
from heterotrain_core.info.values import ABSENT, Entity, Event, Sample, Value

_RESTING = (OK, 0.0)
"""States that are no news for an entity that had none before."""


class RuleError(ValueError):
    """A rule could not be applied; the message names the entity."""


@dataclass(slots=True)
class Made:
    """What one application gave."""

    samples: list[tuple[Sample, float]] = field(default_factory=list)
    """With the time from which each is absent."""
    withdrawn: list[tuple[Entity, str]] = field(default_factory=list)
    event: Event | None = None
    error: str = ""


class Target:
    """Memory of one rule about one entity."""

    __slots__ = ("_candidate", "_chain", "_entity", "_rule", "_since", "_state", "_there", "used")

    def __init__(self, rule: ProcessingRule, entity: Entity) -> None:
        self._rule = rule
        self._entity = entity
        self._chain = Chain(rule)
        self._state: Value = ABSENT
        """What was told last."""
        self._candidate: Value = ABSENT
        self._since = 0.0
        self._there: dict[str, tuple[Entity, str]] = {}
        """Outputs that have a value now, by part."""
        self.used = -math.inf
        """When the rule was applied last."""

    def apply(self, known: Known, time: float, now: float) -> Made:
        """Step the chain with what is known at `now`; `time` is that of the sample that set the rule off.

        Raises `RuleError` if arithmetic fails, which operators avoid: what went before stays as it was.
        """
        self.used = max(self.used, time)
        found = {name: known.find(item, self._entity, now) for name, item in self._rule.inputs.items()}
        inputs = {name: one.value for name, one in found.items()}
        times = {name: one.time for name, one in found.items()}
        try:
            parts = self._chain.step(self._chain.first_row(time, inputs, times))
        except (ArithmeticError, ValueError) as error:
            raise RuleError(f"{self._entity}: {type(error).__name__}: {error}") from error
        expires = min((one.expires for one in found.values() if one.value is not ABSENT), default=-math.inf)
        made = Made()
        parts = self._held(parts, time)
        self._tell(parts, time, made)
        self._store(parts, time, expires, made)
        return made

    def _held(self, parts: Parts, time: float) -> Parts:
        """The parts with the state that has lasted long enough in place of the newest."""
        value = parts.get(MAIN)
        if not self._rule.hold or value is None or value == self._state:
            self._candidate = value
            return parts
        if value != self._candidate:
            self._candidate, self._since = value, time
        first = self._state is ABSENT and value in _RESTING
        if first or time - self._since >= self._rule.hold:
            return parts
        return {} if self._state is ABSENT else {**parts, MAIN: self._state}

    def _tell(self, parts: Parts, time: float, made: Made) -> None:
        """An event if a state has changed, or a number has become other than 0."""
        value = parts.get("alarm", parts.get(MAIN))
        if value is None:
            return
        before, self._state = self._state, value
        news = value != before and not (before is ABSENT and value in _RESTING)
        if news and (isinstance(value, str) or (value != 0 and before in (ABSENT, 0.0))):
            made.event = self._event(value, before, time)

    def _event(self, value: float | str, before: Value, time: float) -> Event:
        rule = self._rule
        output = rule.outputs.get(MAIN) or next(iter(rule.outputs.values()))
        places = {
            **places_of(self._entity, {}),
            "entity": str(self._entity),
            "value": _text(value),
            "previous": "nothing" if before is ABSENT else _text(before),
        }
        plain = f"{output.metric} of {self._entity} is {places['value']}, was {places['previous']}"
        message = render(rule.message, places) if rule.message else plain
        return Event(rule.name, self._entity, output.metric, time, value, before, message or plain)

    def _store(self, parts: Parts, time: float, expires: float, made: Made) -> None:
        for part, output in self._rule.outputs.items():
            value = parts.get(part)
            sample = None if value is None else self._sample(output, value, time, made)
            if sample is not None:
                until = self._until(output, time, expires)
                made.samples.append((sample, until))
                self._there[part] = (sample.entity, sample.metric)
            elif part in self._there:
                made.withdrawn.append(self._there.pop(part))

    def _until(self, output: Output, time: float, expires: float) -> float:
        """When a result is absent: with the first of its inputs, but what is made by period stands until it is late."""
        if self._rule.period is not None:
            return time + (2 * self._rule.period if output.ttl is None else output.ttl)
        return expires if output.ttl is None else min(expires, time + output.ttl)

    def _sample(self, output: Output, value: float | str, time: float, made: Made) -> Sample | None:
        kind = self._rule.output_type(output)
        if isinstance(value, str) == kind.numeric:
            made.error = f"{self._entity}: {output.metric} is a {kind.value}, but the chain gives {_text(value)!r}"
            return None
        try:
            return Sample(self._output_entity(output), output.metric, time, value)
        except ValueError as error:
            made.error = f"{self._entity}: output {output.metric}: {error}"
            return None

    def _output_entity(self, output: Output) -> Entity:
        if output.entity is None:
            return self._entity
        places: Mapping[str, str] = places_of(self._entity, {})
        name = render(output.entity, places)
        if name is None:
            raise ValueError(f"entity {output.entity} needs a part that {self._entity} has not")
        return Entity(name)


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"
