"""Every random number of a worker comes from here: the sample order, and the random state of grants and samples.

All of it derives from the job's seed by a stable hash, never from the time or from Python's own `hash`, so that a job
can be repeated bit by bit on any machine, and runs in the same sample order as the script alone.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import SupportsIndex

import torch

from heterotrain_core.types import SampleRange


def stable_seed(*parts: int | str) -> int:
    """A seed of 63 bits that depends on the values of `parts` alone."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def permutation(seed: int, epoch: int, size: int) -> torch.Tensor:
    """The order of an epoch: int64 data set indices, shape (size,); the same alone and on every worker of a job."""
    generator = torch.Generator()
    generator.manual_seed(stable_seed(seed, "order", epoch))
    return torch.randperm(size, generator=generator)


class SampleOrder:
    """Data set indices of the positions that grants name; remembers the permutation of the newest epoch asked for."""

    def __init__(self, seed: int, size: int) -> None:
        self._seed = seed
        self._size = size
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def indices(self, ranges: Iterable[SampleRange]) -> list[int]:
        """Data set indices in the order of `ranges`."""
        result: list[int] = []
        for part in ranges:
            if part.epoch != self._epoch:
                self._order = permutation(self._seed, part.epoch, self._size)
                self._epoch = part.epoch
            result += self._order[part.start : part.stop].tolist()
        return result


def seed_everything(seed: int) -> None:
    """Set the state of Python's, NumPy's (if the script uses it) and PyTorch's generators, on CPU and CUDA."""
    seed_host(seed)
    # Before CUDA is in use, `torch.cuda.manual_seed_all` would only queue one more call, every round.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


def seed_host(seed: int) -> None:
    """As `seed_everything`, without CUDA: cheap enough for every sample (about 15 microseconds)."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


@contextmanager
def host_state_kept() -> Iterator[None]:
    """Afterwards the random state that `seed_host` sets is as it was."""
    numpy = sys.modules.get("numpy")
    drawn, plain = torch.default_generator.get_state(), random.getstate()
    arrays = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        torch.default_generator.set_state(drawn)
        random.setstate(plain)
        if numpy is not None and arrays is not None:
            numpy.random.set_state(arrays)


class SeededIndices(list[int]):
    """The indices of a batch; *iterating* over them sets the random state of each sample from (seed, epoch, index).

    A data set's random augmentation thus depends on the sample and the epoch alone: not on who computes it, in which
    batch, in which loader process, or whether it was prefetched. The loader's fetch loop iterates in the process that
    makes the samples, which is why this is a list and no wrapper around the data set.
    """

    def __init__(self, indices: Iterable[int], seed: int, epoch: int) -> None:
        super().__init__(indices)
        self._seed = seed
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        for index in super().__iter__():
            seed_host(stable_seed(self._seed, "sample", self._epoch, index))
            yield index

    # Pickling a list iterates over it, which would set the random state of the training process, in the loader's
    # feeder thread, at any time.
    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[type[SeededIndices], tuple[tuple[int, ...], int, int]]:
        return type(self), (tuple(super().__iter__()), self._seed, self._epoch)
