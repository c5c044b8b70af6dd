"""A real coordinator with shards that keep books and scripted workers, over mutual TLS."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from heterotrain_core.run_values import Outcome, Phase, RunReason
from heterotrain_rpc import shard_pb2
from support.fake_job import running_job, workers_of

FOUR = {"gpu-0": 4, "gpu-1": 2, "cpu-0": 1, "cpu-1": 1}


async def test_a_whole_job_succeeds(tmp_path: Path) -> None:
    async with running_job(tmp_path, FOUR) as job:
        workers = workers_of(job, evaluate=True)
        await asyncio.gather(*(w.run() for w in workers))
        outcome = await job.outcome()
    assert outcome == Outcome(
        Phase.SUCCEEDED, RunReason.EPOCHS_COMPLETED, "all 2 epochs are trained", 6, 40, {"epoch": 1.0},
        "/out/model.safetensors",
    )  # fmt: skip
    assert json.loads(job.termination_log.read_text()) == {
        "state": "Succeeded",
        "reason": "EpochsCompleted",
        "message": "all 2 epochs are trained",
        "rounds": 6,
        "samples": 40,
        "reported": {"epoch": 1.0},
        "model": "/out/model.safetensors",
    }
    for index, shard in enumerate(job.shards):
        kinds = [type(r).__name__ for r in shard.requests]
        exports = ["ExportRequest"] if index == 0 else []
        assert kinds == ["ConfigureRequest", "PublishRequest", *["CommitRequest"] * 6, *exports, "ShutdownRequest"]
        assert shard.requests[0].shard == index
    assert [list(o.sums.items()) for w in workers for o in w.outcomes] == [[("right", 45.0)]] * 8
    assert job.shards[0].commits()[0].contributions[0] == shard_pb2.CommitContribution(
        worker=0, incarnation=1, iteration=0, weight=0.5
    )
