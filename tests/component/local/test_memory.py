"""A real job whose worker cannot hold its batch: it comes back and computes it in parts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.recovery import SAMPLES, SCRIPT, run_job, write_job
from support.zygote import Zygote

pytestmark = pytest.mark.timeout(600)


def test_a_worker_whose_batch_does_not_fit_its_memory_comes_back_and_computes_it_in_parts(
    tmp_path: Path, zygote: Zygote
) -> None:
    step = "        nn.functional.cross_entropy"
    fits = 'len(inputs) <= 3 or os.environ["HETEROTRAIN_NAME"] != "big-0"'
    script = SCRIPT.replace(step, f"        if not ({fits}): raise MemoryError('no room')\n{step}")
    write_job(tmp_path, script=script)
    run = run_job(tmp_path, pause=0.2, timeout=400.0, zygote=zygote)
    assert run.code == 0, run.output
    assert (run.report["samples"], run.report["reason"]) == (3 * SAMPLES, "EpochsCompleted")
    assert re.search(
        r"worker big-0 is lost: out of memory with 5 samples at once, from now on at most 2", run.coordinator_log
    )
    assert "begins its script anew, with less than" in (tmp_path / "out" / "logs" / "big-0.log").read_text()
