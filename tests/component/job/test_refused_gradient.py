"""A gradient that one shard refuses is discarded by all: it counts for nothing, its samples count as used."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from heterotrain_api.contract import Env
from heterotrain_core.run_values import RunReason
from heterotrain_rpc.control_pb2 import PHASE_SUCCEEDED, JobState, WatchRequest
from support.real_job import SECONDS, JobResult, RealJob
from support.watching import Rounds, control, read_sample_logs
from support.zygote import Zygote

pytestmark = pytest.mark.timeout(240)

SCRIPT = Path(__file__).parents[2] / "support" / "scripts" / "train_not_finite.py"
SHARES = {"a-0": 5, "b-0": 2, "c-0": 1}
ROUNDS = 10
"""Of an epoch: nine whole ones and one of 3 samples."""
ROUND = 6


def run(zygote: Zygote, folder: Path, place: str, faulty: Sequence[str]) -> tuple[JobResult, JobState, dict[str, Path]]:
    """A job of three shards, its last state, and its sample logs."""
    logs = {name: folder / f"{name}.samples" for name in SHARES}
    with RealJob(zygote, folder / "job", SHARES, num_shards=3) as job, control(job.address) as stub:
        states = stub.Watch(WatchRequest(), timeout=SECONDS)
        for name in SHARES:
            own = {"PLACE": place, "FAULTY": ",".join(faulty), "ROUND": str(ROUND), Env.SAMPLE_LOG: str(logs[name])}
            job.start_worker(name, SCRIPT, own)
        *_, last = states
        return job.finish(), last, logs


def train_plainly(rounds: Rounds, faulty: Sequence[str]) -> dict[str, torch.Tensor]:
    """Plain PyTorch on the samples of each round, without those of `faulty` in round `ROUND`.

    The mean is over what is left; the step is as much shorter as samples are missing: the denominator is kept.
    """
    script: dict[str, Any] = runpy.run_path(str(SCRIPT))
    model, (inputs, targets), options = script["make_model"](), script["make_data"]().tensors, script["OPTIONS"]
    optimizer = torch.optim.SGD(model.parameters(), **options)
    for number, by_name in sorted(rounds.items()):
        kept = [i for name, indices in by_name.items() if number != ROUND or name not in faulty for i in indices]
        if not kept:
            continue
        loss = nn.functional.cross_entropy(model(inputs[kept]), targets[kept], reduction="sum") / len(kept)
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = options["lr"] * len(kept) / sum(map(len, by_name.values()))
        optimizer.step()
    return {name: value.detach() for name, value in model.state_dict().items()}


@pytest.mark.parametrize(
    ("place", "shard", "faulty"),
    [
        ("0.weight:0", "ps-0", ["a-0"]),
        ("0.weight:80", "ps-1", ["b-0"]),
        ("2.weight:40", "ps-2", ["a-0", "b-0", "c-0"]),
    ],
    ids=["the first shard refuses one", "the middle shard refuses one", "the last shard refuses those of all workers"],
)
def test_what_one_shard_refuses_all_discard(
    zygote: Zygote, tmp_path: Path, place: str, shard: str, faulty: list[str]
) -> None:
    result, state, logs = run(zygote, tmp_path, place, faulty)
    assert result.codes == dict.fromkeys(SHARES, 0), result.errors
    assert (state.phase, state.version, state.samples) == (PHASE_SUCCEEDED, 2 * ROUNDS, 2 * 75)
    assert {w.name: w.refused for w in state.workers} == {name: int(name in faulty) for name in SHARES}
    messages = sorted(e.message for e in state.events if e.reason == RunReason.GRADIENT_NOT_FINITE)
    parameter = place.partition(":")[0]
    assert messages == [
        f"gradient of worker {name} in round {ROUND} is discarded: {shard}: {parameter}" for name in faulty
    ]
    rounds, seen = read_sample_logs(logs)
    assert seen == [(epoch, index) for epoch in range(2) for index in range(75)]
    trained, want = load_file(result.model), train_plainly(rounds, faulty)
    assert trained.keys() == want.keys()
    for name, value in want.items():
        assert ((trained[name] - value).norm() / value.norm()).item() <= 1e-12, name


def test_the_reference_tells_a_discarded_gradient_from_a_used_one() -> None:
    rounds = {number: {"a-0": [number], "b-0": [number + 20]} for number in range(10)}
    used, discarded = train_plainly(rounds, []), train_plainly(rounds, ["b-0"])
    assert all((used[name] - discarded[name]).norm() > 1e-3 * used[name].norm() for name in used)
