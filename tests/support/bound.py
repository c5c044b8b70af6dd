"""A model of every tensor type bound to an arena, and what must hold of an arena that lies apart from host memory."""

from __future__ import annotations

import math

import torch
from torch import nn

from heterotrain.arena import Arena
from heterotrain.gradients import Gradients
from heterotrain.manifest import describe_model
from heterotrain.tensors import elements
from heterotrain_core.layout import make_layout

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
COUNTERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


class Everything(nn.Module):
    """Parameters and buffers of every type, in sizes that no alignment divides."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.fixed = nn.Parameter(torch.randn(3, generator=generator), requires_grad=False)
        for i, dtype in enumerate(DTYPES):
            values = torch.randn(5 + i, 7, generator=generator, dtype=torch.float64).to(dtype)
            self.register_parameter(f"weight{i}", nn.Parameter(values))
            self.register_buffer(f"mean{i}", values[0].clone())
        for i, dtype in enumerate(COUNTERS):
            self.register_buffer(f"count{i}", torch.randint(0, 2, (i + 1,), generator=generator).to(dtype))
        self.register_buffer("mask", torch.tensor([0.0, -math.inf]))


class Bound:
    """The model on a device, and its arena's memory by tensor name."""

    def __init__(self, device: str) -> None:
        self.model = Everything().to(device)
        self.tensors = describe_model(self.model, [{"params": list(self.model.parameters())}])
        self.layout = make_layout(self.tensors.specs, 2)
        self.arena = Arena(self.tensors, self.layout, torch.device(device))
        self.gradients = Gradients([p for _, p in self.tensors.trained], self.arena.gradient_targets())

    def read(self, memory: memoryview) -> dict[str, list[float]]:
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        pairs = zip(self.layout.tensors, self.layout.tensor_offsets, strict=True)
        return {s.name: elements(flat, s.dtype, at, s.num_elements).tolist() for s, at in pairs}

    def work(self) -> None:
        """A step's work: gradients in two micro-batches, statistics moved, a buffer assigned anew."""
        for weight in (0.25, 0.75):
            for parameter in self.model.parameters():
                if parameter.requires_grad and parameter.shape[0] != 6:
                    parameter.grad = parameter.detach() * 2
            self.gradients.add(weight)
        self.gradients.fill_absent()
        self.model.mean1.mul_(2)
        self.model.mean0 = self.model.mean0 + 1
        self.model.count0 += 3
        self.model.count5.fill_(True)


def check_pushes(ours: Bound, plain: Bound) -> None:
    """Initial values and what a step pushes are the same as of an arena that is host memory."""
    for bound in (ours, plain):
        bound.arena.before_initial_push()
    assert ours.read(ours.arena.values_memory) == plain.read(plain.arena.values_memory)
    for bound in (ours, plain):
        bound.arena.after_pull()
        bound.work()
        bound.arena.before_push()
    pushed = ours.read(ours.arena.pushed_memory)
    assert pushed == plain.read(plain.arena.pushed_memory)
    assert pushed["mask"] == [0.0, 0.0]
    assert set(pushed["weight1"]) == {0.0}, "a parameter without gradient"
    assert any(pushed["weight0"])
    assert ours.arena.not_finite() == ""


def check_receives(ours: Bound, plain: Bound) -> None:
    """A version that was received is in the model; differences count from it."""
    plain.model.weight0.data.mul_(3)
    plain.model.mean0.add_(1)
    plain.model.count1.add_(4)
    ours.arena.values_memory[:] = plain.arena.values_memory
    ours.arena.after_pull()
    got = {name: value.cpu() for name, value in ours.model.state_dict().items()}
    assert all(torch.equal(value, got[name]) for name, value in plain.model.state_dict().items())
    ours.model.mean0.mul_(2)
    ours.arena.before_push()
    assert ours.read(ours.arena.pushed_memory)["mean0"] == plain.model.mean0.tolist()
