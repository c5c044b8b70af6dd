"""Trains a small classifier in float64. In round ROUND the gradients of the workers in FAULTY hold a NaN at PLACE.

PLACE: name of a parameter, a colon, index of an element. FAULTY: names, with commas.
"""

import math
import os
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import heterotrain

EPOCHS = 2
NUM_SAMPLES = 75
OPTIONS: dict[str, Any] = {"lr": 0.1, "momentum": 0.9}


def make_model() -> nn.Module:
    """The same values in every process."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def make_data() -> TensorDataset:
    """Random inputs and classes."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(NUM_SAMPLES, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, torch.randint(0, 3, (NUM_SAMPLES,), generator=generator))


def main() -> None:
    """Train as a worker."""
    faulty = os.environ["HETEROTRAIN_NAME"] in os.environ["FAULTY"].split(",")
    name, index = os.environ["PLACE"].split(":")
    session = heterotrain.join()
    model, optimizer, loader = session.prepare(make_model(), torch.optim.SGD, make_data(), **OPTIONS)
    for _ in session.epochs(EPOCHS):
        for inputs, targets in loader:
            nn.functional.cross_entropy(model(inputs), targets).backward()
            if faulty and session.version == int(os.environ["ROUND"]):
                gradient = model.get_parameter(name).grad
                assert gradient is not None
                gradient.view(-1)[int(index)] = math.nan
            optimizer.step()


if __name__ == "__main__":
    main()
