"""Trains a small convolutional classifier on whatever device the worker has. Options come from the environment:

DTYPE, OPTIMIZER, DROPOUT (rate), DRAWS (random numbers that the script takes between
rounds), LOADERS and PIN (the loader's), AMP (fp16 with a scaler, or bf16), OVERFLOW (a round whose loss overflows),
LAYOUT (channels_last), COMPILE, FAULT (what happens in round 3). Leaves what it ended with in the file RESULT.
"""

import json
import os
from contextlib import AbstractContextManager, nullcontext

import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import TensorDataset

import heterotrain

OPTIONS = os.environ
DTYPE = getattr(torch, OPTIONS.get("DTYPE", "float32"))
HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(OPTIONS.get("AMP", ""))

# Float32 is meant to be float32: in TF32, the default of convolutions, a device has 10 bits of mantissa.
torch.backends.cudnn.allow_tf32 = False
torch.use_deterministic_algorithms(True)

session = heterotrain.join(batch_size=16, seed=7)
generator = torch.Generator().manual_seed(1)
targets = torch.randint(0, 3, (120,), generator=generator)
images = torch.randn(120, 1, 8, 8, generator=generator, dtype=torch.float64) + targets.reshape(-1, 1, 1, 1) - 1
data = TensorDataset(images.to(DTYPE), targets)
net = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.Tanh(), nn.Conv2d(8, 8, 3, 2, padding=1), nn.Flatten(),
    nn.Dropout(float(OPTIONS.get("DROPOUT", "0"))), nn.Linear(128, 3),
).to(DTYPE)  # fmt: skip
if "LAYOUT" in OPTIONS:
    net = net.to(memory_format=getattr(torch, OPTIONS["LAYOUT"]))
if "COMPILE" in OPTIONS:
    net = torch.compile(net)  # type: ignore[assignment]
name = OPTIONS.get("OPTIMIZER", "SGD")
hyperparameters = {"SGD": {"lr": 0.05, "momentum": 0.9}, "AdamW": {"lr": 0.005, "weight_decay": 0.1}}[name]
model, optimizer, loader = session.prepare(
    net, getattr(torch.optim, name), data,
    num_workers=int(OPTIONS.get("LOADERS", "0")), pin_memory="PIN" in OPTIONS, **hyperparameters,
)  # fmt: skip
scaler = torch.amp.GradScaler(session.device.type, init_scale=1024.0, enabled=OPTIONS.get("AMP") == "fp16")
scales: list[float] = []


def precision() -> AbstractContextManager[object]:
    return nullcontext() if HALF is None else torch.autocast(session.device.type, dtype=HALF)


def misbehave(fault: str) -> None:
    match fault:
        case "out of memory":
            _, total = torch.cuda.mem_get_info()
            torch.empty(total + 2**30, dtype=torch.uint8, device=session.device)
        case "bad label":
            # Found by the device, in its own time.
            nn.functional.cross_entropy(torch.zeros(1, 3, device=session.device), targets[:1].to(session.device) + 9)


def correct(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (model(inputs).argmax(1) == labels).sum()


for _ in session.epochs(3):  # 8 rounds each, the last of 8 samples
    for inputs, labels in loader:
        assert inputs.device == session.device
        round_number = session.version
        with precision():
            loss = nn.functional.cross_entropy(model(inputs), labels)
        if round_number == 3:
            misbehave(OPTIONS.get("FAULT", ""))
        if round_number == int(OPTIONS.get("OVERFLOW", "-1")):
            loss = loss * torch.finfo(torch.float32).max
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        torch.rand(int(OPTIONS.get("DRAWS", "0")), device=session.device)
    accuracy = session.evaluate(correct, data, batch_size=16)
    session.report(accuracy=accuracy)
inner = getattr(model, "_orig_mod", model)
save_file({k: v.clone().contiguous() for k, v in inner.state_dict().items()}, OPTIONS["RESULT"])
print(json.dumps({"accuracy": accuracy, "device": str(session.device), "scales": scales}))
