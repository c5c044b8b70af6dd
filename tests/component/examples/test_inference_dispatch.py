"""The example of another scheduler: its dispatcher by itself, and all of it with real servers, rules and requests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from heterotrain_operator.info.rules import load_rules

EXAMPLE = Path(__file__).parents[3] / "examples" / "inference_dispatch"


@pytest.fixture(scope="module")
def dispatching() -> ModuleType:
    sys.path.insert(0, str(EXAMPLE))
    try:
        import dispatcher
    finally:
        sys.path.remove(str(EXAMPLE))
    return dispatcher


def sample(server: str, metric: str, value: Any, expires: float | None) -> dict[str, Any]:
    return {"entity": f"server/{server}", "metric": metric, "time": 0.0, "value": value, "expires": expires}


@pytest.mark.parametrize("path", sorted(EXAMPLE.glob("rules/*.yaml")), ids=lambda path: path.stem)
def test_every_file_of_rules_is_one_that_the_service_takes(path: Path) -> None:
    assert load_rules(path.read_text())


def test_turns_are_in_proportion_to_weights_and_spread_evenly(dispatching: ModuleType) -> None:
    smooth = dispatching.SmoothWeighted()
    turns = [smooth.choose({"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0, "none": 0.0}) for _ in range(40)]
    assert Counter(turns) == {"a": 16, "b": 12, "c": 8, "d": 4}
    assert all(Counter(turns[first : first + 10]) == {"a": 4, "b": 3, "c": 2, "d": 1} for first in range(0, 40, 10))


def test_a_server_that_lost_its_weight_has_no_claim_when_it_is_back(dispatching: ModuleType) -> None:
    smooth = dispatching.SmoothWeighted()
    for _ in range(5):
        smooth.choose({"a": 1.0, "b": 1.0})
    assert [smooth.choose({"a": 1.0}) for _ in range(9)] == ["a"] * 9
    assert Counter(smooth.choose({"a": 1.0, "b": 1.0}) for _ in range(10)) == {"a": 5, "b": 5}


def test_what_the_service_no_longer_says_ends_with_its_time(dispatching: ModuleType) -> None:
    world = dispatching.World()
    world.take(sample("a", "dispatch_weight", 4.0, 10.0))
    world.take(sample("b", "dispatch_weight", 3.0, 20.0))
    world.take(sample("c", "dispatch_weight", 2.0, 20.0))
    world.take(sample("c", "dispatch_weight", None, None))
    assert world.of("dispatch_weight", 9.0) == {"server/a": 4.0, "server/b": 3.0}
    assert world.of("dispatch_weight", 11.0) == {"server/b": 3.0}


@pytest.mark.parametrize(
    ("samples", "weights"),
    [
        pytest.param([("a", "dispatch_weight", 4.0)], {}, id="a server whose address nobody knows is not asked"),
        pytest.param([("a", "server_address", "x:1")], {}, id="nor one without a weight"),
        pytest.param(
            [("a", "server_address", "x:1"), ("a", "dispatch_weight", 4.0)], {"server/a": 4.0}, id="one with both is"
        ),
    ],
)
async def test_only_servers_with_address_and_weight_are_asked(
    dispatching: ModuleType, samples: list[tuple[str, str, Any]], weights: dict[str, float]
) -> None:
    dispatcher = dispatching.Dispatcher("http://127.0.0.1:9", "T", now=lambda: 5.0)
    for server, metric, value in samples:
        dispatcher.world.take(sample(server, metric, value, 9.0))
    assert dispatcher.weights() == weights
    if not weights:
        with pytest.raises(dispatching.NoServerError):
            dispatcher.by_weight()
    await dispatcher.close()


def run_demo(folder: Path, *options: str) -> tuple[int, str, str]:
    """Exit code, output and errors; it ends its own processes, in time or not."""
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLE / "demo.py"), *options], cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "HETEROTRAIN_HOME": str(folder)},
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=260)
    finally:
        process.terminate()
        process.wait(30)
    return process.returncode, output, errors


@pytest.mark.timeout(300)
def test_the_demo_dispatches_real_requests_as_rules_say(tmp_path: Path) -> None:
    """Small: digits instead of Fashion-MNIST, 2 s each, few requests. Who served is compared, never how fast."""
    clients = 12
    code, output, errors = run_demo(
        tmp_path,
        *("--data", "digits", "--train-images", "600", "--seconds", "2", "--turns", "1", "--service-seconds", "0.4"),
        *("--clients", str(clients), "--json", str(tmp_path / "figures.json")),
    )
    assert code == 0, output + errors
    assert "Traceback" not in errors
    found = json.loads((tmp_path / "figures.json").read_text())

    assert (found["wrong"], found["failures"]) == (0, 0), "each answer is the model's own"
    assert found["requests"] > 50
    by_rule, in_turn = found["rule"]["by_server"], found["round_robin"]["by_server"]
    assert set(by_rule) == set(in_turn) == {"a", "b", "c", "d"}
    assert by_rule["a"] > by_rule["d"]

    def share(key: str, server: str) -> float:
        return float(found[key]["by_server"].get(server, 0) / found[key]["requests"])

    assert share("slow_after", "a") < share("slow_before", "a"), "the slow server gets less"
    left_over = sum(found["strategy_fast"]["by_server"].get(server, 0) for server in "cd")
    assert left_over <= clients + found["strategy_fast"]["requests"] / 10, "after the change they got hardly any more"
    assert share("unknown_before", "tpx-1") == 0
    assert share("unknown_after", "tpx-1") > 0
