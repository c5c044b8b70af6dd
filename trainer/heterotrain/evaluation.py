"""Evaluation of the model that the session holds, shared out among the workers and summed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils.data import default_collate

from heterotrain.engine import Engine
from heterotrain.errors import UsageError
from heterotrain.loader import to_device
from heterotrain.pace import Pace
from heterotrain.randomness import SeededIndices

Number: TypeAlias = float | torch.Tensor
Measure: TypeAlias = Callable[..., Number | Mapping[str, Number]]

SINGLE = ""
"""Name of the sum of a measure that gives one number instead of named ones."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What `Session.evaluate` was asked for."""

    measure: Measure
    dataset: Any
    batch_size: int
    collate: Callable[[list[Any]], Any] | None = None

    def run(self, engine: Engine, model: nn.Module, device: torch.device, pace: Pace) -> float | dict[str, float]:
        """Measure this worker's samples, add up all workers' sums, divide by the number of samples."""
        size = len(self.dataset)
        mine = engine.evaluation_range(size)
        while True:
            total = engine.evaluation_sums(*self._measure(mine, engine, model, device, pace))
            if not isinstance(total, range):
                break
            mine = total  # of a worker that was lost
        means = {name: part / size for name, part in total.items()}
        return means[SINGLE] if set(means) == {SINGLE} else means

    def _measure(
        self, mine: range, engine: Engine, model: nn.Module, device: torch.device, pace: Pace
    ) -> tuple[dict[str, float], float]:
        """Sums over some samples, and the seconds that took."""
        sums: dict[str, float] = {}
        seconds = 0.0
        with _evaluating(model):
            for start in range(mine.start, mine.stop, self.batch_size):
                pace.start()
                indices = SeededIndices(mine[start - mine.start :][: self.batch_size], engine.seed, -1)
                samples = (self.collate or default_collate)([self.dataset[i] for i in indices])
                _add(sums, named_numbers(self.measure(model, *_arguments(to_device(samples, device)))))
                seconds += pace.stop()[0]
        return sums, seconds


def named_numbers(measured: Number | Mapping[str, Number]) -> dict[str, float]:
    """What a measure gave, as named numbers; raises `UsageError` if that is not a number or a dict of numbers."""
    values = measured if isinstance(measured, Mapping) else {SINGLE: measured}
    return {name: as_number(value, f"measure: {name or 'its result'}") for name, value in values.items()}


def as_number(value: object, what: str) -> float:
    """A number, a Boolean or a tensor of one element as a float; raises `UsageError` (starting with `what`)."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value.item())
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise UsageError(f"{what} must be a number or a tensor of one element, not {type(value).__name__}") from None


def finite_numbers(values: Mapping[str, object]) -> dict[str, float]:
    """The values of `Session.report`; raises `UsageError` naming one that is not a finite number."""
    result: dict[str, float] = {}
    for name, value in values.items():
        number = as_number(value, f"report: {name}")
        if not math.isfinite(number):
            raise UsageError(f"report: {name} must be finite, not {number}; leave it out when it is not")
        result[name] = number
    return result


def _arguments(batch: Any) -> tuple[Any, ...]:
    return tuple(batch) if isinstance(batch, tuple | list) else (batch,)


def _add(sums: dict[str, float], values: Mapping[str, float]) -> None:
    for name, value in values.items():
        sums[name] = sums.get(name, 0.0) + value


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; every module's own mode is restored."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
