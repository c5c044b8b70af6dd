"""Real jobs with BatchNorm whose batches do not come out even: nobody ever computes on one sample, and none is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.recovery import SCRIPT, Run, run_job, write_job
from support.zygote import Zygote

pytestmark = pytest.mark.timeout(300)

SAMPLES, EPOCHS = 161, 3
ODD = SCRIPT.replace("160", str(SAMPLES))


def assert_whole(run: Run) -> None:
    """Every sample of every epoch once, never one alone."""
    assert run.code == 0, run.output
    assert run.report["samples"] == EPOCHS * SAMPLES
    grants = [
        [*map(int, line.split())]
        for log in (run.folder / "out" / "logs").glob("*.samples")
        for line in log.read_text().splitlines()
    ]
    assert min(len(indices) for _, _, *indices in grants) >= 2
    used = sorted((epoch, index) for epoch, _, *indices in grants for index in indices)
    assert used == [(epoch, index) for epoch in range(EPOCHS) for index in range(SAMPLES)]


@pytest.mark.parametrize("mode", ["BSP", "ASP", "Delay"])
def test_a_share_of_one_and_a_rest_of_one_are_never_handed_out(tmp_path: Path, zygote: Zygote, mode: str) -> None:
    workers = [{"name": name, "batch": {"initial": n}} for name, n in (("big", 5), ("middle", 2), ("small", 1))]
    write_job(tmp_path, script=ODD, workers=workers, synchronization={"mode": mode})
    run = run_job(tmp_path, zygote=zygote)
    assert_whole(run)
    assert "plan 2: no share is below 2 samples, which BatchNorm needs at once" in run.coordinator_log


def test_more_workers_than_pairs_of_samples_is_said_and_trained(tmp_path: Path, zygote: Zygote) -> None:
    workers = [{"name": "many", "replicas": 3}]
    write_job(tmp_path, script=ODD.replace("batch_size=8", "batch_size=4"), workers=workers, globalBatchSize=4)
    run = run_job(tmp_path, zygote=zygote)
    assert_whole(run)
    assert "some workers go without in some rounds; take a larger globalBatchSize" in run.coordinator_log
