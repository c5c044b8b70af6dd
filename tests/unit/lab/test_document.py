from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from heterotrain_core.lab.setups import SETUPS
from heterotrain_operator.lab.conduct import between, write
from heterotrain_operator.lab.document import Check, Failed, Result, RunFigures, Speeds, acceptance, document, lines
from heterotrain_operator.lab.figures import PlanFigures


def run(name: str, reached: float, *, seed: int = 0, target: float | None = None) -> RunFigures:
    return RunFigures(
        name=name, seed=seed, samples_per_second=reached, ideal_samples_per_second=1000.0,
        with_start_samples_per_second=0.9 * reached, real_part=0.05, machine_busy=0.4, shares=(103, 77, 51, 25),
        throughput=[(0.5, reached), (1.5, reached)], shares_over_time=[[(0.0, 64), (1.0, 103)]] * 4,
        accuracy=[(0.0, 0.1), (1.0, 0.8)], seconds_to_target=target, final_accuracy=0.8,
        disturbed=[(0.5, 1.0)] if name == "adaptation" else (),
        plans=[PlanFigures(2, 5, 0.27, 0.3, {"w-0": 103}, "faster")] if name == "adaptation" else (),
    )  # fmt: skip


def result(*runs: RunFigures | Failed, setup: str = "ladder", level: int = 2) -> Result:
    return Result(
        setup=SETUPS[setup], level=level, batch=256, seconds=60.0, warm_up_seconds=10.0, machine_cores=2,
        quotas=(0.8, 0.4, 0.2, 0.1) if level == 3 else (),
        speeds=[
            Speeds(together=(400.0, 300.0, 200.0, 100.0), single=(410.0, 300.0, 200.0, 100.0)),
            Speeds(together=(420.0, 300.0, 200.0, 100.0)),
        ],
        best_share_of_ideal=0.99, runs=runs,
    )  # fmt: skip


def test_the_document_has_the_promised_names_and_medians_over_the_seeds() -> None:
    told = document(result(run("ddp-equal", 380.0), run("adaptation", 900.0), run("adaptation", 940.0, seed=1)))
    assert told["ideal_samples_per_second"] == 1010.0
    assert told["sum_of_single_speeds"] == 1010.0
    assert [
        {key: entry[key] for key in ("name", "samples_per_second", "share_of_ideal")} for entry in told["runs"]
    ] == [
        {"name": "ddp-equal", "samples_per_second": 380.0, "share_of_ideal": 0.38},
        {"name": "adaptation", "samples_per_second": 920.0, "share_of_ideal": pytest.approx(0.92)},
    ]
    assert [entry["s_balance"] for entry in told["runs"]] == [pytest.approx(1010 / 400)] * 2
    assert told["runs"][1]["plan_error"] == pytest.approx(0.1)
    assert json.loads(json.dumps(told))["runs"][1]["seeds"][0]["shares"] == [103, 77, 51, 25]


def test_a_target_counts_only_if_every_seed_reached_it() -> None:
    told = document(result(run("asp", 900.0, target=20.0), run("asp", 900.0, seed=1, target=24.0), run("ssp", 400.0)))
    assert [entry["seconds_to_target"] for entry in told["runs"]] == [22.0, None]
    half = document(result(run("asp", 900.0, target=20.0), run("asp", 900.0, seed=1)))
    assert half["runs"][0]["seconds_to_target"] is None
    assert half["runs"][0]["seconds_to_target_range"] == [20.0, 20.0]


def test_at_level_3_each_run_has_an_ideal_of_its_own_window_beside_the_measured_one() -> None:
    runs = [replace(run("asp", 900.0), ideal_within_samples_per_second=ideal) for ideal in (900.0, 1000.0, 1200.0)]
    told = document(result(*runs, level=3))
    assert (told["runs"][0]["share_of_ideal"], told["runs"][0]["share_of_ideal_within"]) == (0.9, 0.9)
    assert [seed["share_of_ideal_within"] for seed in told["runs"][0]["seeds"]] == [1.0, 0.9, 0.75]
    assert "90.0%     90.0%" in lines(told)[5]
    assert "90.0%         -" in lines(document(result(run("asp", 900.0))))[5]


@pytest.mark.parametrize(
    ("measured", "want"),
    [
        pytest.param(run("asp", 900.0), run("asp", 900.0).ideal_samples_per_second * 0.9, id="a fifth slower after it"),
        pytest.param(Failed(name="asp", seed=0, error="it ended"), None, id="a run that failed has none"),
    ],
)
def test_the_ideal_of_a_run_is_that_of_the_machine_around_it(measured: RunFigures | Failed, want: float | None) -> None:
    told = between(measured, Speeds(together=(400.0, 100.0)), Speeds(together=(300.0, 100.0)))
    assert (told.ideal_samples_per_second if isinstance(told, RunFigures) else None) == want


def test_a_failed_run_is_told_as_such() -> None:
    told = document(result(Failed(name="ddp-equal", seed=0, error="worker 2 ended\nwith a trace")))
    assert told["runs"][0]["share_of_ideal"] == 0.0
    assert "ddp-equal        failed: worker 2 ended" in lines(told)


PACED = Check("measured over paced speeds, sum", 1.0, 0.03, 1.01)


@pytest.mark.parametrize(
    ("given", "want"),
    [
        pytest.param(
            result(run("bsp-equal", 390.0)),
            [PACED, Check("share of the ideal of BSP with equal shares, 1 / S_balance", 400 / 1010, 0.03, 0.39)],
            id="unequal workers: equal shares reach what they can",
        ),
        pytest.param(result(run("adaptation", 900.0)), [PACED], id="that run was not made"),
        pytest.param(result(run("bsp-equal", 390.0), level=3), [], id="no such promise at level 3"),
        pytest.param(result(run("bsp-equal", 390.0), setup="slow-link"), [PACED], id="a set-up with links"),
        pytest.param(
            result(run("asp", 900.0), run("ssp", 1000.0), run("bsp-equal", 1000.0), setup="equal"),
            [
                PACED,
                Check("asp over the median of all runs (equal workers)", 1.0, 0.05, 0.9),
                Check("ssp over the median of all runs (equal workers)", 1.0, 0.05, 1.0),
                Check("bsp-equal over the median of all runs (equal workers)", 1.0, 0.05, 1.0),
            ],
            id="equal workers: every mode comes to the same",
        ),
    ],
)
def test_the_lab_checks_itself(given: Result, want: list[Check]) -> None:
    found = acceptance(given)
    assert [replace(check, expected=0, measured=0) for check in found] == [
        replace(check, expected=0, measured=0) for check in want
    ]
    assert [(c.expected, c.measured) for c in found] == [pytest.approx((c.expected, c.measured)) for c in want]


def test_a_check_that_does_not_hold_is_said_aloud() -> None:
    told = document(result(run("bsp-equal", 300.0)))
    assert [check["ok"] for check in told["acceptance"]] == [True, False]
    assert "DOES NOT HOLD" in lines(told)[-1]


@pytest.mark.timeout(180)  # the first import of matplotlib, on a busy machine
def test_table_and_pictures_are_written(tmp_path: Path) -> None:
    write(result(run("ddp-equal", 380.0), run("adaptation", 900.0, target=12.0)), tmp_path)
    written = (tmp_path / "lab.md").read_text()
    assert (
        "adaptation           900.0     90.0%         -       900.0       810.0   12.0 s     80.0%       10.0%"
        in written
    )
    for name in ("throughput.png", "shares.png", "accuracy.png"):
        assert f"]({name})" in written
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_the_table_says_what_the_quotas_were() -> None:
    assert lines(document(result(run("adaptation", 900.0), level=3)))[1].endswith("quotas 0.8 0.4 0.2 0.1 of a core")


def test_a_bad_moment_of_the_machine_does_not_move_the_median() -> None:
    bad = replace(run("asp", 700.0), throughput=[(5.0, 10.0), (15.0, 900.0), (25.0, 300.0), (35.0, 920.0)])
    assert bad.median_speed(10.0) == 900.0
    assert document(result(bad))["runs"][0]["median_samples_per_second"] == 900.0
