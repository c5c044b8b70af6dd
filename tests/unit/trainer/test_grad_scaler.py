"""A script that scales its loss (`torch.amp.GradScaler`): as plain PyTorch alone, discarded by the shards in a job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import pytest
import torch
from torch import nn

from heterotrain.optimizer import RoundOptimizer
from heterotrain.rounds import Rounds
from training import make_data, make_model, make_session, plain_batches

INFINITE = 3
"""Batch whose loss overflows."""


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[tuple[torch.Tensor, ...]], *, unscale: bool
) -> list[float]:
    """One epoch, one step a batch; the scales that the scaler came to."""
    scaler, scales = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2), []
    for number, (inputs, targets) in enumerate(batches):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        scaler.scale(loss * torch.inf if number == INFINITE else loss).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    return scales


@pytest.mark.parametrize("unscale", [False, True], ids=["unscaled by the step", "unscaled by the script"])
def test_alone_it_equals_a_loop_by_hand_bit_by_bit(unscale: bool) -> None:
    ours, theirs, options = make_model(), make_model(), {"lr": 0.05, "momentum": 0.9}
    session = make_session()
    model, optimizer, loader = session.prepare(ours, torch.optim.SGD, make_data(), **options)
    scales = [s for _ in session.epochs(1) for s in train(model, optimizer, loader, unscale=unscale)]
    plain = torch.optim.SGD(theirs.parameters(), **options)
    assert scales == train(theirs, plain, plain_batches(make_data(), 0), unscale=unscale)
    assert scales[INFINITE] < scales[INFINITE - 1]
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


class Pushing:
    """Stands for the rounds of a job: keeps the gradients that a step hands in."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self._parameter = parameter
        self.pushed: list[list[float]] = []

    def step(self) -> None:
        assert self._parameter.grad is not None
        self.pushed.append(self._parameter.grad.tolist())


@pytest.mark.parametrize(
    ("factor", "want"),
    [pytest.param(1.0, [2.0, 4.0], id="finite"), pytest.param(torch.inf, [torch.inf, torch.inf], id="overflown")],
)
def test_in_a_job_every_gradient_is_handed_in_unscaled(factor: float, want: list[float]) -> None:
    parameter = nn.Parameter(torch.tensor([1.0, 2.0]))
    rounds = Pushing(parameter)
    optimizer = RoundOptimizer(torch.optim.SGD([parameter], lr=0.1), cast("Rounds", rounds), alone=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(parameter.square().sum() * factor).backward()
    scaler.step(optimizer)
    scaler.update()
    assert rounds.pushed == [want]
    assert scaler.get_scale() == (1024.0 if factor == 1.0 else 512.0)
    assert parameter.tolist() == [1.0, 2.0]
