"""A model in an arena on CUDA: what is received reaches the device, what the device computed is sent."""

from __future__ import annotations

import math

import torch

from support.bound import Bound, check_pushes, check_receives


def test_the_models_tensors_stay_on_the_device_and_its_host_memory_is_page_locked() -> None:
    bound = Bound("cuda")
    assert {value.device.type for value in bound.model.state_dict().values()} == {"cuda"}
    for memory in (bound.arena.values_memory, bound.arena.pushed_memory):
        assert torch.frombuffer(memory, dtype=torch.uint8).is_pinned()


def test_initial_values_and_pushes_are_those_of_the_cpu() -> None:
    check_pushes(Bound("cuda"), Bound("cpu"))


def test_a_version_that_was_received_is_on_the_device() -> None:
    check_receives(Bound("cuda"), Bound("cpu"))


def test_gradients_that_are_not_finite_are_named() -> None:
    bound = Bound("cuda")
    bound.model.weight2.grad = torch.full_like(bound.model.weight2, math.inf)
    bound.gradients.add(1.0)
    assert bound.arena.not_finite() == "weight2"
