from __future__ import annotations

import io
from dataclasses import astuple, replace
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from heterotrain.lab.pacing import Clock, Pacer, wait_to_join
from heterotrain_core.lab.setups import SETUPS
from heterotrain_core.lab.task import Kind, ModelName, Task
from heterotrain_core.lab.trace import Step, read_trace


class Time:
    """A clock that moves when it is told to, or slept on."""

    def __init__(self) -> None:
        self.now = 100.0

    def pass_by(self, seconds: float) -> None:
        self.now += seconds

    def end(self) -> None:
        raise KilledError


class KilledError(Exception):
    """The process is killed here."""


def task(setup: str, level: int) -> Task:
    return Task(
        kind=Kind.JOB, setup=SETUPS[setup], level=level, model=ModelName.SMALL, batch=256, shares=(64, 64, 64, 64),
        seed=0, data=Path("data"), folder=Path("runs"),
    )  # fmt: skip


def run(setup: str, level: int, worker: int, *, num_steps: int = 1, computes: float = 0.01) -> list[Step]:
    """Steps of 50 samples each of which really takes `computes`, then 0.5 s of waiting for the others."""
    time, file = Time(), io.StringIO()
    pacer = Pacer(task(setup, level), worker, file, Clock(lambda: time.now, lambda: 0.0, time.pass_by, time.end))
    for _ in range(num_steps):
        pacer.begin(50)
        time.pass_by(computes * pacer.work)
        pacer.hold()
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


def test_steps_of_a_noisy_set_up_vary_around_what_they_would_last() -> None:
    paced = [step.paced for step in run("noise", 2, 0, num_steps=200)]
    assert fmean(paced) == pytest.approx(50 / 400, rel=0.01)
    assert pstdev(paced) == pytest.approx(0.05 * 50 / 400, rel=0.2)


def test_a_changed_speed_is_written_down_from_its_first_step_on() -> None:
    found = run("step-change", 2, 0, num_steps=151)
    assert [found[n].factor for n in (49, 50, 149, 150)] == [1, 2, 2, 1]
    assert [found[n].paced for n in (49, 50, 149, 150)] == pytest.approx([0.2, 0.4, 0.4, 0.2])


def test_at_level_3_a_slower_step_is_computed_again() -> None:
    found = run("step-change", 3, 0, num_steps=51, computes=0.1)
    assert [found[n].real for n in (49, 50)] == pytest.approx([0.1, 0.2])


def test_cpu_time_is_told_apart_from_that_of_computing() -> None:
    time, cpu, file = Time(), Time(), io.StringIO()
    pacer = Pacer(task("equal", 2), 0, file, Clock(lambda: time.now, lambda: cpu.now, time.pass_by))
    for _ in range(2):
        cpu.pass_by(0.001)  # fetching the samples
        pacer.begin(50)
        cpu.pass_by(0.010)
        pacer.hold()
        cpu.pass_by(0.004)  # handing the gradient in
        pacer.end()
    for step in read_trace(file.getvalue()):
        assert (step.cpu, step.computing_cpu) == pytest.approx((0.015, 0.010))


def churn(file: io.StringIO, worker: int, num_steps: int) -> None:
    time = Time()
    pacer = Pacer(task("churn", 2), worker, file, Clock(lambda: time.now, lambda: 0.0, time.pass_by, time.end))
    for _ in range(num_steps):
        pacer.begin(50)
        pacer.hold()
        pacer.end()


def test_a_worker_is_killed_once_and_its_trace_says_when_it_is_away() -> None:
    file = io.StringIO()
    with pytest.raises(KilledError):
        churn(file, 3, 31)
    assert [step.factor for step in read_trace(file.getvalue())] == [1] * 30 + [0]
    churn(file, 3, 40)
    assert [step.factor for step in read_trace(file.getvalue())] == [1] * 30 + [0, 0] + [1] * 40


def test_only_the_worker_of_the_set_up_is_killed() -> None:
    file = io.StringIO()
    churn(file, 2, 40)
    assert len(read_trace(file.getvalue())) == 40


def test_a_worker_that_comes_back_waits_for_its_time(tmp_path: Path) -> None:
    told = replace(task("churn", 2), folder=tmp_path)
    told.trace(0).write_text(Step(0, 1, 50, 0.1, 0.2, 1).line() * 58)

    def another_step(_: float) -> None:
        with told.trace(0).open("a") as file:
            file.write(Step(0, 1, 50, 0.1, 0.2, 1).line())

    wait_to_join(told, 3, another_step)
    assert len(told.trace(0).read_text().splitlines()) == 58, "it has not been killed yet: it joins at once"
    told.trace(3).write_text("")
    wait_to_join(told, 3, another_step)
    assert len(told.trace(0).read_text().splitlines()) == 60
