"""With loader processes a session sees the same batches, and the same augmentations, as without."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, Subset

from training import make_model, make_session

Batch = tuple[list[int], list[float]]


class Augmented(Dataset[Any]):
    """Samples with random noise, as from random crops."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.rand(())


def batches(dataset: Dataset[Any], num_workers: int, micro_batch: int | None) -> list[Batch]:
    session = make_session(micro_batch=micro_batch)
    _, optimizer, loader = session.prepare(make_model(), torch.optim.SGD, dataset, lr=0.1, num_workers=num_workers)
    seen = []
    for _ in session.epochs(2):
        for indices, noise in loader:
            seen.append((indices.tolist(), noise.tolist()))
            optimizer.step()
    return seen


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_the_same_batches_with_two_processes_as_with_none(micro_batch: int | None) -> None:
    want = batches(Augmented(), 0, micro_batch)
    assert len(want) == 2 * (4 if micro_batch is None else 3 * 3 + 2)
    assert batches(Augmented(), 2, micro_batch) == want


def test_a_sample_is_augmented_alike_in_any_batch() -> None:
    whole = {
        (n >= 4, i): x
        for n, (ids, xs) in enumerate(batches(Augmented(), 0, None))
        for i, x in zip(ids, xs, strict=True)
    }
    cut = {
        (n >= 11, i): x for n, (ids, xs) in enumerate(batches(Augmented(), 0, 3)) for i, x in zip(ids, xs, strict=True)
    }
    assert len(whole) == 60
    assert cut == whole


def test_a_subset_of_augmented_samples_is_seeded_too() -> None:
    subset = Subset(Augmented(), range(10, 30))
    assert batches(subset, 2, None) == batches(subset, 0, None)


class OfAnotherProcess:
    """Garbage whose finalizer acts on what only the process has that made it: gRPC's waits for a thread."""

    finalized_in: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        OfAnotherProcess.finalized_in += (os.getpid(),)


class Collecting(Dataset[Any]):
    """Samples in whose making a garbage collection happens, as it may at any time."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[int, int]:
        gc.collect()
        return index, len(OfAnotherProcess.finalized_in)


def test_a_loader_process_never_finalizes_garbage_that_it_inherited() -> None:
    gc.collect()
    gc.disable()
    try:
        OfAnotherProcess()
        session = make_session(micro_batch=None)
        _, _, loader = session.prepare(make_model(), torch.optim.SGD, Collecting(), lr=0.1, num_workers=1)
        epochs = session.epochs(1)
        next(epochs)
        _, finalized = next(iter(loader))
    finally:
        gc.enable()
    assert finalized.unique().tolist() == [0]
