from __future__ import annotations

import io
from dataclasses import astuple
from pathlib import Path

import pytest

from heterotrain.lab.pacing import Clock, Pacer
from heterotrain_core.lab.setups import SETUPS
from heterotrain_core.lab.task import Kind, ModelName, Task
from heterotrain_core.lab.trace import Step, read_trace


class Time:
    """A clock that moves when it is told to, or slept on."""

    def __init__(self) -> None:
        self.now = 100.0

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


def task(setup: str, level: int) -> Task:
    return Task(
        kind=Kind.JOB, setup=SETUPS[setup], level=level, model=ModelName.SMALL, batch=256, shares=(64, 64, 64, 64),
        seed=0, data=Path("data"), folder=Path("runs"),
    )  # fmt: skip


def run(
    setup: str, level: int, worker: int, *, num_steps: int = 1, computes: float = 0.01, reserve: float = 0.0
) -> list[Step]:
    """Steps of 50 samples each of which really takes `computes`, then 0.5 s of waiting for the others."""
    time, file = Time(), io.StringIO()
    pacer = Pacer(task(setup, level), worker, file, Clock(lambda: time.now, time.pass_by))
    for _ in range(num_steps):
        pacer.begin(50)
        time.pass_by(computes * pacer.work)
        pacer.hold(reserve)
        time.pass_by(0.5)
        pacer.end()
    return list(read_trace(file.getvalue()))


@pytest.mark.parametrize(
    ("setup", "level", "worker", "computes", "want"),
    [
        pytest.param(
            "equal", 2, 0, 0.01, Step(100, 100.7, 50, 0.01, 0.2, 1), id="padded to 50 samples at 250 a second"
        ),
        pytest.param("equal", 2, 0, 0.30, Step(100, 100.8, 50, 0.3, 0.2, 1), id="too slow already: not padded"),
        pytest.param("slow-link", 2, 3, 0.01, Step(100, 100.86, 50, 0.01, 0.36, 1), id="padded by the link too"),
        pytest.param("equal", 3, 0, 0.25, Step(100, 100.75, 50, 0.25, 0.25, 1), id="level 3: as long as it takes"),
        pytest.param("slow-link", 3, 3, 0.25, Step(100, 100.91, 50, 0.25, 0.41, 1), id="level 3: and its link"),
    ],
)
def test_a_step_lasts_what_its_set_up_says(setup: str, level: int, worker: int, computes: float, want: Step) -> None:
    (step,) = run(setup, level, worker, computes=computes)
    assert astuple(step) == pytest.approx(astuple(want), abs=1e-6)


def test_what_comes_after_the_padding_is_kept_free() -> None:
    (step,) = run("equal", 2, 0, reserve=0.05)
    assert step.end - step.begin == pytest.approx(0.15 + 0.5)


def test_a_changed_speed_is_written_down_from_its_first_step_on() -> None:
    found = run("step-change", 2, 0, num_steps=151)
    assert [found[n].factor for n in (49, 50, 149, 150)] == [1, 2, 2, 1]
    assert [found[n].paced for n in (49, 50, 149, 150)] == pytest.approx([0.2, 0.4, 0.4, 0.2])


def test_at_level_3_a_slower_step_is_computed_again() -> None:
    found = run("step-change", 3, 0, num_steps=51, computes=0.1)
    assert [found[n].real for n in (49, 50)] == pytest.approx([0.1, 0.2])
