from __future__ import annotations

import json
from dataclasses import replace

import pytest

from heterotrain_operator.job.outcome import Outcome, State
from heterotrain_operator.local.cause import Cause
from heterotrain_operator.local.report import Record, balance_speed_up, build, markdown, summary_lines
from heterotrain_operator.local.watch import HistoryPoint
from heterotrain_rpc import control_pb2


def make_state() -> control_pb2.JobState:
    worker = control_pb2.WorkerState(
        name="cpu-0", group="cpu", share_wanted=6, share_applied=5, rounds=9, samples=45, samples_per_second=40.0,
        step_seconds=0.5, compute_seconds=0.25, push_seconds=0.0625, pull_seconds=0.125, data_seconds=0.0625,
        device="CPU",
    )  # fmt: skip
    other = control_pb2.WorkerState(name="cpu-1", group="cpu", share_wanted=3, samples=27, samples_per_second=20.0)
    return control_pb2.JobState(
        epochs=3, version=9, samples=72, global_batch_size=8, shards=2, training_seconds=4.0, evaluation_seconds=0.5,
        restores=1, rounds_lost=4,
        samples_per_second=30.0,
        mean_samples_per_second=18.0, ideal_samples_per_second=60.0, pushed_bytes_per_sample=2048.0,
        pulled_bytes_per_sample=1024.0, workers=[worker, other], reported={"loss": 0.5},
        plan=control_pb2.PlanState(
            generation=2, effective_round=4, reason="by hand",
            shares=[control_pb2.PlanShare(worker="cpu-0", samples=6), control_pb2.PlanShare(worker="cpu-1", samples=2)],
        ),
        events=[control_pb2.Event(sequence=1, seconds=0.5, reason="PlanApplied", message="plan 2 | in force")],
    )  # fmt: skip


POINT = HistoryPoint(
    seconds=1.0,
    round=3,
    epoch=0,
    samples=24,
    samples_per_second=24.0,
    ideal_samples_per_second=60.0,
    shares={"cpu-0": 5, "cpu-1": 3},
    reported={},
)
RECORD = Record(
    job="tiny",
    uid="u1",
    state=State.SUCCEEDED,
    cause=Cause(reason="Completed", message="all epochs"),
    wall_seconds=6.0,
    outcome=Outcome(state=State.SUCCEEDED, rounds=10, samples=80, reported={"accuracy": 0.875, "state": 1.0}),
    last=make_state(),
    training=make_state(),
    history=[POINT],
    stretches={"cpu-0": 2.0},
)


def test_report_of_a_job_that_succeeded() -> None:
    report = build(RECORD)
    assert report.pop("history") == [
        {
            "seconds": 1.0,
            "round": 3,
            "epoch": 0,
            "samples": 24,
            "samples_per_second": 24.0,
            "ideal_samples_per_second": 60.0,
            "shares": {"cpu-0": 5, "cpu-1": 3},
            "reported": {},
        }
    ]
    first, second = report.pop("workers")
    assert first == {
        "name": "cpu-0",
        "group": "cpu",
        "share": 6,
        "last_grant_samples": 5,
        "samples_per_second": 40.0,
        "samples": 45,
        "rounds": 9,
        "refused": 0,
        "step_seconds": 0.5,
        "compute_seconds": 0.25,
        "push_seconds": 0.0625,
        "pull_seconds": 0.125,
        "data_seconds": 0.0625,
        "wait_seconds": 0.125,
        "device": "CPU",
        "stretch": 2.0,
        "error": "",
    }
    assert (second["name"], second["share"], second["stretch"]) == ("cpu-1", 3, None)
    assert report == {
        "job": "tiny",
        "uid": "u1",
        "state": "Succeeded",
        "reason": "Completed",
        "message": "all epochs",
        "process": "",
        "rounds": 10,
        "samples": 80,
        "epochs": 3,
        "global_batch_size": 8,
        "parameter_servers": 2,
        "training_seconds": 4.0,
        "evaluation_seconds": 0.5,
        "restores": 1,
        "rounds_lost": 4,
        "wall_seconds": 6.0,
        "samples_per_second": 18.0,
        "recent_samples_per_second": 30.0,
        "ideal_samples_per_second": 60.0,
        "bytes_per_sample": {"pushed": 2048.0, "pulled": 1024.0},
        "efficiency": 0.3,
        "s_balance": 1.5,
        "accuracy": 0.875,
        "reported": {"accuracy": 0.875, "state": 1.0},
        "plan": {
            "generation": 2,
            "effective_round": 4,
            "reason": "by hand",
            "derived": False,
            "shares": {"cpu-0": 6, "cpu-1": 2},
        },
        "adaptation": [],
        "synchronization": {
            "mode": "",
            "mode_wanted": "",
            "staleness_bound": None,
            "staleness_bound_wanted": None,
            "gradients": 0,
            "largest_staleness": 0,
            "staleness_histogram": {},
        },
        "events": [{"seconds": 0.5, "warning": False, "reason": "PlanApplied", "message": "plan 2 | in force"}],
    }


def test_report_of_a_job_that_failed_before_anything_was_known() -> None:
    cause = Cause(reason="WorkerFailed", message="worker cpu-0 exited with code 1", process="cpu-0")
    report = build(Record(job="tiny", uid="u", state=State.FAILED, cause=cause, wall_seconds=1.0))
    assert (report["state"], report["process"], report["rounds"], report["workers"]) == ("Failed", "cpu-0", 0, [])
    assert (report["efficiency"], report["s_balance"]) == (None, None)
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_values_of_the_last_state_stand_in_for_those_of_a_missing_outcome() -> None:
    report = build(
        Record(
            job="t", uid="u", state=State.FAILED, cause=Cause(reason="", message=""), wall_seconds=1, last=make_state()
        )
    )
    assert (report["rounds"], report["samples"], report["loss"]) == (9, 72, 0.5)


@pytest.mark.parametrize(
    ("speeds", "want"),
    [
        ((4, 3, 2, 1), 2.5),
        ((1, 1, 1, 0.25), 3.25),
        ((12, 12, 8, 16), 1.5),
        ((9, 9, 6, 24), 2.0),
        ((6, 6, 4, 32), 3.0),
        ((8, 1), 4.5),
        ((5,), 1.0),
        ((), None),
        ((3, 0), None),
    ],
)
def test_balance_speed_up_as_in_the_table_of_the_algorithms(speeds: tuple[float, ...], want: float | None) -> None:
    assert balance_speed_up(speeds) == want


def test_a_value_that_is_not_finite_is_null_in_the_report() -> None:
    outcome = Outcome(state=State.SUCCEEDED, reported={"loss": float("nan"), "best": float("inf"), "accuracy": 0.5})
    report = build(replace(RECORD, outcome=outcome))
    assert (report["loss"], report["reported"]) == (None, {"loss": None, "best": None, "accuracy": 0.5})
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert "loss: not finite" in summary_lines(report)


def test_summary() -> None:
    assert summary_lines(build(RECORD)) == [
        "10 rounds, 80 samples in 4.0 s of training",
        "went back to a checkpoint once: 4 rounds were trained again",
        "reached 18 of 60 samples/s (30.0% of ideal; balance alone can give 1.50 times equal shares)",
        "cpu-0: share 6, 40 samples/s",
        "cpu-1: share 3, 20 samples/s",
        "accuracy: 0.875",
        "state: 1",
    ]


def test_the_ideal_is_that_of_the_training_not_of_its_end_when_workers_have_left() -> None:
    over = make_state()
    over.ideal_samples_per_second = 0.0
    assert build(replace(RECORD, last=over))["ideal_samples_per_second"] == 60.0
    training = make_state()
    training.ideal_samples_per_second = 59.0
    assert build(replace(RECORD, last=over, training=training))["ideal_samples_per_second"] == 59.0
    assert build(replace(RECORD, last=over, training=None))["ideal_samples_per_second"] == 60.0


def test_markdown_says_why_there_are_no_plots() -> None:
    report = build(RECORD)
    assert "## Plots\n\nNone: they need a package\n" in markdown(report, [], without="None: they need a package")
    assert "## Plots" not in markdown(report, [])


def test_markdown_has_the_figures_the_workers_and_the_events() -> None:
    text = markdown(build(RECORD), ["shares.png"])
    assert text.startswith("# tiny: Succeeded\n\nCompleted: all epochs\n")
    assert "| efficiency | 30.0% |" in text
    assert "| sent and received per sample | 2.0 and 1.0 KiB |" in text
    assert "| cpu-0 | cpu | 6 | 40.0 | 45 | 250.0 | 125.0 | 500.0 | CPU |" in text
    assert "![shares](shares.png)" in text
    assert "| 0.5 | PlanApplied | plan 2 \\| in force |" in text
