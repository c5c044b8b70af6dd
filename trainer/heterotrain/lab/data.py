"""Fashion-MNIST for the lab, as bytes in memory: a batch is one indexing, the same for every way to train."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import Dataset

MEAN: Final = 0.2860
DEVIATION: Final = 0.3530
"""Of the training set's pixels, as fractions of white."""
Batch = tuple[torch.Tensor, torch.Tensor]
"""Images (n, 1, 28, 28), normalised float32, and labels (n), int64."""


class Images(Dataset[Batch]):
    """One part of the data set, ``train`` or ``t10k``."""

    def __init__(self, folder: Path, part: str) -> None:
        images = np.frombuffer(_read(folder / f"{part}-images-idx3-ubyte.gz"), np.uint8, offset=16)
        labels = np.frombuffer(_read(folder / f"{part}-labels-idx1-ubyte.gz"), np.uint8, offset=8)
        self._images = torch.from_numpy(images.copy()).view(-1, 1, 28, 28)
        self._labels = torch.from_numpy(labels.astype(np.int64))

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Batch:
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """A whole batch at once; `torch.utils.data` asks for it where it is there."""
        # A plain list: iterating over a job's indices sets the random state for each sample, and none is drawn here.
        chosen = torch.tensor(list(indices) if isinstance(indices, range) else indices[:])
        return (self._images[chosen].float() / 255 - MEAN) / DEVIATION, self._labels[chosen]


def as_it_is(batch: Any) -> Any:
    """For `collate_fn`: the data set has made a batch already."""
    return batch


def _read(path: Path) -> bytearray:
    with gzip.open(path) as file:
        return bytearray(file.read())
