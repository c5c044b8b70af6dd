"""A shard's step is PyTorch's, bit for bit, for every optimizer that can run on shards."""

from __future__ import annotations

import pytest
import torch

from heterotrain.lean import step_plainly
from heterotrain.ps.optimizer import check_optimizer, elementwise_optimizers


@pytest.mark.parametrize("name", elementwise_optimizers())
def test_three_steps_end_where_pytorch_s_do(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    ours, theirs = (torch.nn.Parameter(torch.linspace(-1, 1, 7)) for _ in range(2))
    plain, real = check_optimizer(name)([ours], lr=0.1), check_optimizer(name)([theirs], lr=0.1)
    for _ in range(3):
        ours.grad = torch.randn(7, generator=generator)
        theirs.grad = ours.grad.clone()
        step_plainly(plain)
        real.step()
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, torch.linspace(-1, 1, 7))
