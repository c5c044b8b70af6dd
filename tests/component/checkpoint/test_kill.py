"""Real jobs that lose a process at a set place, and jobs in two parts: they end as those that lose nothing.

One that loses a shard is started as users start it; the processes of the others are forked.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from heterotrain.checkpoint.folder import find
from support.recovery import ROUNDS, Run, run_job, write_job
from support.zygote import Zygote

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> Run:
    """The same job without a loss."""
    folder = tmp_path_factory.mktemp("whole")
    write_job(folder)
    run = run_job(folder, zygote=zygote)
    assert run.code == 0, run.output
    return run


def states(folder: Path) -> dict[str, torch.Tensor]:
    """All that the newest checkpoint holds of every tensor, pieces put together."""
    checkpoint = find(folder / "out" / "checkpoints").checkpoint
    assert checkpoint is not None
    assert checkpoint.manifest.progress.version == ROUNDS
    pieces: dict[str, list[torch.Tensor]] = {}
    for file in checkpoint.files:
        for name, tensor in load_file(file).items():
            pieces.setdefault(name, []).append(tensor)
    return {name: parts[0] if parts[0].dim() == 0 else torch.cat(parts) for name, parts in pieces.items()}


def assert_same(run: Run, whole: Run) -> None:
    assert run.code == 0, run.output
    ours, theirs = (load_file(r.folder / "out" / "model.safetensors") for r in (run, whole))
    assert ours.keys() == theirs.keys()
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-6)
    moments, wanted = states(run.folder), states(whole.folder)
    assert moments.keys() == wanted.keys()
    assert all(torch.equal(moments[name], wanted[name]) for name in wanted if "/step/" in name)
    for name in wanted:
        torch.testing.assert_close(moments[name], wanted[name], rtol=0, atol=1e-6)
    assert run.report["accuracy"] == pytest.approx(whole.report["accuracy"], abs=1e-6)


@pytest.mark.parametrize(
    "fault",
    ["ps-1:push:33", "ps-0:commit:33", "ps-0:checkpoint:30", "ps-0:coordinator:33"],
    ids=["a shard at a push", "shard 0 at a commit", "shard 0 at a checkpoint", "the coordinator"],
)
def test_a_lost_process_changes_nothing_but_the_time(tmp_path: Path, fault: str, whole: Run, zygote: Zygote) -> None:
    write_job(tmp_path)
    run = run_job(tmp_path, fault=fault, zygote=None if fault.startswith("ps-1") else zygote)
    assert (tmp_path / "killed").exists(), run.output
    assert_same(run, whole)
    assert run.samples == whole.samples
    report = run.report
    assert (report["restores"], report["rounds"]) == (1, ROUNDS)
    assert 0 <= report["rounds_lost"] <= 24
    assert "it is started again (1 of 3)" in run.output
    assert [e["reason"] for e in report["events"]].count("Restored") == 1


@pytest.mark.parametrize(
    ("fault", "least_version"),
    [
        # It makes a checkpoint of what is decided before it leaves; rounds may go on until that is on the disk.
        pytest.param("ps-0:coordinator:33", 33, id="the coordinator"),
        # The checkpoint of round 30 may not be whole yet.
        pytest.param("ps-1:push:33", 20, id="a shard"),
    ],
)
def test_what_is_told_to_end_leaves_nothing_half_done(
    tmp_path: Path, fault: str, least_version: int, whole: Run, zygote: Zygote
) -> None:
    write_job(tmp_path)
    run = run_job(tmp_path, fault=fault, told=True, pause=0.02, zygote=zygote)
    assert (tmp_path / "killed").exists(), run.output
    assert_same(run, whole)
    assert run.report["restores"] == 1
    assert run.restored_version >= least_version


def test_half_and_half_on_another_number_of_servers_is_the_whole(tmp_path: Path, whole: Run, zygote: Zygote) -> None:
    write_job(tmp_path / "first", stop={"rounds": ROUNDS // 2})
    first = run_job(tmp_path / "first", zygote=zygote)
    write_job(tmp_path / "second", servers=3)
    second = run_job(tmp_path / "second", "--resume", str(tmp_path / "first" / "out" / "checkpoints"), zygote=zygote)
    assert_same(second, whole)
    assert {**first.samples, **second.samples} == whole.samples
    assert len(first.samples) == len(second.samples) == ROUNDS // 2


def test_a_job_that_may_not_go_back_fails_by_name(tmp_path: Path, zygote: Zygote) -> None:
    write_job(tmp_path, runPolicy={"backoffLimit": 0})
    run = run_job(tmp_path, fault="ps-1:commit:13", zygote=zygote)
    assert run.code == 1
    assert "parameter server ps-1 was killed by SIGKILL" in run.output
