"""The oracles A-1 to A-10, each of an operator by itself and of a rule in a dry run."""

from __future__ import annotations

import math
from typing import Any

import pytest

from builders_info import NODE, make_rule, make_samples, make_step
from heterotrain_core.info import stats
from heterotrain_core.info.dryrun import dryrun
from heterotrain_core.info.rules import Input, Output, ProcessingRule
from heterotrain_core.info.values import Entity, Sample


def outputs(rule: ProcessingRule, samples: list[Sample], metric: str = "y") -> list[Any]:
    return [sample.value for sample in dryrun([rule], samples).samples if sample.metric == metric]


def test_a1_ewma_begins_with_the_first_value() -> None:
    rule = make_rule(make_step("ewma", alpha=0.3))
    assert outputs(rule, make_samples([10, 10, 20, 10, 10])) == pytest.approx([10, 10, 13, 12.1, 11.47], abs=1e-12)


def test_a2_ewma_t_weighs_by_the_time_between() -> None:
    rule = make_rule(make_step("ewma_t", half_life=10))
    assert outputs(rule, make_samples([10, 20, 20], [0, 5, 25])) == pytest.approx([10, 12.9289, 18.2322], abs=5e-5)


@pytest.mark.parametrize(
    ("window", "want"),
    [
        pytest.param({"window": 10.0}, [6, 3, 6], id="per interval"),
        pytest.param({"window_samples": 2}, [6, 3, 6], id="per interval, by number"),
        pytest.param({}, [6, 4.5, 5], id="over the whole, the last over all of it"),
    ],
)
def test_a3_rate_counts_a_reset_as_growth_from_zero(window: dict[str, Any], want: list[float]) -> None:
    rule = make_rule(make_step("rate"), **window)
    assert outputs(rule, make_samples([100, 160, 30, 90], [0, 10, 20, 30])) == pytest.approx(want, abs=1e-12)


def test_a4_median_deviation_and_robust_z() -> None:
    values = [1.0, 1.1, 0.9, 1.0, 5.0]
    assert outputs(make_rule(make_step("median")), make_samples(values))[-1] == 1.0
    assert outputs(make_rule(make_step("mad")), make_samples(values))[-1] == pytest.approx(0.1)
    assert outputs(make_rule(make_step("robust_z")), make_samples(values))[-1] == pytest.approx(26.98, abs=5e-3)
    last_is_a_small_one = [1.0, 0.9, 1.0, 5.0, 1.1]
    z = outputs(make_rule(make_step("robust_z")), make_samples(last_is_a_small_one))[-1]
    assert z == pytest.approx(0.674, abs=5e-4)
    assert [stats.median(values), stats.mad(values)] == pytest.approx([1.0, 0.1])
    assert [stats.robust_z(x, values) for x in (5.0, 1.1)] == pytest.approx([26.98, 0.674], abs=5e-3)


def test_a5_quantiles_are_interpolated() -> None:
    values = [1, 2, 3, 4, 10]
    assert outputs(make_rule(make_step("quantile", q=0.9)), make_samples(values))[-1] == pytest.approx(7.6)
    assert outputs(make_rule(make_step("quantile", q=0.5)), make_samples(values))[-1] == 3


def test_a6_threshold_compares_strictly() -> None:
    rule = make_rule(make_step("threshold", hi=0.8, lo=0.6, hold=1))
    states = outputs(rule, make_samples([0.5, 0.81, 0.7, 0.61, 0.59, 0.79, 0.8, 0.85, 0.6]))
    assert states == ["OK", "HOT", "HOT", "HOT", "OK", "OK", "OK", "HOT", "HOT"]


def test_a7_threshold_waits_for_consecutive_samples() -> None:
    rule = make_rule(make_step("threshold", hi=0.8, lo=0.6, hold=2))
    states = outputs(rule, make_samples([0.9, 0.5, 0.9, 0.9, 0.7, 0.5, 0.9, 0.5, 0.5]))
    assert states == ["OK", "OK", "OK", "HOT", "HOT", "HOT", "HOT", "HOT", "OK"]


@pytest.mark.parametrize(
    ("reset", "want_sums", "want_alarms"),
    [
        pytest.param(False, [0, 0, 0, 0.15, 0.30, 0.45, 0.60], [0, 0, 0, 0, 0, 1, 1], id="shown without the reset"),
        pytest.param(True, [0, 0, 0, 0.15, 0.30, 0.45, 0.15], [0, 0, 0, 0, 0, 1, 0], id="as it is used"),
    ],
)
def test_a8_cusum_alarms_first_at_the_sixth(reset: bool, want_sums: list[float], want_alarms: list[float]) -> None:
    outs = {"s": Output(metric="s"), "alarm": Output(metric="alarm")}
    rule = make_rule(make_step("cusum", ref=1, drift=0.05, h=0.3, reset=reset), outputs=outs)
    samples = make_samples([1, 1.02, 0.98, 0.8, 0.8, 0.8, 0.8])
    assert outputs(rule, samples, "s") == pytest.approx(want_sums, abs=1e-12)
    assert outputs(rule, samples, "alarm") == want_alarms


def test_a9_alpha_beta_is_not_moved_by_an_outlier() -> None:
    sizes = [0.0, 1e6, 2e6, 4e6, 8e6]
    seconds = [0.004 + size / 100e6 + (0.2 if size == 4e6 else 0) for size in sizes]
    rule = make_rule(
        make_step("alpha_beta"),
        reads={"bytes": Input(metric="sent"), "seconds": Input(metric="took")},
        outputs={"delta": Output(metric="delay"), "bandwidth": Output(metric="bandwidth")},
    )
    samples = make_samples(sizes, metric="sent", entity="link/a/b")
    samples += make_samples(seconds, metric="took", entity="link/a/b")
    assert outputs(rule, samples, "delay")[-1] == pytest.approx(0.004, rel=1e-9)
    assert outputs(rule, samples, "bandwidth")[-1] == pytest.approx(100e6, rel=1e-9)


def test_a10_a_ring_of_rules_is_refused_by_name() -> None:
    p1 = make_rule(
        make_step("ewma", alpha=1), name="p1", reads={"i": Input(metric="y")}, outputs={"value": Output(metric="x")}
    )
    p2 = make_rule(make_step("ewma", alpha=1), name="p2")
    with pytest.raises(ValueError, match=r"rule p2: the rules feed each other in a ring: p2 -> p1 -> p2"):
        dryrun([p1, p2], [])


def test_a10_a_stale_input_makes_the_output_absent() -> None:
    rule = make_rule(make_step("ewma", alpha=1), reads={"x": Input(metric="x", ttl=10)})
    (sample,) = make_samples([7])
    fresh, stale = dryrun([rule], [sample], now=10), dryrun([rule], [sample], now=10.1)
    assert (fresh.samples, fresh.absent) == ((sample._replace(metric="y"),), ())
    assert (stale.samples, stale.absent) == ((), ((NODE, "y"),))


def test_a10_an_expression_with_one_stale_input_is_absent() -> None:
    rule = make_rule(
        make_step("expr", expression="a + b"), reads={"a": Input(metric="a", ttl=10), "b": Input(metric="b", ttl=10)}
    )
    samples = make_samples([1], [0], "a") + make_samples([2, 3, 4], [5, 10, 11], "b")
    result = dryrun([rule], samples)
    assert result.samples == (Sample(NODE, "y", 5, 3), Sample(NODE, "y", 10, 4))
    assert result.absent == ((NODE, "y"),)


def test_a_mad_of_zero_is_absent_and_robust_z_then_zero_or_infinite() -> None:
    samples = make_samples([1, 1, 1, 2])
    assert outputs(make_rule(make_step("mad")), samples) == []
    assert outputs(make_rule(make_step("robust_z")), samples) == [0, 0, 0, math.inf]


def test_division_by_zero_is_absent_then_and_only_then() -> None:
    rule = make_rule(make_step("expr", expression="1 / x"))
    assert dryrun([rule], make_samples([2, 0, 4])).samples == (Sample(NODE, "y", 0, 0.5), Sample(NODE, "y", 2, 0.25))


def test_the_same_samples_give_the_same_outputs_whatever_their_order() -> None:
    rule = make_rule(make_step("rate"))
    samples = make_samples([1, 5, 6, 2], entity="node/a") + make_samples([1, 2, 4, 8], entity=Entity("node/b"))
    assert dryrun([rule], samples) == dryrun([rule], samples[::-1])
