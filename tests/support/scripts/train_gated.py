"""Trains a tiny model for EPOCHS; in each epoch it waits before its third update for the file GATES/<epoch>."""

import os
import time
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

import heterotrain

GATED_BATCH = 2
NUM_SAMPLES = 200

gates = Path(os.environ["GATES"])
session = heterotrain.join()
model, optimizer, loader = session.prepare(
    torch.nn.Linear(2, 1), torch.optim.SGD, TensorDataset(torch.randn(NUM_SAMPLES, 2)), lr=0.01
)
for epoch in session.epochs(int(os.environ["EPOCHS"])):
    updates = session.version
    for (inputs,) in loader:
        while session.version == updates + GATED_BATCH and not (gates / str(epoch)).exists():
            time.sleep(0.01)
        model(inputs).square().mean().backward()
        optimizer.step()
