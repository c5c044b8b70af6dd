"""A worker that computes nothing: one flat parameter, a gradient that is always the same. For benchmarks.

_worker.py BYTES OPTIMIZER HYPERPARAMETERS(JSON)
"""

from __future__ import annotations

import json
import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import heterotrain

ROUNDS = 1_000_000


class Flat(nn.Module):
    def __init__(self, num_elements: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_elements))


def main() -> None:
    num_bytes, optimizer_name, hyperparameters = sys.argv[1:]
    session = heterotrain.join()
    data = TensorDataset(torch.zeros(ROUNDS * session.batch_size, dtype=torch.uint8))
    model = Flat(int(num_bytes) // 4)
    optimizer_class = getattr(torch.optim, optimizer_name)
    model, optimizer, loader = session.prepare(model, optimizer_class, data, **json.loads(hyperparameters))
    gradient = torch.full((1,), 1e-6).expand_as(model.weight)
    for _ in session.epochs(1):
        for _batch in loader:
            model.weight.grad = gradient
            optimizer.step()


if __name__ == "__main__":
    main()
