"""A model in its arena: the same values, received into and sent from flat memory."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from heterotrain import UsageError
from heterotrain.arena import Arena
from heterotrain.gradients import Gradients
from heterotrain.manifest import ModelTensors, describe_model
from heterotrain.tensors import elements
from heterotrain_core.layout import Layout, make_layout


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fixed = nn.Parameter(torch.full((3,), 5.0), requires_grad=False)
        self.weight = nn.Parameter(torch.arange(6.0).reshape(2, 3).t())  # not contiguous
        self.spare = nn.Parameter(torch.ones(2))
        self.register_buffer("mean", torch.tensor([1.0, 2.0]))
        self.register_buffer("mask", torch.tensor([0.0, -math.inf]))
        self.register_buffer("count", torch.tensor(3))


def bind(model: nn.Module) -> tuple[Arena, ModelTensors, Layout]:
    tensors = describe_model(model, [{"params": list(model.parameters())}])
    layout = make_layout(tensors.specs, 2)
    return Arena(tensors, layout, torch.device("cpu")), tensors, layout


def read(memory: memoryview, layout: Layout, name: str) -> list[float]:
    i = [t.name for t in layout.tensors].index(name)
    spec = layout.tensors[i]
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    values: list[float] = elements(flat, spec.dtype, layout.tensor_offsets[i], spec.num_elements).tolist()
    return values


def test_binding_keeps_the_values_and_the_tensors() -> None:
    model = Counted()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    weight = model.weight
    arena, _, layout = bind(model)
    assert model.weight is weight
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert read(arena.values_memory, layout, "weight") == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]


def test_what_is_received_is_in_the_model() -> None:
    model = Counted()
    arena, _, layout = bind(model)
    arena.values_memory[:] = bytes(layout.global_bytes)
    arena.after_pull()
    assert all(not value.any() for value in model.state_dict().values())


def test_gradients_differences_and_counts_are_pushed() -> None:
    model = Counted()
    arena, tensors, layout = bind(model)
    gradients = Gradients([p for _, p in tensors.trained], arena.gradient_targets())
    arena.after_pull()
    model.weight.grad = torch.full((3, 2), 2.0)
    gradients.add(0.25)
    model.weight.grad = torch.full((3, 2), 4.0)
    gradients.add(0.75)
    model.mean += 0.5
    model.count += 4
    gradients.fill_absent()
    arena.before_push()
    pushed = {name: read(arena.pushed_memory, layout, name) for name in ("weight", "spare", "mean", "mask", "count")}
    assert pushed == {
        "weight": [3.5] * 6,
        "spare": [0.0, 0.0],
        "mean": [0.5, 0.5],
        "mask": [0.0, 0.0],  # a constant infinity has not changed
        "count": [7],
    }
    assert [tensors.entries[tensors.trained[i][0]].spec.name for i in gradients.absent] == ["spare"]
    assert arena.not_finite() == ""


def test_an_absent_gradient_does_not_push_what_was_pushed_before() -> None:
    model = Counted()
    arena, tensors, layout = bind(model)
    gradients = Gradients([p for _, p in tensors.trained], arena.gradient_targets())
    model.spare.grad = torch.ones(2)
    gradients.add(1.0)
    gradients.clear()
    gradients.add(1.0)
    gradients.fill_absent()
    assert read(arena.pushed_memory, layout, "spare") == [0.0, 0.0]


def test_what_is_not_finite_is_named() -> None:
    model = Counted()
    arena, tensors, _ = bind(model)
    gradients = Gradients([p for _, p in tensors.trained], arena.gradient_targets())
    model.weight.grad = torch.full((3, 2), math.nan)
    gradients.add(1.0)
    arena.before_push()
    assert arena.not_finite() == "weight"


def test_a_buffer_that_the_script_assigns_anew_is_taken_over() -> None:
    model = Counted()
    arena, _, layout = bind(model)
    arena.after_pull()
    model.mean = torch.tensor([4.0, 4.0])
    arena.before_push()
    assert read(arena.pushed_memory, layout, "mean") == [3.0, 2.0]
    arena.values_memory[:] = bytes(layout.global_bytes)
    assert model.mean.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.double(),
        lambda model: setattr(model, "weight", nn.Parameter(torch.zeros(3, 2))),
        lambda model: setattr(model, "mean", torch.zeros(5)),
    ],
    ids=["converted", "a parameter replaced", "a buffer of another shape"],
)
def test_a_model_changed_after_prepare_is_refused(change: object) -> None:
    model = Counted()
    arena, _, _ = bind(model)
    change(model)  # type: ignore[operator]
    with pytest.raises(UsageError, match="was replaced, moved or converted after prepare"):
        arena.before_push()
