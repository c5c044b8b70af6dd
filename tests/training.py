"""Builders for tests of the script's side: small models, data, sessions without a job, and the plain loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from heterotrain import Session
from heterotrain.alone import AloneEngine
from heterotrain.pace import Clocks
from heterotrain.randomness import permutation
from heterotrain.settings import Settings

SEED = 7
CPU = torch.device("cpu")


@dataclass
class FakeTime:
    """Clocks that stand still unless told."""

    now: float = 0.0
    cpu: float = 0.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    @property
    def clocks(self) -> Clocks:
        return Clocks(wall=lambda: self.now, cpu=lambda: self.cpu, sleep=self.sleep)


def make_data(samples: int = 50, dtype: torch.dtype = torch.float32) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, 4, generator=generator, dtype=torch.float64).to(dtype)
    return TensorDataset(inputs, torch.randint(0, 3, (samples,), generator=generator))


def make_model(dtype: torch.dtype = torch.float32, *, norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    middle: list[nn.Module] = [nn.BatchNorm1d(8)] if norm else []
    return nn.Sequential(nn.Linear(4, 8), *middle, nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def make_session(
    batch_size: int = 8,
    *,
    micro_batch: int | None = None,
    settings: Settings | None = None,
    time: FakeTime | None = None,
) -> Session:
    """A session that runs alone, without reading the environment."""
    engine = AloneEngine(batch_size=batch_size, seed=SEED, micro_batch=micro_batch)
    return Session(engine, settings or Settings(), CPU, (time or FakeTime()).clocks)


def plain_batches(data: TensorDataset, epoch: int, batch_size: int = 8) -> Iterator[tuple[torch.Tensor, ...]]:
    """Batches of an epoch as a hand-written loop makes them."""
    order = permutation(SEED, epoch, len(data))
    for start in range(0, len(data), batch_size):
        yield data[order[start : start + batch_size]]


def train(session: Session, model: nn.Module, cls: Any, *, epochs: int = 2, **options: Any) -> list[float]:
    """Train with the session; the losses of all batches."""
    data = options.pop("data", None) or make_data()
    after_backward: Callable[[], None] = options.pop("after_backward", lambda: None)
    scheduler: Callable[[Any], Any] = options.pop("scheduler", lambda optimizer: None)
    model, optimizer, loader = session.prepare(model, cls, data, **options)
    made = scheduler(optimizer)
    schedule = None if made is None else session.schedule(made)
    losses = []
    for _ in session.epochs(epochs):
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            after_backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
            losses.append(loss.item())
    return losses
