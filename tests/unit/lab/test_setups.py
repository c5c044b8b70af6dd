from __future__ import annotations

from dataclasses import replace
from statistics import fmean, pstdev

import pytest

from heterotrain_core.lab.pace import burst_factor, lasting_factor, noise_factor, paced_seconds
from heterotrain_core.lab.setups import SETUPS, TOTAL_SPEED
from heterotrain_operator.local.report import balance_speed_up


@pytest.mark.parametrize(
    ("name", "want"),
    [
        pytest.param("equal", 1.0, id="equal workers leave nothing to balance"),
        pytest.param("het-2", 1.5, id="12:12:8:16"),
        pytest.param("het-4", 2.0, id="9:9:6:24"),
        pytest.param("het-8", 3.0, id="6:6:4:32"),
        pytest.param("straggler-4", 3.25, id="1:1:1:0.25"),
        pytest.param("ladder", 2.5, id="4:3:2:1"),
    ],
)
def test_the_ceiling_of_balance_is_that_of_the_specification(name: str, want: float) -> None:
    assert balance_speed_up(SETUPS[name].speeds) == pytest.approx(want)


@pytest.mark.parametrize("name", SETUPS)
def test_all_workers_together_are_as_fast_in_every_set_up_and_leave_room_beside_them(name: str) -> None:
    setup = SETUPS[name]
    assert sum(setup.speeds) == pytest.approx(TOTAL_SPEED)
    assert sum(setup.quotas) == pytest.approx(1.5)
    assert max(setup.quotas) <= 1


def test_the_ladder_by_quota_is_the_one_that_is_promised() -> None:
    assert SETUPS["ladder"].quotas == (0.8, 0.4, 0.2, 0.1)


@pytest.mark.parametrize(
    ("worker", "step", "want"),
    [
        pytest.param(0, 49, 1, id="before"),
        pytest.param(0, 50, 2, id="from step 50 on"),
        pytest.param(0, 149, 2, id="the last slow one"),
        pytest.param(0, 150, 1, id="recovered"),
        pytest.param(1, 100, 1, id="another worker"),
    ],
)
def test_a_step_change_slows_one_worker_down_for_a_while(worker: int, step: int, want: int) -> None:
    assert lasting_factor(SETUPS["step-change"], worker, step) == want


def test_bursts_are_as_frequent_as_said_and_the_same_in_every_run() -> None:
    setup = SETUPS["transient"]
    drawn = [burst_factor(setup, worker, step, seed=3) for worker in range(4) for step in range(1000)]
    assert drawn == [burst_factor(setup, worker, step, seed=3) for worker in range(4) for step in range(1000)]
    assert set(drawn) == {1, 4}
    assert drawn.count(4) / len(drawn) == pytest.approx(0.05, abs=0.01)
    assert drawn != [burst_factor(setup, worker, step, seed=4) for worker in range(4) for step in range(1000)]


def test_noise_varies_single_steps_by_what_is_said_around_the_set_up_s_speed_and_alike_in_every_run() -> None:
    setup = SETUPS["noise"]
    drawn = [noise_factor(setup, worker, step, seed=3) for worker in range(4) for step in range(1000)]
    assert drawn == [noise_factor(setup, worker, step, seed=3) for worker in range(4) for step in range(1000)]
    assert (fmean(drawn), pstdev(drawn)) == (pytest.approx(1.0, abs=0.003), pytest.approx(0.05, abs=0.003))
    assert noise_factor(replace(setup, noise=9.0), 0, 0, seed=3) >= 0.5
    assert noise_factor(SETUPS["ladder"], 0, 0, seed=3) == 1.0


def test_a_step_lasts_its_samples_and_its_link() -> None:
    assert paced_seconds(SETUPS["slow-link"], 3, 50, 1) == pytest.approx(0.16 + 50 / 250)
    assert paced_seconds(SETUPS["transient"], 3, 50, 4) == pytest.approx(4 * 50 / 250)


def test_nothing_happens_to_an_undisturbed_set_up() -> None:
    for setup in SETUPS.values():
        calm = setup.undisturbed
        assert (calm.name, calm.speeds, calm.quotas) == (setup.name, setup.speeds, setup.quotas)
        assert {lasting_factor(calm, 0, step) * burst_factor(calm, 0, step, 0) for step in range(200)} == {1}
        assert {noise_factor(calm, 0, step, 0) for step in range(200)} == {1.0}
        assert calm.link(3) == 0.0
