"""Commits of gradients that were computed on older versions than the one they are applied to."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from heterotrain.ps.values import CommitOrder, GradientName
from heterotrain.transport.base import RefusedError
from heterotrain_core.layout import TensorKind
from heterotrain_core.simulate import simulate
from heterotrain_core.simulate_times import Constant
from heterotrain_core.simulate_values import Close, SimulatedWorker, Simulation
from heterotrain_core.synchronization import BSP, NO_DISCOUNT, Asp, Delay, Ssp, Synchronization
from shard_job import ShardJob, specs_of

F64 = torch.float64


def one(value: float, dtype: torch.dtype = F64) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor([value], dtype=dtype)}


def commit(job: ShardJob, version: int, *contributions: tuple[int, int, float], **fields: Any) -> None:
    """Commit (worker, iteration, weight) on all shards."""
    names = tuple((GradientName(worker, 1, iteration), weight) for worker, iteration, weight in contributions)
    for store in job.stores:
        store.commit(CommitOrder(term=job.term, version=version, contributions=names, **fields))


def stale_job(start: dict[str, torch.Tensor], kinds: dict[str, TensorKind] | None = None) -> ShardJob:
    return ShardJob(specs_of(start, kinds)).start(start)


@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16], ids=str)
def test_a_stale_gradient_is_compensated_for_what_the_parameters_moved(dtype: torch.dtype) -> None:
    # Oracle E-4: g = 2, lambda = 0.5, w = 0.7, w_base = 1 gives 1.4.
    job = stale_job(one(1.0, dtype))
    job.push(1, 0, one(0.3, dtype))
    commit(job, 0, (1, 0, 1.0), retain=frozenset({0}))
    job.push(0, 0, one(2.0, dtype))
    commit(job, 1, (0, 0, 1.0), compensation=0.5)
    assert job.read(2)["w"].item() == pytest.approx(0.7 - 1.4, rel=1e-12 if dtype is F64 else 1e-2)


def test_only_the_stale_ones_of_a_commit_are_compensated_each_by_its_weight_and_base() -> None:
    job = stale_job(one(1.0))
    for version, move in enumerate([0.5, 0.25]):  # versions 0, 1, 2 are 1, 0.5, 0.25
        job.push(2, version, one(move))
        commit(job, version, (2, version, 1.0), retain=frozenset(range(version + 1)))
    for worker, base in enumerate([0, 1, 2]):
        job.push(worker, base, one(2.0))
    commit(job, 2, (0, 0, 0.5), (1, 1, 0.25), (2, 2, 0.25), compensation=0.1)
    want = 2.0 + 0.1 * 4.0 * (0.5 * (0.25 - 1.0) + 0.25 * (0.25 - 0.5))
    assert job.read(3)["w"].item() == pytest.approx(0.25 - want, rel=1e-12)


def test_without_the_version_that_it_was_computed_on_a_gradient_cannot_be_compensated() -> None:
    job = stale_job(one(1.0))
    job.push(1, 0, one(0.3))
    commit(job, 0, (1, 0, 1.0))
    job.push(0, 0, one(2.0))
    with pytest.raises(RefusedError, match=r"iteration 0 of worker 0 .* cannot be compensated: version 0 is not held"):
        commit(job, 1, (0, 0, 1.0), compensation=0.5)
    commit(job, 1, (0, 0, 1.0))
    assert job.read(2)["w"].item() == pytest.approx(0.7 - 2.0, rel=1e-12)


def test_a_counter_never_goes_back_to_what_a_stale_worker_counted() -> None:
    start = {"n": torch.tensor([5], dtype=torch.int64)}
    job = stale_job(start, {"n": TensorKind.INTEGER_BUFFER})
    seen = []
    for version, (worker, base, pushed) in enumerate([(0, 0, 6), (0, 1, 7), (1, 0, 6), (0, 3, 3)]):
        job.push(worker, base, {"n": torch.tensor([pushed])})
        commit(job, version, (worker, base, 1.0))
        seen.append(int(job.read(version + 1)["n"]))
    # The third is stale; the last one is not, so that it may set a pointer back to the beginning.
    assert seen == [6, 7, 7, 3]


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [("SGD", {"lr": 0.02}), ("SGD", {"lr": 0.0012, "momentum": 0.9}), ("AdamW", {"lr": 0.01, "weight_decay": 0.1})],
    ids=["SGD", "SGD with momentum", "AdamW"],
)
@pytest.mark.parametrize(
    "synchronization",
    [Asp(), Ssp(3), Delay(0.0, 3, NO_DISCOUNT), Delay(0.5, 1, NO_DISCOUNT)],
    ids=["ASP", "SSP", "Delay", "Delay with a window"],
)
def test_samples_move_the_parameters_as_under_bsp(
    optimizer: str, options: dict[str, float], synchronization: Synchronization
) -> None:
    # f = w^2 / 2 from w = 1: 50 rounds' samples, a worker at a quarter of the others' speed.
    bsp, moved = (descend(mode, optimizer, options) for mode in (BSP, synchronization))
    assert 0.05 < bsp < 0.7, "the comparison needs a way that is neither too short nor over"
    assert moved == pytest.approx(bsp, rel=0.08)


def descend(synchronization: Synchronization, optimizer: str, options: dict[str, float]) -> float:
    """Where w is at the end, with real commits in the order that the simulator gives."""
    workers = tuple(SimulatedWorker(f"w{i}", Constant(t), share=2) for i, t in enumerate([1.0, 1.0, 1.0, 4.0]))
    simulation = Simulation(
        workers=workers, synchronization=synchronization, dataset_size=400, until_seconds=1e6, keep_log=True
    )
    closings = [entry for entry in simulate(simulation).log if isinstance(entry, Close)]
    assert sum(c.scale for c in closings) == pytest.approx(50.0)
    job = ShardJob(specs_of(one(1.0)), num_workers=4, optimizer=optimizer, groups=[options]).start(one(1.0))
    values = [1.0]
    for close in closings:
        names = [(int(name[1:]), close.version - tau) for name, tau in sorted(close.staleness.items())]
        for worker, base in names:
            job.push(worker, base, one(values[base]))
        weights = [1 / len(names)] * len(names)
        commit(job, close.version, *((w, b, weight) for (w, b), weight in zip(names, weights, strict=True)),
               scale=close.scale)  # fmt: skip
        values.append(job.read(close.version + 1)["w"].item())
    return values[-1]
