"""Trains for EPOCHS with steps of SECONDS; clips, counts batches in a buffer, evaluates after every epoch."""

import json
import os
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import heterotrain


class Counted(nn.Module):
    """Counts its batches, as BatchNorm does, and bears batches of one sample."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Unchanged."""
        if self.training:
            self.count += 1
        return x


generator = torch.Generator().manual_seed(1)
inputs = torch.randn(150, 4, generator=generator)
data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
session = heterotrain.join()
net = nn.Sequential(nn.Linear(4, 8), Counted(), nn.ReLU(), nn.Linear(8, 2))
model, optimizer, loader = session.prepare(net, torch.optim.SGD, data, lr=0.2)
seconds = float(os.environ["SECONDS"])
measured = []
for _ in session.epochs(int(os.environ["EPOCHS"])):
    for x, y in loader:
        time.sleep(seconds)
        nn.functional.cross_entropy(model(x), y).backward()
        session.clip_grad_norm_(1.0)
        optimizer.step()
    measured.append(session.evaluate(lambda m, x, y: (m(x).argmax(1) == y).sum(), data, batch_size=50))
    session.report(accuracy=measured[-1])
print(json.dumps({"accuracy": measured, "version": session.version}))
