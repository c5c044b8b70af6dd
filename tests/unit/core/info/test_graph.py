"""Order and rings of rules, and why a rule is refused."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders_info import make_rule, make_step
from heterotrain_core.info.graph import feeds, order, refusal, ring, rule_faults
from heterotrain_core.info.rules import Emit, Input, Output, ProcessingRule, Step, Trigger
from heterotrain_core.info.values import MetricType

EWMA = make_step("ewma", alpha=0.5)


def make_link(name: str, reads: str, writes: str, **fields: Any) -> ProcessingRule:
    return make_rule(
        EWMA, name=name, reads={"i": Input(metric=reads)}, outputs={"value": Output(metric=writes)}, **fields
    )


edges = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=14, unique=True)


def has_ring(graph: dict[str, list[str]]) -> bool:
    """Whether taking away rules that feed nobody leaves some."""
    left = dict(graph)
    while ends := [name for name, readers in left.items() if not any(reader in left for reader in readers)]:
        for name in ends:
            del left[name]
    return bool(left)


@given(edges)
def test_an_order_is_found_exactly_when_there_is_no_ring(pairs: list[tuple[int, int]]) -> None:
    inputs = {reader: {f"i{w}": Input(metric=f"m{w}") for w, r in pairs if r == reader} for reader in range(7)}
    rules = [
        make_rule(
            Step("expr", {"expression": "1"}),
            name=f"r{n}",
            reads=inputs[n] or {"x": Input(metric="x")},
            outputs={"value": Output(metric=f"m{n}")},
        )
        for n in range(7)
    ]
    graph = {name: list(readers) for name, readers in feeds(rules).items()}
    found = ring(graph)
    assert bool(found) == has_ring(graph)
    if found:
        assert all(after in graph[before] for before, after in pairwise(found))
        with pytest.raises(ValueError, match="in a ring"):
            order(rules)
    else:
        places = {name: place for place, name in enumerate(order(rules))}
        assert all(places[f"r{w}"] < places[f"r{r}"] for w, r in pairs)


def test_a_rule_that_only_tells_events_feeds_nobody() -> None:
    rules = [make_link("p1", "x", "y"), make_link("p2", "y", "x", emit=Emit.EVENT)]
    assert refusal(rules[1], rules[:1]) is None
    assert order(rules) == ["p1", "p2"]


@pytest.mark.parametrize(
    ("rule", "want"),
    [
        pytest.param(make_link("p", "y", "z"), None, id="a rule that goes with the others"),
        pytest.param(
            make_link("p", "x", "x"), "the rules feed each other in a ring: p -> p", id="a rule that feeds itself"
        ),
        pytest.param(make_link("p", "y", "x"), "in a ring: p -> other -> p", id="a ring over two rules"),
        pytest.param(
            make_link("p", "x", "y"), "output y is written by rule other already", id="an output that is taken"
        ),
    ],
)
def test_a_rule_is_looked_at_beside_the_others(rule: ProcessingRule, want: str | None) -> None:
    reason = refusal(rule, [make_link("other", "x", "y")])
    assert reason is None if want is None else (reason is not None and want in reason)


X = {"x": Input(metric="x")}


@pytest.mark.parametrize(
    ("rule", "want"),
    [
        (make_rule(), ("chain", "must have at least one operator")),
        (make_rule(make_step("ewna", alpha=1)), ("chain[0].operator", "must be one of ewma, ")),
        (make_rule(make_step("ewma")), ("chain[0].alpha", "is required by ewma")),
        (make_rule(make_step("ewma", alpha=0)), ("chain[0].alpha", "must be more than 0 and at most 1")),
        (make_rule(make_step("ewma", alpha=True)), ("chain[0].alpha", "must be a number, not True")),
        (make_rule(make_step("ewma", alpha=1, h=2)), ("chain[0].h", "is no parameter of ewma")),
        (make_rule(make_step("threshold", hi=1, lo=2)), ("chain[0].lo", "must be at most hi")),
        (make_rule(make_step("threshold", hi=2, lo=1, hold=1.5)), ("chain[0].hold", "must be an integer, not 1.5")),
        (make_rule(make_step("expr", expression="x +")), ("chain[0].expression", "where a value should be")),
        (
            make_rule(make_step("expr", expression="x + y")),
            ("chain[0].expression", "unknown name 'y'; there are value, x"),
        ),
        (make_rule(EWMA, make_step("alpha_beta")), ("chain[1]", "must be the first operator")),
        (make_rule(make_step("alpha_beta")), ("chain[0].bytes", "must name one of the inputs (x), not 'bytes'")),
        (
            make_rule(EWMA, reads={**X, "y": Input(metric="y")}),
            ("chain[0]", "the first operator must be expr or alpha_beta"),
        ),
        (make_rule(EWMA, reads={}), ("inputs", "must have at least one input")),
        (make_rule(EWMA, reads={"x": Input(metric="x", of="a/b")}), ("inputs", "must have an input without of")),
        (make_rule(EWMA, reads={"1x": Input(metric="x")}), ("inputs.1x", "must be named by letters")),
        (make_rule(EWMA, reads={"x": Input(metric="a b")}), ("inputs.x.metric", "is no name of a metric")),
        (
            make_rule(EWMA, reads={"x": Input(metric="x", aggregate="sum")}),
            ("inputs.x.aggregate", "must be left out without of"),
        ),
        (
            make_rule(make_step("expr", expression="x"), reads={**X, "n": Input(metric="x", of="node/*")}),
            ("inputs.n.aggregate", "is required, because of means several"),
        ),
        (
            make_rule(
                make_step("expr", expression="x"), reads={**X, "n": Input(metric="x", of="node/{1", aggregate="sum")}
            ),
            ("inputs.n.of", "a brace that opens or closes nothing"),
        ),
        (make_rule(EWMA, outputs={}), ("outputs", "must have at least one output")),
        (
            make_rule(EWMA, outputs={"alarm": Output(metric="y")}),
            ("outputs.alarm", "must be one of value: the results of ewma"),
        ),
        (make_rule(EWMA, outputs={"value": Output(metric="-")}), ("outputs.value.metric", "is no name of a metric")),
        (
            make_rule(EWMA, outputs={"value": Output(metric="y", entity="node/{1|upper}")}),
            ("outputs.value.entity", "unknown filter 'upper'"),
        ),
        (make_rule(EWMA, trigger=Trigger.PERIOD), ("period", "must be given with trigger: period")),
        (make_rule(EWMA, period=1.0), ("period", "must be given with trigger: period")),
        (make_rule(EWMA, window=0.0), ("window", "must be more than 0")),
        (make_rule(EWMA, window_samples=1), ("windowSamples", "must be between 2 and 4096")),
        (make_rule(EWMA, hold=1.0), ("hold", "must be left out unless the output's type is state")),
    ],
)
def test_what_is_wrong_with_a_rule_is_said_by_field(rule: ProcessingRule, want: tuple[str, str]) -> None:
    faults = list(rule_faults(rule))
    assert any(field == want[0] and want[1] in message for field, message in faults), faults


def test_the_type_of_an_output_follows_from_the_chain() -> None:
    hot = make_rule(make_step("threshold", hi=1, lo=0))
    assert [m.type for rule in (hot, make_rule(EWMA)) for m in rule.metrics()] == [MetricType.STATE, MetricType.GAUGE]
