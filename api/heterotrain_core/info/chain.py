"""Chains of operators: which operators and parameters there are, what is wrong with a chain, and its running form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from heterotrain_core.info import operators as op
from heterotrain_core.info.expression import ExpressionError, names, parse
from heterotrain_core.info.operators import NOTHING, Operator, Parts, Row
from heterotrain_core.info.rules import MAIN, ProcessingRule, Step
from heterotrain_core.info.stats import quantile_sorted
from heterotrain_core.info.values import ABSENT
from heterotrain_core.info.windows import Window

MAX_PAIRS: Final = 64
"""Of alpha_beta: the slopes of all pairs of pairs are looked at."""

Parameters = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an operator."""

    type: type
    default: float | str | bool | None = None
    """`None`: must be given."""
    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    """`low` itself is too low."""

    def fault(self, value: object) -> str | None:
        """What is wrong with a value of this parameter."""
        if self.type is float:
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not number:
                return f"must be a number, not {value!r}"
        elif not isinstance(value, self.type) or (self.type is int and isinstance(value, bool)):
            return f"must be {_TYPE_NAMES[self.type]}, not {value!r}"
        if isinstance(value, int | float) and not isinstance(value, bool):
            too_low = value <= self.low if self.above else value < self.low
            if too_low or value > self.high:
                return f"must be {'more than' if self.above else 'at least'} {self.low:g} and at most {self.high:g}"
        return None


_TYPE_NAMES: Final = {int: "an integer", str: "a text", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class Kind:
    """One operator."""

    build: Callable[[Parameters, Callable[[int], Window]], Operator]
    parameters: Mapping[str, Parameter]
    parts: tuple[str, ...] = (MAIN,)
    """Results that outputs may name."""
    first_only: bool = False
    """It reads the inputs by name, so it means something only at the beginning of a chain."""


def _reduce(reduction: Callable[[Sequence[float]], float]) -> Kind:
    return Kind(lambda p, window: op.Reduce(reduction, window(0)), {})


_NUMBER: Final = Parameter(float)

KINDS: Final[Mapping[str, Kind]] = {
    "ewma": Kind(lambda p, _: op.Ewma(p["alpha"]), {"alpha": Parameter(float, None, 0, 1, above=True)}),
    "ewma_t": Kind(
        lambda p, _: op.EwmaT(p["half_life"]), {"half_life": Parameter(float, None, 0, 86_400_000, above=True)}
    ),
    "rate": Kind(lambda p, window: op.Rate(window(0).seconds, window(0).most), {}),
    "quantile": Kind(lambda p, window: op.Quantile(p["q"], window(0)), {"q": Parameter(float, None, 0, 1)}),
    "median": _reduce(lambda ordered: quantile_sorted(ordered, 0.5)),
    "mean": _reduce(fmean),
    "min": _reduce(lambda ordered: ordered[0]),
    "max": _reduce(lambda ordered: ordered[-1]),
    "mad": Kind(lambda p, window: op.Mad(window(0)), {}),
    "robust_z": Kind(lambda p, window: op.RobustZ(window(0)), {}),
    "threshold": Kind(
        lambda p, _: op.Threshold(p["hi"], p["lo"], p["hold"]),
        {"hi": _NUMBER, "lo": _NUMBER, "hold": Parameter(int, 1, 1, 100_000)},
    ),
    "cusum": Kind(
        lambda p, _: op.Cusum(p["ref"], p["drift"], p["h"], reset=p["reset"]),
        {
            "ref": _NUMBER,
            "drift": Parameter(float, 0.0, 0),
            "h": Parameter(float, None, 0),
            "reset": Parameter(bool, True),
        },
        parts=(MAIN, "s", "alarm"),
    ),
    "alpha_beta": Kind(
        lambda p, window: op.AlphaBeta(p["bytes"], p["seconds"], window(MAX_PAIRS)),
        {"bytes": Parameter(str, "bytes"), "seconds": Parameter(str, "seconds")},
        parts=(MAIN, "bandwidth", "delta"),
        first_only=True,
    ),
    "expr": Kind(lambda p, _: op.Expression(parse(p["expression"])), {"expression": Parameter(str)}),
}
"""All operators by name."""


class Chain:
    """The operators of one rule for one entity."""

    def __init__(self, rule: ProcessingRule) -> None:
        """`rule` has no `faults`."""
        self._operators = tuple(_build(step, rule) for step in rule.chain)
        self._only = next(iter(rule.inputs)) if len(rule.inputs) == 1 else None

    def step(self, row: Row) -> Parts:
        """The parts of the last operator's result; none: absent."""
        parts: Parts = NOTHING
        for operator in self._operators:
            parts = operator.step(row)
            row = Row(row.time, parts.get(MAIN, ABSENT), row.inputs, row.times)
        return parts

    def first_row(self, time: float, inputs: Mapping[str, Any], times: Mapping[str, float]) -> Row:
        """The row that the first operator is given."""
        return Row(time, ABSENT if self._only is None else inputs.get(self._only), inputs, times)


def _build(step: Step, rule: ProcessingRule) -> Operator:
    kind = KINDS[step.operator]
    given = {name: parameter.default for name, parameter in kind.parameters.items()} | dict(step.parameters)

    def window(most: int) -> Window:
        return Window(rule.window, min(rule.window_samples, most or rule.window_samples))

    return kind.build(given, window)


def chain_faults(rule: ProcessingRule) -> Iterator[tuple[str, str]]:
    """(field, what is wrong) for all in `rule.chain` that cannot be obeyed, and for outputs that name no part."""
    if not rule.chain:
        yield "chain", f"must have at least one operator, of {', '.join(KINDS)}"
        return
    for index, step in enumerate(rule.chain):
        where = f"chain[{index}]"
        kind = KINDS.get(step.operator)
        if kind is None:
            yield f"{where}.operator", f"must be one of {', '.join(KINDS)}, not {step.operator!r}"
            continue
        yield from _parameter_faults(where, step, kind)
        yield from _place_faults(where, index, step, rule)
    last = KINDS.get(rule.chain[-1].operator)
    for part in rule.outputs:
        if last is not None and part not in last.parts:
            yield f"outputs.{part}", f"must be one of {', '.join(last.parts)}: the results of {rule.chain[-1].operator}"


def _parameter_faults(where: str, step: Step, kind: Kind) -> Iterator[tuple[str, str]]:
    for name in step.parameters:
        if name not in kind.parameters:
            known = ", ".join(kind.parameters) or "none"
            yield f"{where}.{name}", f"is no parameter of {step.operator}; there are: {known}"
    for name, parameter in kind.parameters.items():
        value = step.parameters.get(name, parameter.default)
        fault = f"is required by {step.operator}" if value is None else parameter.fault(value)
        if fault is not None:
            yield f"{where}.{name}", fault
    hi, lo = step.parameters.get("hi"), step.parameters.get("lo")
    if isinstance(hi, int | float) and isinstance(lo, int | float) and lo > hi:
        yield f"{where}.lo", "must be at most hi"


def _place_faults(where: str, index: int, step: Step, rule: ProcessingRule) -> Iterator[tuple[str, str]]:
    if step.operator == "expr":
        yield from _expression_faults(f"{where}.expression", index, step, rule)
    elif step.operator == "alpha_beta":
        if index:
            yield where, "alpha_beta reads the inputs, so it must be the first operator"
        for name in ("bytes", "seconds"):
            given = step.parameters.get(name, name)
            if given not in rule.inputs:
                yield f"{where}.{name}", f"must name one of the inputs ({', '.join(rule.inputs)}), not {given!r}"
    elif index == 0 and len(rule.inputs) != 1:
        yield where, "with several inputs the first operator must be expr or alpha_beta: they name the inputs"


def _expression_faults(where: str, index: int, step: Step, rule: ProcessingRule) -> Iterator[tuple[str, str]]:
    try:
        used = names(parse(str(step.parameters.get("expression", "0"))))
    except ExpressionError as error:
        yield where, str(error)
        return
    known = set(rule.inputs) | ({MAIN} if index or len(rule.inputs) == 1 else set())
    for name in sorted(used - known):
        yield where, f"unknown name {name!r}; there are {', '.join(sorted(known))}"
