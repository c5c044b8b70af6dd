"""The engine of a script that runs without a job: plain PyTorch, in the sample order of a job with the same seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from heterotrain.engine import Setup, Update
from heterotrain.errors import UsageError
from heterotrain.gradients import Gradients
from heterotrain.grants import Item
from heterotrain_core.least import round_sizes
from heterotrain_core.schedule import schedule_step
from heterotrain_core.types import EpochEnd, Grant, SampleRange, TrainingEnd


def lone_grant(
    epoch: int, index: int, dataset_size: int, batch_size: int, micro_batch: int | None, *, least: int = 1
) -> Grant | None:
    """The `index`-th round of an epoch as one worker's grant; `None` after the last.

    The last one may be smaller, but not below `least` samples, for which the one before it may be smaller too.
    """
    rounds, last = round_sizes(dataset_size, batch_size, min(least, batch_size))
    if index >= rounds:
        return None
    number = schedule_step(epoch, dataset_size, batch_size, 0) + index
    final = dataset_size - last
    begun = index * batch_size
    start, stop = (final, dataset_size) if index == rounds - 1 else (begun, min(begun + batch_size, final))
    ranges = (SampleRange(epoch, start, stop),)
    return Grant(worker=0, iteration=number, version=number, ranges=ranges, micro_batch=micro_batch, plan_generation=0)


class AloneEngine:
    """One process; the real optimizer steps the model itself (see `heterotrain.engine.Engine`)."""

    rank = 0
    num_workers = 1

    def __init__(self, *, batch_size: int, seed: int, micro_batch: int | None = None) -> None:
        self.batch_size = batch_size
        self.seed = seed
        self.version = 0
        self._micro_batch = micro_batch
        self._fetched = (-1, 0)
        self._items: Iterator[Item] = iter(())
        self._setup: Setup | None = None
        self._gradients = Gradients(())

    def configure(self, setup: Setup) -> Gradients:
        """Nothing to agree on; gradients are summed in their own memory."""
        self._setup = setup
        self._gradients = Gradients([p for _, p in setup.tensors.trained], held=setup.tensors.held)
        return self._gradients

    def start(self, epochs: int) -> None:
        """All grants are at hand at once."""
        self._items = self._schedule(epochs)

    def next_item(self) -> Item:
        """Never waits: the model is always at the newest version."""
        return next(self._items)

    def take_unfetched(self, epoch: int) -> Grant | None:
        """The grants of an epoch one after another."""
        index = self._fetched[1] if self._fetched[0] == epoch else 0
        grant = self._grant(epoch, index)
        if grant is not None:
            self._fetched = (epoch, index + 1)
        return grant

    def submit(self, update: Update) -> None:
        """Clip and step, as a plain loop would."""
        setup = self._prepared
        self._gradients.give_back()
        if update.clip is not None:
            parameters = [p for _, p in setup.tensors.trained]
            torch.nn.utils.clip_grad_norm_(parameters, update.clip.max_norm, update.clip.norm_type)
        setup.optimizer.step()
        self._gradients.clear()
        self.version += 1

    def evaluation_range(self, dataset_size: int) -> range:
        """The whole data set."""
        return range(dataset_size)

    def evaluation_sums(self, sums: Mapping[str, float], seconds: float) -> Mapping[str, float]:
        """There are no others."""
        del seconds
        return sums

    def report(self, values: Mapping[str, float]) -> None:
        """Nobody shows them: print them yourself."""

    @property
    def may_begin_anew(self) -> bool:
        """There is no job to come back to."""
        return False

    def close(self, failure: str | None = None, *, too_many: int = 0) -> None:
        """Nobody to tell."""

    @property
    def _prepared(self) -> Setup:
        if self._setup is None:
            raise UsageError("call session.prepare before training")
        return self._setup

    def _grant(self, epoch: int, index: int) -> Grant | None:
        setup = self._prepared
        size, least = setup.dataset_size, setup.smallest_batch
        return lone_grant(epoch, index, size, self.batch_size, self._micro_batch, least=least)

    def _schedule(self, epochs: int) -> Iterator[Item]:
        for epoch in range(epochs):
            index = 0
            while (grant := self._grant(epoch, index)) is not None:
                begun = grant.ranges[0].start
                yield Item(grant, schedule_step(epoch, self._prepared.dataset_size, self.batch_size, begun))
                index += 1
            yield Item(EpochEnd(worker=0, epoch=epoch, version=self.version), self.version)
        yield Item(TrainingEnd(worker=0, version=self.version, reason="all epochs are over"), self.version)
