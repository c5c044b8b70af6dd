"""A training script of some seconds: a linear model on random numbers."""

import torch

import heterotrain

torch.manual_seed(0)  # the same data in all workers
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
session = heterotrain.join(batch_size=16, seed=0)
model, optimizer, loader = session.prepare(torch.nn.Linear(4, 1), torch.optim.SGD, data, lr=0.1)
for _ in session.epochs(2):
    for inputs, wanted in loader:
        torch.nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()
