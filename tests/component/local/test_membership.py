"""Real jobs that lose a worker at a set place, or whose workers come and go: they reach their end, with all samples.

The faults are those of ``bench/recovery.py``, which plays each of them many times. Where a lease runs out, all
processes are started as users start them; in the other tests they are forked.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.local_jobs import heterotrain
from support.recovery import SAMPLES, SCRIPT, Run, run_job, start_job, write_job
from support.zygote import Zygote

pytestmark = pytest.mark.timeout(600)

EPOCHS = 3
LEASE = {"leaseSeconds": 5}


def assert_whole(run: Run) -> None:
    """All samples of all epochs were committed; the cursor lets none be committed twice."""
    assert run.code == 0, run.output
    assert run.report["samples"] == EPOCHS * SAMPLES
    assert run.report["reason"] == "EpochsCompleted"


@pytest.mark.parametrize("place", ["pull", "compute", "done"])
def test_a_job_goes_on_without_a_worker_that_is_killed(tmp_path: Path, zygote: Zygote, place: str) -> None:
    write_job(tmp_path)
    run = run_job(tmp_path, fault=f"small-0:worker-{place}:12", pause=0.05, zygote=zygote)
    assert_whole(run)
    assert "worker small-0 is lost: its connection ended without a goodbye" in run.coordinator_log
    assert "small-0 is out; its share goes to the others in proportion" in run.coordinator_log


def test_a_worker_that_is_killed_at_a_push_is_started_again_and_trains_on(tmp_path: Path, zygote: Zygote) -> None:
    write_job(tmp_path)
    run = run_job(tmp_path, fault="small-0:worker-push:12", pause=0.3, zygote=zygote)
    assert_whole(run)
    assert "it is started again (1 of 3)" in run.output
    assert "worker small-0 has joined again" in run.coordinator_log


def test_a_worker_that_dies_while_it_gives_the_initial_values_comes_back_and_gives_them(
    tmp_path: Path, zygote: Zygote
) -> None:
    write_job(tmp_path, workers=[{"name": "small"}])
    run = run_job(tmp_path, fault="small-0:worker-push:-1", zygote=zygote)
    assert_whole(run)
    assert "worker small-0 has joined again" in run.coordinator_log
    assert run.report["restores"] == 0


def test_a_worker_that_stands_still_is_lost_with_its_lease_and_its_ghost_begins_anew(tmp_path: Path) -> None:
    write_job(tmp_path, synchronization=LEASE)
    run = run_job(tmp_path, fault="small-0:worker-push:12", stopped_seconds=9.0, pause=0.3)
    assert_whole(run)
    assert "worker small-0 is lost: silent for 5 s" in run.coordinator_log
    assert "small-0 begins its script anew" in (tmp_path / "out" / "logs" / "small-0.log").read_text()


def test_a_worker_that_is_cut_off_is_lost_with_its_lease(tmp_path: Path) -> None:
    write_job(tmp_path, synchronization=LEASE)
    run = run_job(tmp_path, fault="small-0:worker-cut:12", pause=0.1)
    assert_whole(run)
    assert "worker small-0 is lost: silent for 5 s" in run.coordinator_log


def test_a_worker_that_is_told_to_end_leaves_with_0_and_the_job_goes_on(tmp_path: Path, zygote: Zygote) -> None:
    write_job(tmp_path)
    run = run_job(tmp_path, fault="small-0:worker-compute:12", told=True, zygote=zygote)
    assert_whole(run)
    assert "worker small-0 has finished" in run.coordinator_log
    assert "WorkerLost" not in run.coordinator_log
    samples = {iteration: len(indices) for iteration, (_, indices) in run.samples.items()}
    assert samples[12] == 8, "what it computed is in"


def test_a_script_that_ends_with_a_code_fails_the_job_as_ever(tmp_path: Path, zygote: Zygote) -> None:
    script = SCRIPT.replace("    for inputs, labels in loader:", "    os._exit(7)\n    for inputs, labels in loader:")
    write_job(tmp_path, script=script, workers=[{"name": "big"}])
    run = run_job(tmp_path, zygote=zygote)
    assert (run.code, run.report["reason"]) == (1, "WorkerFailed")
    assert "worker big-0 exited with code 7" in run.output


def test_a_group_is_scaled_up_and_down_while_the_job_trains(tmp_path: Path, zygote: Zygote) -> None:
    write_job(tmp_path)
    with start_job(tmp_path, pause=3.0, zygote=zygote) as job:
        job.wait_for("Started")
        assert heterotrain(tmp_path, "scale", "recovering", "small=3", real=True)[0] == 0
        job.wait_for("takes part with a share", times=2)
        refused = heterotrain(tmp_path, "scale", "recovering", "medium=2", real=True)
        assert refused == (1, "refused: unknown group `medium`; the job's groups are big, small\n")
        assert heterotrain(tmp_path, "scale", "recovering", "small=1", real=True)[0] == 0
        job.hurry()
        run = job.finish()
    assert_whole(run)
    assert "worker small-1 is started" in run.output
    assert "worker small-1 is drained" in run.coordinator_log
    assert "worker small-2 is drained" in run.coordinator_log
