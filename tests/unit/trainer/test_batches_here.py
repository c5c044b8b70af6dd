"""Without loader processes a batch is what PyTorch's `DataLoader` makes of the same indices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from heterotrain.loader import BatchesHere

INDICES = [[3, 1], [0], [2, 4, 1]]


class Pairs(Dataset[dict[str, Any]]):
    """One sample at a time, of several kinds of values."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((2,), float(index)), "y": index, "name": f"sample {index}"}


class AtOnce(Pairs):
    """A whole batch at once."""

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        return [self[index] for index in indices[::-1]]


class NotAtOnce(Pairs):
    """It says that it cannot, as some wrappers do."""

    __getitems__ = None


class Falsy:
    """A collate function that is false."""

    def __call__(self, samples: list[Any]) -> list[Any]:
        return samples

    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize(
    "dataset",
    [
        Pairs(),
        AtOnce(),
        NotAtOnce(),
        Subset(AtOnce(), [4, 3, 2, 1, 0]),
        TensorDataset(torch.arange(10.0).view(5, 2), torch.arange(5)),
    ],
    ids=lambda dataset: type(dataset).__name__,
)
@pytest.mark.parametrize("collate", [default_collate, len, Falsy()], ids=["default", "own", "false"])
def test_batches_are_those_of_a_data_loader(dataset: Any, collate: Callable[[list[Any]], Any]) -> None:
    theirs = list(DataLoader(dataset, batch_sampler=INDICES, collate_fn=collate))
    assert repr(list(BatchesHere(dataset, iter(INDICES), collate))) == repr(theirs)


def test_it_goes_on_when_there_are_indices_again() -> None:
    given = iter([[1], None, [2]])

    class Sampler:
        def __iter__(self) -> Iterator[list[int]]:
            return self

        def __next__(self) -> list[int]:
            indices = next(given)
            if indices is None:
                raise StopIteration
            return indices

    batches = BatchesHere(Pairs(), Sampler(), len)
    assert [list(batches), list(batches)] == [[1], [1]]
