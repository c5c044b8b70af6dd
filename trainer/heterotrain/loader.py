"""The loader: batches are made of the micro-batches of the grants at hand, with processes by PyTorch's `DataLoader`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from heterotrain.engine import Engine
from heterotrain.errors import UsageError
from heterotrain.forks import leave_inherited_alone
from heterotrain.grants import MicroBatch, micro_batches
from heterotrain.randomness import SampleOrder, SeededIndices, host_state_kept, stable_seed
from heterotrain.rounds import Rounds
from heterotrain_core.least import round_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """Options of `torch.utils.data.DataLoader` that a script may choose; meanings and defaults as there."""

    num_workers: int = 0
    collate_fn: Callable[[list[Any]], Any] | None = None
    pin_memory: bool = False
    prefetch_factor: int | None = None
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    timeout: float = 0


class GrantSampler:
    """A batch sampler over the grants at hand. Its iterator *ends* when there is none, and goes on when there is again.

    A `DataLoader` asks for one more batch each time it has received one, so whatever grant has arrived meanwhile is
    fetched ahead, and nothing that was not granted ever is.
    """

    def __init__(self, engine: Engine, order: SampleOrder, *, seeded: bool, least: int) -> None:
        self._engine = engine
        self._order = order
        self._seeded = seeded
        self._least = least
        self._cut: deque[MicroBatch] = deque()
        self.epoch = -1
        self.sent: deque[MicroBatch] = deque()
        """Given to the `DataLoader`, not yet come back."""

    def __iter__(self) -> Iterator[list[int]]:
        return self

    def __next__(self) -> list[int]:
        if not self._cut:
            grant = self._engine.take_unfetched(self.epoch)
            if grant is None:
                raise StopIteration
            self._cut.extend(micro_batches(grant, self._least))
        batch = self._cut.popleft()
        self.sent.append(batch)
        indices = self._order.indices(batch.ranges)
        return SeededIndices(indices, self._engine.seed, batch.ranges[0].epoch) if self._seeded else indices


class BatchesHere:
    """What a `DataLoader` without processes gives, without what it does around each batch.

    That is 0.15 ms of processor time, with caches as a step leaves them; a worker with a tenth of a core waits 1.5 ms.
    """

    def __init__(self, dataset: Any, sampler: Iterator[list[int]], collate: Callable[[list[Any]], Any]) -> None:
        self._dataset = dataset
        self._sampler = sampler
        self._collate = collate

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        indices = next(self._sampler)
        at_once = getattr(self._dataset, "__getitems__", None)
        return self._collate(at_once(indices) if at_once else [self._dataset[index] for index in indices])


class Loader:
    """Yields this worker's batches on the session's device; made by `Session.prepare`.

    Iterate over it inside ``for epoch in session.epochs(n)``, and call ``optimizer.step()`` once for each batch. A
    second loop in the same epoch goes on where the first one stopped.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        engine: Engine,
        rounds: Rounds,
        order: SampleOrder,
        *,
        options: LoaderOptions,
        device: torch.device,
        clock: Callable[[], float],
        least: int = 1,
    ) -> None:
        """`least`: samples that the model needs at once."""
        self.dataset = dataset
        self._rounds = rounds
        batch = engine.batch_size
        self._num_rounds = round_sizes(len(cast("Sized", dataset)), batch, min(least, batch))[0]
        self._device = device
        self._clock = clock
        # A plain TensorDataset draws no random numbers: its samples need no random state of their own.
        self._sampler = GrantSampler(engine, order, seeded=type(dataset) is not TensorDataset, least=least)
        if options.num_workers > 0:
            leave_inherited_alone()
        self._pinned = options.pin_memory and device.type == "cuda"
        self._data: Iterable[Any] = DataLoader(
            dataset,
            batch_sampler=cast("Any", self._sampler),
            num_workers=options.num_workers,
            collate_fn=options.collate_fn,
            pin_memory=self._pinned,
            prefetch_factor=options.prefetch_factor,
            worker_init_fn=options.worker_init_fn,
            multiprocessing_context=options.multiprocessing_context,
            timeout=options.timeout,
            persistent_workers=options.num_workers > 0,
            # Else the loader would draw its base seed from the training process's random state.
            generator=torch.Generator().manual_seed(stable_seed(engine.seed, "loader", engine.rank)),
        )
        if options.num_workers == 0 and not self._pinned and not options.timeout:
            collate = default_collate if options.collate_fn is None else options.collate_fn
            self._data = BatchesHere(dataset, self._sampler, collate)
        self._iterator: Iterator[Any] | None = None
        self._ahead: list[Any] = []
        """The next batch, if it was fetched already."""
        self._ahead_seconds = 0.0
        if options.num_workers == 0:  # loader processes fetch ahead anyway
            rounds.while_waiting(self._fetch_ahead)

    def __len__(self) -> int:
        """Rounds of an epoch: ceil(samples of the data set / global batch)."""
        return self._num_rounds

    def __iter__(self) -> Iterator[Any]:
        while True:
            asked = self._clock()
            micro_batch = self._rounds.next_micro_batch()
            if micro_batch is None:
                return
            batch = to_device(self._fetch(micro_batch), self._device, non_blocking=self._pinned)
            ahead, self._ahead_seconds = self._ahead_seconds, 0.0
            self._rounds.hand_out(micro_batch, self._clock() - asked + ahead)
            yield batch

    def _fetch(self, wanted: MicroBatch) -> Any:
        self._sampler.epoch = wanted.ranges[0].epoch
        batch = self._ahead.pop() if self._ahead else self._next_batch()
        fetched = self._sampler.sent.popleft()
        if fetched != wanted:
            raise RuntimeError(f"the loader fetched {fetched}, but {wanted} is due")
        return batch

    def _next_batch(self) -> Any:
        try:
            if self._iterator is None:
                self._iterator = iter(self._data)
            return next(self._iterator)
        except StopIteration:
            # Nothing had been granted when the last batch came; with loader processes, the same ones go on.
            self._iterator = iter(self._data)
            return next(self._iterator)

    def _fetch_ahead(self) -> None:
        """Fetch what the next grant begins with, if it is at hand: its version has to be waited for anyway."""
        asked = self._clock()
        # The script may draw numbers after the step: they must not tell when the grant has arrived.
        with suppress(StopIteration), host_state_kept():
            if self._iterator is not None and not self._ahead:
                self._ahead.append(next(self._iterator))
        self._ahead_seconds = self._clock() - asked


def check_dataset(dataset: object) -> int:
    """Number of samples; raises `UsageError` for data sets that cannot be shared out by index."""
    if isinstance(dataset, torch.utils.data.IterableDataset):
        raise UsageError(
            "dataset: an IterableDataset has no indices to share out, so no sample could be used exactly once; give a"
            " data set with __getitem__ and __len__"
        )
    if isinstance(dataset, DataLoader):
        raise UsageError("dataset: give the data set itself, not a DataLoader; session.prepare makes the loader")
    if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise UsageError(f"dataset: must have __getitem__ and __len__, which {type(dataset).__name__} has not")
    if len(dataset) == 0:
        raise UsageError("dataset: must have at least one sample, it is empty")
    return len(dataset)


def to_device(batch: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    """`batch` with all its tensors on `device`, through tuples, lists, mappings and whatever has ``to(device)``.

    On the CPU the very same objects are returned.
    """
    if device.type == "cpu":
        return batch
    return _moved(batch, lambda tensor: tensor.to(device, non_blocking=non_blocking), device)


def _moved(batch: Any, move: Callable[[torch.Tensor], torch.Tensor], device: torch.device) -> Any:
    match batch:
        case torch.Tensor():
            return move(batch)
        # Before all containers: what knows how to move itself may keep a part on the CPU (a PackedSequence its sizes).
        case _ if callable(getattr(batch, "to", None)):
            return batch.to(device)
        case tuple() if hasattr(batch, "_fields"):
            return type(batch)(*(_moved(b, move, device) for b in batch))
        case tuple() | list():
            return type(batch)(_moved(b, move, device) for b in batch)
        case Mapping():
            return {k: _moved(v, move, device) for k, v in batch.items()}
        case _:
            return batch
