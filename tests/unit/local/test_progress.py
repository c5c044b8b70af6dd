from __future__ import annotations

import io

import pytest
from rich.console import Console

from heterotrain_operator.local.progress import (
    PLAIN_INTERVAL_SECONDS,
    Style,
    headline,
    make_console,
    make_display,
    share_text,
    worker_table,
)
from heterotrain_operator.local.watch import History, HistoryPoint
from heterotrain_rpc import control_pb2


def make_state(**more: object) -> control_pb2.JobState:
    worker = control_pb2.WorkerState(
        name="cpu-0", phase=control_pb2.WORKER_PHASE_TRAINING, share_wanted=5, share_applied=5, samples=1500,
        samples_per_second=40.0, step_seconds=0.5, compute_seconds=0.25, receive_seconds=0.0625,
        other_seconds=0.0625,
    )  # fmt: skip
    state = control_pb2.JobState(
        phase=control_pb2.PHASE_TRAINING, version=7, rounds_planned=21, epoch=1, epochs=3, samples_per_second=30.0,
        ideal_samples_per_second=40.0, workers=[worker], reported={"accuracy": 0.875},
    )  # fmt: skip
    for name, value in more.items():
        setattr(state, name, value)
    return state


def test_headline() -> None:
    assert headline(make_state()) == "training: round 7/21, epoch 2/3, 30 samples/s, 75% of ideal, accuracy 0.875"


def test_headline_before_training() -> None:
    state = control_pb2.JobState(
        phase=control_pb2.PHASE_WAITING,
        workers=[
            control_pb2.WorkerState(phase=control_pb2.WORKER_PHASE_JOINED),
            control_pb2.WorkerState(phase=control_pb2.WORKER_PHASE_ABSENT),
        ],
    )
    assert headline(state) == "waiting for workers: 1 of 2 have joined"


@pytest.mark.parametrize(
    ("applied", "effective_round", "want"),
    [
        pytest.param(5, 3, "5", id="in force"),
        pytest.param(3, 8, "3→5", id="agreed, in force in a later round: both numbers"),
        pytest.param(0, 8, "5", id="no grant yet"),
        pytest.param(3, 7, "5", id="the smaller grant of an epoch's last round is no other share"),
    ],
)
def test_share_text(applied: int, effective_round: int, want: str) -> None:
    state = make_state()
    state.plan.effective_round = effective_round
    assert share_text(state, control_pb2.WorkerState(share_wanted=5, share_applied=applied)) == want


def test_the_table_has_a_row_for_each_worker() -> None:
    out = io.StringIO()
    Console(file=out, width=100).print(worker_table(make_state()))
    header, row = out.getvalue().splitlines()
    assert header.split() == ["worker", "share", "samples/s", "step", "ms", "wait", "ms", "samples", "state"]
    assert row.split() == ["cpu-0", "5", "40", "500.0", "125.0", "1,500", "training"]


@pytest.mark.parametrize("error", ["KeyError: '[/x]'", "ValueError: [red] is no colour", "E: [bold"])
def test_errors_are_shown_as_they_are(error: str) -> None:
    state = make_state()
    state.workers[0].error = error
    state.workers[0].phase = control_pb2.WORKER_PHASE_LOST
    out = io.StringIO()
    console = make_console(out)
    console.width = 160
    console.print(worker_table(state))
    assert f"lost: {error}" in out.getvalue()


def test_plain_lines_come_every_few_seconds_and_when_something_changes() -> None:
    out = io.StringIO()
    display = make_display(Style.PLAIN, Console(file=out, width=40))
    with display:
        display.show(make_state(), now=100.0)
        display.show(make_state(version=8), now=101.0)
        changed = make_state(version=8)
        changed.reported["accuracy"] = 0.9
        display.show(changed, now=100.5)
        display.show(changed, now=101.5)
        display.show(make_state(version=9, phase=control_pb2.PHASE_FINISHING), now=102.0)
        display.show(make_state(version=9, phase=control_pb2.PHASE_FINISHING), now=103.0)
        display.show(make_state(version=9, phase=control_pb2.PHASE_FINISHING), now=102.0 + PLAIN_INTERVAL_SECONDS)
    lines = out.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "plan 0: cpu-0=5",
        "training: round 7/21",
        "training: round 8/21",
        "finishing: round 9/21",
        "finishing: round 9/21",
    ]


def test_quiet_shows_nothing() -> None:
    out = io.StringIO()
    with make_display(Style.QUIET, Console(file=out)) as display:
        display.say("hello")
        display.show(make_state(), now=0.0)
    assert out.getvalue() == ""


def point(seconds: float, **reported: float) -> HistoryPoint:
    return HistoryPoint(
        seconds=seconds, round=int(seconds * 10), epoch=0, samples=0, samples_per_second=1.0,
        ideal_samples_per_second=1.0, shares={}, reported=reported,
    )  # fmt: skip


def test_history_is_bounded_and_keeps_the_ends() -> None:
    history = History(capacity=10, interval_seconds=1.0)
    for index in range(1000):
        history.add(point(index))
    seconds = [p.seconds for p in history.points]
    assert len(seconds) <= 10
    assert (seconds[0], seconds[-1]) == (0, 999)
    assert seconds == sorted(seconds)


def test_history_keeps_every_reported_value_however_soon_it_comes() -> None:
    history = History(interval_seconds=100.0)
    for index in range(4):
        history.add(point(index))
    history.add(point(4, accuracy=0.5))
    history.add(point(5, accuracy=0.6))
    history.add(point(6, accuracy=0.6))
    assert [(p.seconds, dict(p.reported)) for p in history.points] == [
        (0, {}),
        (3, {}),
        (4, {"accuracy": 0.5}),
        (6, {"accuracy": 0.6}),
    ]
