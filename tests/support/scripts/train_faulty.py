"""Trains as it should until FAULTY's second batch, when the worker of that name does what FAULT says."""

import os
import signal
import sys
import time

import torch
from torch.utils.data import TensorDataset

import heterotrain

session = heterotrain.join()
data = TensorDataset(torch.randn(800, 2))
model, optimizer, loader = session.prepare(torch.nn.Linear(2, 1), torch.optim.SGD, data, lr=0.01)


def misbehave(fault: str) -> None:
    match fault:
        case "raise":
            raise ValueError("no such column")
        case "exit":
            sys.exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "wrong call":
            optimizer.step()
            optimizer.step()
        case "leave":
            session.close()
            sys.exit(0)


for _ in session.epochs(1000):
    for count, (inputs,) in enumerate(loader):
        if count == 1 and os.environ["HETEROTRAIN_NAME"] == os.environ["FAULTY"]:
            misbehave(os.environ["FAULT"])
        model(inputs).square().mean().backward()
        try:
            optimizer.step()
        except Exception:  # noqa: BLE001 - what careless scripts do
            time.sleep(60)
