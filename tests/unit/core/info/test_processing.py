"""The machine behind rules: joins, other entities, periods, hold, events, and failures that stay one rule's own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders_info import NODE, make_rule, make_samples, make_step
from heterotrain_core.info.dryrun import dryrun
from heterotrain_core.info.operators import Ewma, Rate, Threshold, run
from heterotrain_core.info.processing import Processor
from heterotrain_core.info.rules import Emit, Input, Output, ProcessingRule, Trigger
from heterotrain_core.info.values import ABSENT, Entity, MetricType, Sample
from heterotrain_core.info.windows import Window

EWMA_1 = make_step("ewma", alpha=1)


def values(
    rules: list[ProcessingRule], samples: list[Sample], metric: str = "y", **options: Any
) -> list[tuple[float, Any]]:
    return [(s.time, s.value) for s in dryrun(rules, samples, **options).samples if s.metric == metric]


def test_two_inputs_of_one_moment_are_applied_once_and_those_of_others_with_the_last_known() -> None:
    rule = make_rule(make_step("expr", expression="a - b"), reads={"a": Input(metric="a"), "b": Input(metric="b")})
    samples = make_samples([5, 6], [0, 10], "a") + make_samples([1, 2], [0, 20], "b")
    assert values([rule], samples) == [(0, 4), (10, 5), (20, 4)]


def test_rules_feed_each_other_at_one_moment_whatever_their_order() -> None:
    double = make_rule(make_step("expr", expression="2 * x"), name="double")
    reads = {"y": Input(metric="y"), "x": Input(metric="x")}
    more = make_rule(
        make_step("expr", expression="y + x"), name="more", reads=reads, outputs={"value": Output(metric="z")}
    )
    for rules in ([double, more], [more, double]):
        assert values(rules, make_samples([1, 2]), "z") == [(0, 3), (1, 6)]


def test_each_entity_has_a_memory_of_its_own() -> None:
    rule = make_rule(make_step("rate"))
    samples = make_samples([0, 10], entity="node/a") + make_samples([0, 30], entity="node/b")
    assert {s.entity: s.value for s in dryrun([rule], samples).samples} == {"node/a": 10, "node/b": 30}


def test_only_the_entities_meant_are_targets() -> None:
    rule = make_rule(EWMA_1, reads={"x": Input(metric="x", entity="node/*")})
    samples = [Sample(Entity(name), "x", 0, 1.0) for name in ("node/a", "pod/ns/a", "nodes/a")]
    assert [s.entity for s in dryrun([rule], samples).samples] == ["node/a"]


def make_workers(**seconds: float) -> list[Sample]:
    return [Sample(Entity(f"worker/ns/job/{name}"), "t", 0, value) for name, value in seconds.items()]


def test_peers_are_aggregated_for_each_target() -> None:
    rule = make_rule(
        make_step("expr", expression="own / typical"),
        reads={"own": Input(metric="t"), "typical": Input(metric="t", of="worker/{1}/{2}/*", aggregate="median")},
    )
    samples = [*make_workers(a=1.0, b=1.0, c=3.0), Sample(Entity("worker/ns/other/d"), "t", 0, 9.0)]
    assert {s.entity.parts[-1]: s.value for s in dryrun([rule], samples).samples} == {"a": 1, "b": 1, "c": 3, "d": 1}


def test_another_entitys_value_is_looked_up_and_absent_if_it_has_none() -> None:
    rule = make_rule(
        make_step("expr", expression="own / coalesce(job, 100)"),
        reads={"own": Input(metric="t", entity="worker"), "job": Input(metric="t", of="job/{1}/{2}")},
    )
    samples = [
        *make_workers(a=1.0),
        Sample(Entity("worker/ns/alone/b"), "t", 0, 1.0),
        Sample(Entity("job/ns/job"), "t", 0, 2.0),
    ]
    assert {s.entity: s.value for s in dryrun([rule], samples).samples} == {
        "worker/ns/job/a": 0.5, "worker/ns/alone/b": 0.01,
    }  # fmt: skip


def test_labels_of_others_may_name_the_target() -> None:
    on = {Entity("pod/ns/p"): "a", Entity("pod/ns/q"): "a", Entity("pod/ns/r"): "b"}
    rule = make_rule(
        make_step("expr", expression="x - pods"),
        reads={
            "x": Input(metric="x"),
            "pods": Input(metric="cpu", of="pod/*/*", labels={"node": "{1}"}, aggregate="sum"),
        },
    )
    processor = Processor(labels_of=lambda entity: {"node": on[entity]} if entity in on else {})
    processor.set(rule)
    processor.feed([Sample(pod, "cpu", 0, 1.0) for pod in on])
    assert [d.sample.value for d in processor.feed(make_samples([10]), 0).derived] == [8]


def test_an_output_may_be_about_another_entity() -> None:
    rule = make_rule(
        make_step("expr", expression="mean"),
        reads={"x": Input(metric="u"), "mean": Input(metric="u", of="accelerator/{1}/*", aggregate="mean")},
        outputs={"value": Output(metric="y", entity="node/{1}")},
    )
    samples = [Sample(Entity(f"accelerator/a/{index}"), "u", 0, float(index)) for index in range(3)]
    assert dryrun([rule], samples).samples[0] == Sample(NODE, "y", 0, 1.0)


def test_a_derived_value_is_absent_as_soon_as_one_of_its_inputs_is() -> None:
    rule = make_rule(
        make_step("expr", expression="a + b"), reads={"a": Input(metric="a", ttl=10), "b": Input(metric="b", ttl=30)}
    )
    processor = Processor()
    processor.set(rule)
    processor.feed(make_samples([1], [0], "a"))
    (made,) = processor.feed(make_samples([1], [8], "b")).derived
    assert (made.sample.time, made.expires) == (8, 10)
    effects = processor.feed(make_samples([1], [11], "b"))
    assert (effects.derived, effects.withdrawn) == ([], [(NODE, "y")])


def test_absence_travels_down_a_chain_of_rules() -> None:
    first = make_rule(make_step("expr", expression="1 / x"), name="first")
    second = make_rule(EWMA_1, name="second", reads={"y": Input(metric="y")}, outputs={"value": Output(metric="z")})
    third = make_rule(
        make_step("expr", expression="coalesce(y, -1)"), name="third",
        reads={"x": Input(metric="x"), "y": Input(metric="y")}, outputs={"value": Output(metric="w")},
    )  # fmt: skip
    samples = make_samples([2, 0])
    assert values([first, second, third], samples, "z") == [(0, 0.5)]
    assert values([first, second, third], samples, "w") == [(0, 0.5), (1, -1)]


def test_a_rule_by_period_is_applied_at_multiples_to_what_is_fresh() -> None:
    rule = make_rule(EWMA_1, trigger=Trigger.PERIOD, period=10.0, reads={"x": Input(metric="x", ttl=15)})
    assert values([rule], make_samples([1, 2], [3, 12]), now=31) == [(10, 1), (20, 2)]
    assert dryrun([rule], make_samples([1, 2], [3, 12]), now=55).absent == ((NODE, "y"),)


@pytest.mark.parametrize(
    ("hold", "want"),
    [
        pytest.param(0.0, ["OK", "HOT", "OK", "HOT", "HOT", "HOT", "OK"], id="told at once"),
        pytest.param(2.0, ["OK", "OK", "OK", "OK", "OK", "HOT", "HOT"], id="told once it has lasted two seconds"),
    ],
)
def test_a_state_is_held_back_until_it_lasts(hold: float, want: list[str]) -> None:
    rule = make_rule(
        make_step("threshold", hi=5, lo=5), hold=hold, emit=Emit.BOTH, reads={"x": Input(metric="x", ttl=1)}
    )
    result = dryrun([rule], make_samples([1, 9, 1, 9, 9, 9, 1]))
    assert [s.value for s in result.samples] == want
    changes = [(now, before) for before, now in zip(["OK", *want], want, strict=False) if now != before]
    assert [(e.value, e.previous) for e in result.events] == changes


def test_events_tell_what_changed_and_a_quiet_entity_tells_none() -> None:
    rule = make_rule(make_step("threshold", hi=5, lo=2), emit=Emit.EVENT, message="{1} is {value}, was {previous}")
    samples = make_samples([1, 9, 9, 1], entity="node/a") + make_samples([1, 1, 1, 1], entity="node/b")
    result = dryrun([rule], samples)
    assert result.samples == ()
    assert [(e.time, e.entity, e.message) for e in result.events] == [
        (1, "node/a", "a is HOT, was OK"), (3, "node/a", "a is OK, was HOT"),
    ]  # fmt: skip


def test_an_alarm_is_an_event_and_its_end_is_none() -> None:
    rule = make_rule(make_step("cusum", ref=1, drift=0.05, h=0.3), emit=Emit.BOTH)
    result = dryrun([rule], make_samples([1, 1, 0.8, 0.8, 0.8, 0.8, 1, 1]))
    assert [(e.time, e.value) for e in result.events] == [(4, 1.0)]


def test_a_result_of_the_wrong_type_is_the_rules_error_and_stops_no_other() -> None:
    bad = make_rule(make_step("expr", expression="if(x > 1, 'much', x)"), name="bad")
    good = make_rule(EWMA_1, name="good", outputs={"value": Output(metric="z")})
    result = dryrun([bad, good], make_samples([1, 2]))
    assert [(s.metric, s.value) for s in result.samples] == [("y", 1), ("z", 1), ("z", 2)]
    assert result.errors == {"bad": "node/a: y is a gauge, but the chain gives 'much'"}


def test_words_given_to_arithmetic_are_absent() -> None:
    assert values([make_rule(EWMA_1)], make_samples(["HOT"])) == []
    assert values([make_rule(make_step("expr", expression="x == 'HOT'"))], make_samples(["HOT", "OK"])) == [
        (0, 1),
        (1, 0),
    ]


def test_an_output_of_words_has_to_be_declared_as_one() -> None:
    rule = make_rule(
        make_step("expr", expression="if(x > 1, 'much', 'little')"),
        outputs={"value": Output(metric="y", type=MetricType.STATE)},
    )
    assert values([rule], make_samples([1, 2])) == [(0, "little"), (1, "much")]


def test_entities_beyond_the_cardinality_are_left_out_and_named() -> None:
    rule = make_rule(EWMA_1, cardinality=2)
    samples = [Sample(Entity(f"node/{index}"), "x", 0, 1.0) for index in range(4)]
    result = dryrun([rule], samples)
    assert len(result.samples) == 2
    assert result.errors == {"rule": "more than 2 entities: node/2 and others are left out"}


def test_what_is_gone_is_forgotten() -> None:
    processor = Processor()
    processor.set(make_rule(EWMA_1, cardinality=2))
    for minute in range(50):
        effects = processor.feed([Sample(Entity(f"node/{minute}"), "x", minute, 1.0)])
        assert len(effects.derived) == 1, effects.errors
        processor.prune(minute)
        assert processor.targets("rule") == 1


def test_a_changed_rule_begins_anew_and_a_removed_one_stops() -> None:
    processor = Processor()
    processor.set(make_rule(make_step("ewma", alpha=0.5)))
    processor.feed(make_samples([10, 20]))
    processor.set(make_rule(make_step("ewma", alpha=0.5), generation=2))
    assert [d.sample.value for d in processor.feed(make_samples([40], [2])).derived] == [40]
    processor.remove("rule")
    assert processor.feed(make_samples([40], [3])).derived == []


def test_late_and_repeated_samples_do_not_go_back_in_time() -> None:
    processor = Processor()
    processor.set(make_rule(make_step("expr", expression="x")))
    processor.feed(make_samples([1], [10]))
    assert [d.sample.value for d in processor.feed(make_samples([9], [5])).derived] == [1]


def test_operators_pass_over_what_is_absent_or_no_number() -> None:
    samples = [(0.0, 4.0), (1.0, ABSENT), (2.0, "word"), (3.0, float("inf")), (4.0, 8.0)]
    assert run(Ewma(0.5), samples) == [4, ABSENT, ABSENT, ABSENT, 6]
    assert run(Rate(None, 9), samples) == [ABSENT, ABSENT, ABSENT, ABSENT, 1]
    assert run(Threshold(5, 1), samples) == ["OK", ABSENT, ABSENT, "HOT", "HOT"]


finite = st.floats(-1e6, 1e6)


@given(st.lists(finite, min_size=1, max_size=40), st.integers(1, 9), st.floats(1, 20))
def test_a_window_has_the_newest_samples_and_their_order(numbers: list[float], most: int, seconds: float) -> None:
    window = Window(seconds, most)
    for time, number in enumerate(numbers):
        window.add(time, number)
        want = [(t, numbers[t]) for t in range(time + 1) if t >= time - seconds][-most:]
        assert list(window) == want
        assert list(window.ordered) == sorted(value for _, value in want)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), finite), max_size=40), st.integers(0, 40))
def test_how_samples_are_cut_into_batches_changes_no_smoothing(items: list[tuple[int, int, float]], cut: int) -> None:
    time, samples = 0.0, []
    for elapsed, entity, value in items:
        time += elapsed + 0.5
        samples.append(Sample(Entity(f"node/{entity}"), "x", time, value))
    rule = make_rule(make_step("ewma_t", half_life=3))

    def play(*batches: list[Sample]) -> list[Sample]:
        processor = Processor()
        processor.set(rule)
        return [made.sample for batch in batches for made in processor.feed(batch).derived]

    assert play(samples) == play(samples[:cut], samples[cut:])
