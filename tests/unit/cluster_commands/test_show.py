from __future__ import annotations

import pytest

from heterotrain_api.status import SynchronizationStatus, WorkerRow
from heterotrain_operator.cluster.show import (
    headline,
    job_document,
    plan_line,
    share_text,
    status_of,
    synchronization_lines,
)


def test_a_job_that_the_operator_has_not_seen_is_pending() -> None:
    job = {"metadata": {"name": "fashion", "namespace": "one", "uid": "u-1"}}
    status = status_of(job)
    assert (headline(status), plan_line(status)) == ("Pending", "no plan yet")
    assert job_document(job) == {
        "name": "fashion", "where": "namespace one", "namespace": "one", "uid": "u-1", "state": "Pending", "step": "",
    }  # fmt: skip


def test_key_figures_are_on_one_line() -> None:
    status = status_of(
        {
            "status": {
                "state": "Training",
                "progress": {"epoch": 0, "epochs": 2, "step": "120/354"},
                "efficiency": {"samplesPerSecond": 1200, "idealSamplesPerSecond": 1500, "percentOfIdeal": 80},
                "plan": {"generation": 2, "effectiveRound": 9, "reason": "a try"},
                "reported": [{"name": "loss", "value": "0.5"}],
            }
        }
    )
    assert headline(status) == "Training, round 120/354, epoch 1/2, 1,200 samples/s, 80% of ideal, loss 0.5"
    assert plan_line(status) == "plan 2, in force from round 9: a try"


@pytest.mark.parametrize(
    ("share", "applied", "want"),
    [(9, 9, "9"), (9, 0, "9"), (9, 21, "21→9")],
    ids=["in force", "nothing trained yet", "agreed and not in force"],
)
def test_both_shares_are_shown_until_the_new_one_is_in_force(share: int, applied: int, want: str) -> None:
    assert share_text(WorkerRow(name="cpu-0", share=share, applied_share=applied)) == want


@pytest.mark.parametrize(
    ("status", "want"),
    [
        (SynchronizationStatus(), ["the coordinator has not said how the workers wait for each other"]),
        (
            SynchronizationStatus(
                mode="SSP", wanted="SSP, at most 1 iterations ahead", staleness_bound=4,
                largest_staleness=2, mean_staleness_milli=250,
            ),
            [
                "SSP, at most 1 iterations ahead",
                "bound in force: 4; gradients were at most 2 versions stale, 0.25 on average",
            ],
        ),
        (
            SynchronizationStatus(mode="Delay", wanted="ASP"),
            [
                "ASP",
                "still Delay, until everything granted before is committed",
                "bound in force: none; gradients were at most 0 versions stale, 0 on average",
            ],
        ),
    ],
    ids=["nothing known", "a bound to come", "a mode to come"],
)  # fmt: skip
def test_how_workers_wait_is_shown_with_what_is_not_in_force_yet(
    status: SynchronizationStatus, want: list[str]
) -> None:
    assert synchronization_lines(status) == want
