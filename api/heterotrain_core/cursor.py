"""The data cursor: which samples of an epoch are free, held by a worker, or used. The coordinator owns it.

Positions are places in the permutation of one epoch (design §3), never dataset indices: who holds the permutation maps
them. A sample is free, then held (`take`), then committed, or free again (`give_back`) if its worker was lost. So each
sample of an epoch is committed exactly once, and a loader may end as soon as `is_epoch_over`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from heterotrain_core.intervals import Intervals
from heterotrain_core.types import SampleRange


class DataCursor:
    """Hands out the samples of `epochs` epochs, lowest free position first. Implements `types.SampleSource`.

    Because the lowest position goes first, what a lost worker gave back is handed out before anything new.
    Memory follows the number of gaps, not the number of samples.
    """

    def __init__(self, dataset_size: int, epochs: int, *, epoch: int = 0, used: Sequence[tuple[int, int]] = ()) -> None:
        """Begin in `epoch`, of which the positions `used` (see `used`) are committed already.

        Raises `ValueError` if there is no sample or no epoch, or if `epoch` or `used` cannot be.
        """
        if dataset_size < 1:
            raise ValueError(f"dataset_size must be at least 1, not {dataset_size}: the dataset is empty")
        if epochs < 1:
            raise ValueError(f"epochs must be at least 1, not {epochs}")
        self._dataset_size = dataset_size
        self._epochs = epochs
        if not 0 <= epoch < epochs:
            raise ValueError(f"epoch must be 0 to {epochs - 1}, not {epoch}")
        self._epoch = epoch
        self._free = Intervals([(0, dataset_size)])
        for start, stop in used:
            if not (start < stop and self._free.covers(start, stop)):
                raise ValueError(f"used positions [{start}, {stop}) are not inside the epoch, or doubled")
            self._free.remove(start, stop)
        self._held = Intervals([])

    @property
    def dataset_size(self) -> int:
        """Samples of one epoch."""
        return self._dataset_size

    @property
    def epochs(self) -> int:
        """Number of epochs in all."""
        return self._epochs

    @property
    def epoch(self) -> int:
        """Epoch that `take` serves, from 0; the last one stays when it is over."""
        return self._epoch

    @property
    def remaining(self) -> int:
        """Samples of the epoch that nobody holds and no commit has used."""
        return self._free.total

    @property
    def outstanding(self) -> int:
        """Samples of the epoch that were taken and are neither committed nor given back."""
        return self._held.total

    @property
    def committed(self) -> int:
        """Samples of the epoch that commits have used."""
        return self._dataset_size - self._free.total - self._held.total

    @property
    def used(self) -> tuple[tuple[int, int], ...]:
        """Positions of the epoch that commits have used, as sorted half-open intervals."""
        unused = Intervals(self._free.pairs())
        for start, stop in self._held.pairs():
            unused.add(start, stop)
        edges = [0, *(edge for pair in unused.pairs() for edge in pair), self._dataset_size]
        return tuple((a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b)

    @property
    def is_epoch_over(self) -> bool:
        """Whether every sample of the epoch is committed."""
        return self.committed == self._dataset_size

    def take(self, count: int) -> tuple[SampleRange, ...]:
        """Hand out the `count` lowest free samples, as few ranges as possible; raise `ValueError` if fewer are free."""
        if not 0 <= count <= self.remaining:
            raise ValueError(f"cannot take {count} samples of epoch {self._epoch}: {self.remaining} are free")
        taken = self._free.pop_lowest(count)
        for start, stop in taken:
            self._held.add(start, stop)
        return tuple(SampleRange(self._epoch, start, stop) for start, stop in taken)

    def give_back(self, ranges: Sequence[SampleRange]) -> None:
        """Return held samples, to be handed out again; raise `ValueError` (and change nothing) if one is not held."""
        for start, stop in self._release(ranges):
            self._free.add(start, stop)

    def commit(self, ranges: Sequence[SampleRange]) -> None:
        """Mark held samples as used; raise `ValueError` (and change nothing) if one is not held."""
        self._release(ranges)

    def next_epoch(self) -> bool:
        """Start the next epoch. False if the last one is over; `ValueError` if the present one is not over."""
        if not self.is_epoch_over:
            raise ValueError(
                f"epoch {self._epoch} is not over: {self.remaining} samples are free, {self.outstanding} are held"
            )
        if self._epoch + 1 == self._epochs:
            return False
        self._epoch += 1
        self._free.add(0, self._dataset_size)
        return True

    def _release(self, ranges: Sequence[SampleRange]) -> list[tuple[int, int]]:
        """Take `ranges` out of what is held, all or none; returns them as intervals, those that touch joined."""
        merged: list[tuple[int, int]] = []
        previous: SampleRange | None = None
        for r in sorted(ranges, key=_place):
            if r.epoch != self._epoch:
                raise ValueError(f"{_words(r)} is not of the present epoch {self._epoch}")
            if r.start >= r.stop:
                continue
            if previous is not None and r.start < previous.stop:
                raise ValueError(f"{_words(r)} and {_words(previous)} overlap")
            if previous is not None and r.start == previous.stop:
                merged[-1] = (merged[-1][0], r.stop)
            else:
                merged.append((r.start, r.stop))
            previous = r
        for start, stop in merged:
            if not self._held.covers(start, stop):
                words = _words(SampleRange(self._epoch, start, stop))
                raise ValueError(f"{words} is not held: it was never taken, was given back, or is committed")
        for start, stop in merged:
            self._held.remove(start, stop)
        return merged


def merge_ranges(ranges: Iterable[SampleRange]) -> tuple[SampleRange, ...]:
    """Sort ranges and join those that touch or overlap; empty ones vanish."""
    merged: list[SampleRange] = []
    for r in sorted([r for r in ranges if r.stop > r.start], key=_place):
        last = merged[-1] if merged else None
        if last is not None and last.epoch == r.epoch and r.start <= last.stop:
            merged[-1] = SampleRange(r.epoch, last.start, max(last.stop, r.stop))
        else:
            merged.append(r)
    return tuple(merged)


def split_ranges(ranges: Sequence[SampleRange], amounts: Iterable[int]) -> Iterator[tuple[SampleRange, ...]]:
    """Cut `ranges`, in their order, into pieces of `amounts` samples, which they must have in sum at least."""
    rest = iter(ranges)
    epoch = start = stop = 0
    for amount in amounts:
        piece: list[SampleRange] = []
        left = amount
        while left > 0:
            if start == stop:
                following = next(rest)
                epoch, start, stop = following.epoch, following.start, following.stop
            end = min(stop, start + left)
            piece.append(SampleRange(epoch, start, end))
            left -= end - start
            start = end
        yield tuple(piece)


_place = attrgetter("epoch", "start", "stop")
"""Key to sort ranges by: much faster than comparing them."""


def _words(r: SampleRange) -> str:
    return f"range [{r.start}, {r.stop}) of epoch {r.epoch}"
