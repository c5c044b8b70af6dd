"""A small training script: float64, a schedule, clipping and an evaluation. Leaves what it ended with in a file."""

import json
import os

import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import TensorDataset

import heterotrain

session = heterotrain.join(batch_size=8, seed=7)
generator = torch.Generator().manual_seed(1)
data = TensorDataset(
    torch.randn(75, 6, generator=generator, dtype=torch.float64), torch.randint(0, 3, (75,), generator=generator)
)
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()
name = os.environ.get("OPTIMIZER", "SGD")
options = {"SGD": {"lr": 0.1, "momentum": 0.9}, "AdamW": {"lr": 0.01, "weight_decay": 0.1}}[name]
model, optimizer, loader = session.prepare(
    net, getattr(torch.optim, name), data, num_workers=int(os.environ.get("LOADERS", "0")), **options
)
scheduler = session.schedule(torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.7))
accuracy = []
for _ in session.epochs(2):  # 10 rounds each, the last of 3 samples
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        if "CLIP" in os.environ:
            session.clip_grad_norm_(float(os.environ["CLIP"]))
        optimizer.step()
        scheduler.step()
    accuracy.append(session.evaluate(lambda m, x, y: (m(x).argmax(1) == y).sum(), data, batch_size=16))
    session.report(accuracy=accuracy[-1])
save_file({k: v.clone() for k, v in model.state_dict().items()}, os.environ["RESULT"])
print(json.dumps({"accuracy": accuracy, "version": session.version, "rate": scheduler.get_last_lr()}))
