"""Speeds over the training time, which evaluations are no part of."""

from __future__ import annotations

from heterotrain_core.run_values import Timings
from heterotrain_core.telemetry import WINDOW, RoundTelemetry, StepRecord, WorkerTelemetry


def test_speeds_leave_evaluations_out() -> None:
    totals = RoundTelemetry()
    totals.evaluation_begins(0.0)
    totals.evaluation_ends(10.0)  # before training: no part of it
    totals.begin(10.0)
    for now in (11.0, 12.0):
        totals.committed(8, now)
    totals.evaluation_begins(12.5)
    totals.committed(8, 13.0)  # done before the evaluation, published in it
    totals.evaluation_ends(20.5)
    totals.committed(8, 21.0)
    # Four rounds of 8 samples in 3 s of training and 8 s of evaluation.
    assert totals.training_seconds(21.0) == 11.0
    assert totals.evaluation_seconds == 8.0
    assert totals.mean_speed(21.0) == totals.recent_speed() == 32 / 3
    assert totals.round_seconds() == 0.75


def test_an_evaluation_after_the_last_round_is_no_part_of_the_training() -> None:
    totals = RoundTelemetry()
    totals.begin(0.0)
    totals.committed(8, 2.0)
    totals.end(2.0)
    totals.evaluation_begins(2.0)
    totals.evaluation_ends(7.0)
    assert (totals.training_seconds(9.0), totals.evaluation_seconds, totals.mean_speed(9.0)) == (2.0, 0.0, 4.0)


def test_a_worker_keeps_its_last_iterations_in_order() -> None:
    worker = WorkerTelemetry()
    for i in range(WINDOW + 2):
        worker.add(8, Timings(compute=0.1 * (i + 1)), 5.0 + i, 0.25, refused=False)

    assert [r.sequence for r in worker.recent] == list(range(3, WINDOW + 3))
    assert worker.recent[-1] == StepRecord(WINDOW + 2, 8, Timings(compute=0.1 * (WINDOW + 2)), 6.0 + WINDOW, 0.25)
