"""The oracles A-1 to A-10 of the operators, each by a dry run on a running server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from support.info_server import InfoServer, chain

NODE = "node/a"


def made(
    values: Sequence[float | str], times: Sequence[float] | None = None, metric: str = "x"
) -> list[dict[str, Any]]:
    return [
        {"entity": NODE, "metric": metric, "time": time, "value": value}
        for time, value in zip(times or range(len(values)), values, strict=True)
    ]


def outputs(
    server: InfoServer, spec: Mapping[str, Any], samples: Sequence[Mapping[str, Any]], metric: str = "y"
) -> Any:
    answer = server.dryrun([spec], samples)
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert document.keys() == {"samples", "events"}
    assert {sample["entity"] for sample in document["samples"]} == {NODE}
    return [sample["value"] for sample in document["samples"] if sample["metric"] == metric]


LATENCY = [0.9, 0.5, 0.9, 0.9, 0.7, 0.5, 0.9, 0.5, 0.5]
SPREAD = [1.0, 1.1, 0.9, 1.0, 5.0]


@pytest.mark.parametrize(
    ("steps", "fields", "values", "times", "want"),
    [
        pytest.param([{"operator": "ewma", "alpha": 0.3}], {}, [10, 10, 20, 10, 10], None,
                     [10, 10, 13, 12.1, 11.47], id="A-1 ewma"),
        pytest.param([{"operator": "ewma_t", "half_life": 10}], {}, [10, 20, 20], [0, 5, 25],
                     [10, 12.9289, 18.2322], id="A-2 ewma by time"),
        pytest.param([{"operator": "rate"}], {"windowSamples": 2}, [100, 160, 30, 90], [0, 10, 20, 30],
                     [6, 3, 6], id="A-3 rate of each interval, over a reset"),
        pytest.param([{"operator": "rate"}], {}, [100, 160, 30, 90], [0, 10, 20, 30],
                     [6, 4.5, 5], id="A-3 rate of the whole window"),
        pytest.param([{"operator": "median"}], {}, SPREAD, None, [1.0, 1.05, 1.0, 1.0, 1.0], id="A-4 median"),
        pytest.param([{"operator": "mad"}], {}, SPREAD, None, [0.05, 0.1, 0.05, 0.1], id="A-4 mad, absent while 0"),
        pytest.param([{"operator": "robust_z"}], {}, SPREAD, None, [0.0, 0.6745, -0.6745, 0.0, 26.98],
                     id="A-4 robust z of 5.0"),
        pytest.param([{"operator": "robust_z"}], {}, [1.0, 5.0, 0.9, 1.0, 1.1], None,
                     [0.0, 0.6745, -0.6745, 0.0, 0.6745], id="A-4 robust z of 1.1"),
        pytest.param([{"operator": "quantile", "q": 0.9}], {}, [1, 2, 3, 4, 10], None, [1, 1.9, 2.8, 3.7, 7.6],
                     id="A-5 quantile by linear interpolation"),
        pytest.param([{"operator": "quantile", "q": 0.5}], {}, [1, 2, 3, 4, 10], None, [1, 1.5, 2, 2.5, 3],
                     id="A-5 the middle one"),
    ],
)  # fmt: skip
def test_numbers(
    server: InfoServer,
    steps: list[Any],
    fields: dict[str, Any],
    values: list[float],
    times: list[float],
    want: list[float],
) -> None:
    assert outputs(server, chain("x", "y", *steps, **fields), made(values, times)) == pytest.approx(
        want, abs=5e-4, rel=1e-4
    )


@pytest.mark.parametrize(
    ("hold", "values", "want"),
    [
        pytest.param(1, [0.5, 0.81, 0.7, 0.61, 0.59, 0.79, 0.8, 0.85, 0.6], "OK HOT HOT HOT OK OK OK HOT HOT",
                     id="A-6 strict comparisons"),
        pytest.param(2, LATENCY, "OK OK OK HOT HOT HOT HOT HOT OK", id="A-7 two in a row"),
    ],
)  # fmt: skip
def test_hysteresis(server: InfoServer, hold: int, values: list[float], want: str) -> None:
    step = {"operator": "threshold", "hi": 0.8, "lo": 0.6, "hold": hold}
    assert outputs(server, chain("x", "y", step), made(values)) == want.split()


def test_a8_cusum_alarms_at_the_sixth_sample(server: InfoServer) -> None:
    spec = {
        "inputs": {"x": {"metric": "x"}},
        "chain": [{"operator": "cusum", "ref": 1, "drift": 0.05, "h": 0.3, "reset": False}],
        "outputs": {"s": {"metric": "s"}, "alarm": {"metric": "alarm"}},
        "emit": "both",
    }
    samples = made([1, 1.02, 0.98, 0.8, 0.8, 0.8, 0.8])
    assert outputs(server, spec, samples, "s") == pytest.approx([0, 0, 0, 0.15, 0.30, 0.45, 0.60])
    assert outputs(server, spec, samples, "alarm") == [0, 0, 0, 0, 0, 1, 1]
    assert [event["time"] for event in server.dryrun([spec], samples).json()["events"]] == [5]


def test_a9_alpha_beta_is_not_led_astray_by_one_slow_transfer(server: InfoServer) -> None:
    sizes = [0, 1e6, 2e6, 4e6, 8e6]
    seconds = [0.004 + size / 100e6 + (0.2 if size == 4e6 else 0) for size in sizes]
    spec = {
        "inputs": {"bytes": {"metric": "b"}, "seconds": {"metric": "s"}},
        "chain": [{"operator": "alpha_beta"}],
        "outputs": {"delta": {"metric": "delta"}, "bandwidth": {"metric": "bandwidth"}},
    }
    samples = made(sizes, metric="b") + made(seconds, metric="s")
    assert outputs(server, spec, samples, "delta")[-1] == pytest.approx(0.004)
    assert outputs(server, spec, samples, "bandwidth")[-1] == pytest.approx(100e6)


def test_a10_a_ring_is_refused_and_named(server: InfoServer) -> None:
    ring = [chain("y", "x", {"operator": "mean"}), chain("x", "y", {"operator": "mean"})]
    answer = server.dryrun(ring, [])
    assert answer.status_code == 422
    document = answer.json()
    assert (document["code"], document["fields"][0]["field"]) == ("invalid", "rules")
    assert "ring: rule-2 -> rule-1 -> rule-2" in document["message"]


def test_a10_a_stale_input_makes_the_output_absent(server: InfoServer) -> None:
    spec = chain("x", "y", {"operator": "ewma", "alpha": 0.3}) | {"inputs": {"x": {"metric": "x", "ttl": 10}}}
    samples = made([1, 2], [0, 5])
    assert len(server.dryrun([spec], samples, now=15).json()["samples"]) == 2
    answer = server.dryrun([spec], samples, now=15.1, explain=True).json()
    assert answer == {"samples": [], "events": [], "absent": [{"entity": NODE, "metric": "y"}], "errors": {}}


def test_infinite_numbers_are_texts_both_ways(server: InfoServer) -> None:
    spec = chain("x", "z", {"operator": "robust_z"})
    infinite = outputs(server, spec, made([1, 1, 1, 2]), "z")
    assert infinite == [0, 0, 0, "+Inf"]
    hot = chain("z", "state", {"operator": "threshold", "hi": 4, "lo": 2})
    assert outputs(server, hot, made(infinite, metric="z"), "state") == ["OK", "OK", "OK", "HOT"]


def test_errors_of_a_rule_are_told(server: InfoServer) -> None:
    spec = chain("x", "y", {"operator": "threshold", "hi": 1, "lo": 0}) | {"output": {"metric": "y", "type": "gauge"}}
    answer = server.dryrun([{"name": "wrong", **spec}], made([1])).json()
    assert answer["samples"] == []
    assert answer["errors"] == {"wrong": "node/a: y is a gauge, but the chain gives 'OK'"}
