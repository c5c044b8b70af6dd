"""Samples of the next grant are fetched while its version is waited for; each only once, and none of another epoch."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset

from heterotrain import Session
from heterotrain.alone import AloneEngine
from heterotrain.engine import Update
from heterotrain.grants import Item
from heterotrain.settings import Settings
from heterotrain_core.types import Grant
from training import CPU, SEED, FakeTime, make_model

Log = list[str]


class Samples(Dataset[tuple[torch.Tensor, int]]):
    """Each takes half a second."""

    def __init__(self, log: Log, time: FakeTime) -> None:
        self._log, self._time = log, time

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self._log.append("fetch")
        self._time.now += 0.5
        return torch.ones(4), 0


class Engine(AloneEngine):
    """Notes what it is called for."""

    def __init__(self, log: Log, *, micro_batch: int | None = None) -> None:
        super().__init__(batch_size=2, seed=SEED, micro_batch=micro_batch)
        self.log = log
        self.data_seconds: list[float] = []

    def submit(self, update: Update) -> None:
        self.log.append("hand in")
        self.data_seconds.append(update.data_seconds)
        super().submit(update)

    def next_item(self) -> Item:
        item = super().next_item()
        self.log.append("wait" if isinstance(item.decision, Grant) else "end")
        return item


ONE = ["fetch", "fetch"]
BEGINS, IS_OVER = ["wait", *ONE], ["hand in", "end"]


@pytest.mark.parametrize(
    ("micro_batch", "epoch"),
    [
        pytest.param(None, [*BEGINS, "hand in", *ONE, "wait", *IS_OVER], id="whole"),
        pytest.param(1, [*BEGINS, "hand in", "fetch", "wait", "fetch", *IS_OVER], id="in parts: the first of them"),
    ],
)
def test_it_fetches_ahead(micro_batch: int | None, epoch: Log) -> None:
    log: Log = []
    time = FakeTime()
    engine = Engine(log, micro_batch=micro_batch)
    session = Session(engine, Settings(), CPU, time.clocks)
    model, optimizer, loader = session.prepare(make_model(), torch.optim.SGD, Samples(log, time), lr=0.1)
    for _ in session.epochs(2):
        for inputs, _ in loader:
            model(inputs).sum().backward()
            before = torch.get_rng_state()
            optimizer.step()
            assert torch.equal(torch.get_rng_state(), before), "whether something was fetched does not show"
    assert log == [*epoch, *epoch, "end"]
    assert engine.data_seconds == [1.0] * 4, "fetched ahead or not, it is the worker's own time"
