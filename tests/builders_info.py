"""Builders of the information service's values, short enough that a test shows only what it is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from heterotrain_core.info.rules import Input, Output, ProcessingRule, Step
from heterotrain_core.info.values import Entity, Sample

NODE = Entity("node/a")


def make_step(operator: str, **parameters: float | str | bool) -> Step:
    return Step(operator, parameters)


def make_rule(
    *chain: Step, name: str = "rule", reads: Mapping[str, Input] | None = None, **fields: Any
) -> ProcessingRule:
    """One input x of metric x and one output y, unless said otherwise."""
    inputs = {"x": Input(metric="x")} if reads is None else reads
    fields.setdefault("outputs", {"value": Output(metric="y")})
    return ProcessingRule(name=name, inputs=inputs, chain=chain, **fields)


def make_samples(
    values: Iterable[float | str], times: Iterable[float] | None = None, metric: str = "x", entity: str = NODE
) -> list[Sample]:
    """One a second from 0 on, unless `times` are given."""
    values = list(values)
    return [
        Sample(Entity(entity), metric, time, value)
        for time, value in zip(times or range(len(values)), values, strict=True)
    ]
