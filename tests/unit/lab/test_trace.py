from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_core.lab.setups import SETUPS
from heterotrain_core.lab.task import Kind, ModelName, Task
from heterotrain_core.lab.trace import Step, Window, absent, capability, common_begin, read_trace, samples_within


def steps(*ends: float, begin: float = 0.0, samples: int = 10, factors: tuple[int, ...] = ()) -> tuple[Step, ...]:
    """Steps one after the other, each 0.1 s shorter than from end to end (its samples are fetched meanwhile)."""
    since, made = begin, []
    for index, end in enumerate(ends):
        fetched = since if index == 0 else since + 0.1
        made.append(Step(fetched, end, samples, 0.0, 0.0, factors[index] if factors else 1))
        since = end
    return tuple(made)


def test_a_trace_is_read_as_it_was_written() -> None:
    trace = steps(1.0, 2.5, 4.0, factors=(1, 2, 1))
    assert read_trace("".join(step.line() for step in trace)) == trace


def test_a_worker_that_was_away_has_no_samples_and_no_capability_for_that_time() -> None:
    back = tuple(replace(step, begin=step.begin + 4, end=step.end + 4) for step in steps(1.0, 2.0))
    trace = (*steps(1.0, 2.0), absent(2.0), absent(4.0), *back)
    assert samples_within(trace, Window(0, 6)) == pytest.approx(40)
    assert samples_within(trace, Window(2, 4)) == 0
    assert capability(trace, Window(0, 6)) == pytest.approx(4 / 6)
    assert capability(trace, Window(2, 4)) == 0


def test_a_line_that_is_still_being_written_is_left_out() -> None:
    trace = steps(1.0, 2.0)
    assert read_trace((trace[0].line() + trace[1].line())[:-3]) == trace[:1]


@pytest.mark.parametrize(
    ("window", "want"),
    [
        pytest.param(Window(0, 4), 40.0, id="all of it"),
        pytest.param(Window(1, 3), 20.0, id="whole steps"),
        pytest.param(Window(0.5, 1.25), 7.5, id="parts of two steps"),
        pytest.param(Window(4, 9), 0.0, id="after the last"),
        pytest.param(Window(3.5, 9), 5.0, id="over the end"),
    ],
)
def test_a_step_counts_with_the_part_of_its_time_that_is_in_the_window(window: Window, want: float) -> None:
    assert samples_within(steps(1.0, 2.0, 3.0, 4.0), window) == pytest.approx(want)


@given(
    lengths=st.lists(st.floats(0.2, 5), min_size=1, max_size=20),
    cut=st.floats(0, 1),
)
def test_two_windows_side_by_side_hold_what_both_hold_together(lengths: list[float], cut: float) -> None:
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    trace, middle = steps(*ends), cut * ends[-1]
    parts = samples_within(trace, Window(0, middle)) + samples_within(trace, Window(middle, ends[-1]))
    assert parts == pytest.approx(samples_within(trace, Window(0, ends[-1])))
    assert parts == pytest.approx(10 * len(lengths))


@pytest.mark.parametrize(
    ("factors", "window", "want"),
    [
        pytest.param((1, 1, 1), Window(0, 3), 1.0, id="never slowed down"),
        pytest.param((2, 2, 2), Window(0, 9), 0.5, id="slow throughout, and beyond its last step"),
        pytest.param((1, 2, 1), Window(0, 3), (1.1 + 0.5 + 0.9) / 3, id="slow from its second step to its third"),
        pytest.param((1, 2, 1), Window(1.2, 2.0), 0.5, id="a window within the slow time"),
    ],
)
def test_the_capability_is_weighted_by_time(factors: tuple[int, ...], window: Window, want: float) -> None:
    assert capability(steps(1.0, 2.0, 3.0, factors=factors), window) == pytest.approx(want)


def test_a_run_begins_when_all_workers_have_begun() -> None:
    assert common_begin([steps(1.0), steps(2.0, begin=0.7)]) == 0.7
    with pytest.raises(ValueError, match="no step"):
        common_begin([steps(1.0), ()])


def test_a_task_comes_through_its_file_unchanged() -> None:
    task = Task(
        kind=Kind.DDP, setup=SETUPS["ladder"], level=3, model=ModelName.LARGE, batch=256, shares=(100, 80, 50, 26),
        seed=4, data=Path("/data"), folder=Path("/runs/x"), groups=(Path("/cg/0/cgroup.procs"),), snapshot_seconds=2.5,
    )  # fmt: skip
    assert Task.from_json(task.to_json()) == task
    assert task.trace(2) == Path("/runs/x/trace-2.txt")
