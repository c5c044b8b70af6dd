"""Derived values as Prometheus metrics: what is shown, under which names, and how many at most."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from heterotrain_core.info.values import Entity, Metric, MetricType, Sample
from heterotrain_operator.info.exposition import DerivedValues, family_of
from heterotrain_operator.info.rule_state import RuleKind
from heterotrain_operator.info.rules import load_rules, rule_from_spec
from support.info_world import START, World
from support.virtual_time import run_virtual

PUSH = """
apiVersion: heterotrain.io/v1alpha1
kind: CollectionRule
metadata: {name: in}
spec:
  source: {push: {entities: ["node/*", "worker/*/*/*"]}}
  ttl: 30
  metrics:
    - {name: load, description: Said by hand.}
    - {name: steps_total, type: counter}
    - {name: phase, type: state}
    - {name: host, type: text}
---
apiVersion: heterotrain.io/v1alpha1
kind: ProcessingRule
metadata: {name: twice}
spec:
  inputs: {x: {metric: load}}
  chain: [{operator: expr, expression: 2 * x}]
  output: {metric: twice, unit: "1"}
"""


def exported(story: Any, most: int = 100, now: float = START) -> list[str]:
    """The lines with samples, but the service's own."""
    lines: list[str] = []

    async def main() -> None:
        world = World()
        for rule in load_rules(PUSH):
            world.service.set_rule(rule)
        story(world)
        registry = CollectorRegistry()
        registry.register(DerivedValues(world.service, most, lambda: now))
        text = generate_latest(registry).decode()
        lines.extend(line for line in text.splitlines() if not line.startswith("#"))

    run_virtual(main())
    return lines


def values(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.startswith("heterotrain_info_")]


def push(world: World, **samples: float | str) -> None:
    pushed = world.service.push([Sample(Entity("node/a"), name, START, value) for name, value in samples.items()])
    assert pushed.refused == ()


def test_pushed_and_derived_values_are_shown_with_kind_and_name() -> None:
    lines = exported(lambda world: push(world, load=1.0, steps_total=7.0, phase="Training", host="n1"))
    assert values(lines) == [
        'heterotrain_load{kind="node",name="a"} 1.0',
        'heterotrain_steps_total{kind="node",name="a"} 7.0',
        'heterotrain_phase{kind="node",name="a",state="Training"} 1.0',
        'heterotrain_twice{kind="node",name="a"} 2.0',
    ]
    assert 'heterotrain_info_samples_total{outcome="stored"} 4.0' in lines
    assert 'heterotrain_info_rule_outcomes_total{outcome="stored",rule="collect/in"} 4.0' in lines
    assert "heterotrain_info_series 5.0" in lines


def test_what_is_old_is_not_shown() -> None:
    lines = exported(lambda world: push(world, load=1.0), now=START + 31)
    assert values(lines) == []


def test_a_metric_without_room_is_left_out_and_counted() -> None:
    def story(world: World) -> None:
        push(world, load=1.0)
        world.service.push([Sample(Entity(f"node/n{number}"), "load", START, 1.0) for number in range(5)])

    lines = exported(story, most=4)
    assert values(lines) == []
    assert "heterotrain_info_series_not_shown 12.0" in lines


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("operator_jobs", id="a name of the operator's own"),
        pytest.param("info_series", id="a name of this service's"),
    ],
)
def test_a_rule_cannot_speak_for_the_operator(name: str) -> None:
    assert family_of(Metric(name)) is None
    assert family_of(Metric("a", MetricType.TEXT)) is None


def test_two_metrics_of_one_name_do_not_spoil_the_page() -> None:
    def story(world: World) -> None:
        spec = {"inputs": {"x": {"metric": "load"}}, "chain": [{"operator": "max"}], "output": {"metric": "steps"}}
        world.service.set_rule(rule_from_spec(RuleKind.PROCESS, "p", spec))
        push(world, load=1.0, steps_total=7.0)

    lines = exported(story)
    assert [line for line in lines if "steps" in line] == ['heterotrain_steps_total{kind="node",name="a"} 7.0']
    assert "heterotrain_info_series_not_shown 1.0" in lines
