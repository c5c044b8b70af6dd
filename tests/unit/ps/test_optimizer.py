from __future__ import annotations

import inspect
import json
from itertools import pairwise
from typing import Any

import pytest
import torch

from heterotrain.ps.optimizer import (
    ShardOptimizer,
    Slot,
    check_optimizer,
    decode_group,
    elementwise_optimizers,
    encode_group,
    state_bytes_per_element,
)
from heterotrain.tensors import allocate, elements

INSTALLED = sorted(
    name
    for name, cls in vars(torch.optim).items()
    if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer
)
REFUSED = [name for name in INSTALLED if name not in elementwise_optimizers()]
VARIANTS: dict[str, dict[str, Any]] = {
    "Adadelta": {"weight_decay": 0.01},
    "Adagrad": {"lr_decay": 0.1, "initial_accumulator_value": 0.5},
    "Adam": {"amsgrad": True, "weight_decay": 0.1},
    "AdamW": {"lr": 0.01, "betas": (0.8, 0.95)},
    "Adamax": {"maximize": True},
    "ASGD": {"t0": 3.0},
    "NAdam": {"decoupled_weight_decay": True, "weight_decay": 0.1},
    "RAdam": {"betas": (0.5, 0.6)},
    "RMSprop": {"centered": True, "momentum": 0.9},
    "Rprop": {"etas": (0.4, 1.3)},
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
}


def group_of(name: str, **hyperparameters: Any) -> str:
    cls = check_optimizer(name)
    return encode_group(name, cls([torch.zeros(1, requires_grad=True)], **hyperparameters).param_groups[0])


class Split:
    """`count` float64 elements on a shard, cut into pieces at `cuts`."""

    def __init__(self, name: str, group: str, start: torch.Tensor, cuts: list[int]) -> None:
        self.arenas = allocate(8 * len(start)), allocate(8 * len(start))
        self.values, self.gradients = (elements(a, "F64", 0, len(start)) for a in self.arenas)
        self.values.copy_(start)
        edges = [0, *cuts, len(start)]
        slots = [Slot(i, 0, "F64", 8 * a, b - a) for i, (a, b) in enumerate(pairwise(edges))]
        self.optimizer = ShardOptimizer(name, [group], slots, *self.arenas)


@pytest.mark.parametrize("variant", [False, True], ids=["defaults", "other options"])
@pytest.mark.parametrize("name", elementwise_optimizers())
def test_split_tensors_step_like_the_whole_tensor_in_plain_torch(name: str, variant: bool) -> None:
    options = VARIANTS[name] if variant else {}
    generator = torch.Generator().manual_seed(3)
    whole = torch.nn.Parameter(torch.randn(6, 5, dtype=torch.float64, generator=generator))
    plain = check_optimizer(name)([whole], **options)
    split = Split(name, group_of(name, **options), whole.detach().flatten(), cuts=[7, 8, 21])
    for _ in range(20):
        gradient = torch.randn(6, 5, dtype=torch.float64, generator=generator)
        whole.grad = gradient.clone()
        plain.step()
        split.gradients.copy_(gradient.flatten())
        split.optimizer.step([], 1.0, frozenset())
    torch.testing.assert_close(split.values, whole.detach().flatten(), rtol=1e-12, atol=1e-12)


def test_every_listed_class_has_another_variant_to_be_tested_with() -> None:
    assert sorted(VARIANTS) == sorted(elementwise_optimizers())


@pytest.mark.parametrize("name", [*REFUSED, "MyOptimizer", "__doc__", ""])
def test_other_classes_are_refused_by_name_with_the_allowed_ones(name: str) -> None:
    with pytest.raises(ValueError) as refusal:
        check_optimizer(name)
    assert f"optimizer `{name}` cannot run on parameter servers" in str(refusal.value)
    assert "Adadelta, Adagrad, Adam, AdamW, Adamax, ASGD, NAdam, RAdam, RMSprop, Rprop, SGD" in str(refusal.value)


def test_the_installed_torch_has_classes_to_refuse() -> None:
    assert {"LBFGS", "SparseAdam"} <= set(REFUSED)


@pytest.mark.parametrize("name", elementwise_optimizers())
def test_hyperparameters_survive_the_journey(name: str) -> None:
    decoded = decode_group(name, group_of(name, **VARIANTS[name]))
    assert {k: decoded[k] for k in VARIANTS[name]} == VARIANTS[name]


def test_schedulers_keys_execution_options_and_tensors_are_made_plain() -> None:
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.Adam([parameter], lr=torch.tensor(0.5), foreach=False)
    torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    assert "initial_lr" in optimizer.param_groups[0]
    assert json.loads(encode_group("Adam", optimizer.param_groups[0])) == {
        "amsgrad": False, "betas": [0.9, 0.999], "decoupled_weight_decay": False, "differentiable": False,
        "eps": 1e-8, "lr": 0.5, "maximize": False, "weight_decay": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param('{"learning_rate": 1}', "no hyperparameter `learning_rate`; it has .*lr", id="an unknown key"),
        pytest.param('{"params": []}', "no hyperparameter `params`", id="parameters in place of hyperparameters"),
        pytest.param('{"lr": "fast"}', "`lr` must be a number", id="a word for a number"),
        pytest.param('{"lr": true}', "`lr` must be a number", id="a boolean for a number"),
        pytest.param('{"lr": null}', "`lr` must be a number", id="null for a number"),
        pytest.param('{"lr": NaN}', "NaN is not a finite number", id="not a number"),
        pytest.param('{"lr": 1e999}', "`lr` must be a number, not inf", id="too large a number"),
        pytest.param('{"lr": [0.1]}', "`lr` must be a number", id="a list for a number"),
        pytest.param('{"betas": [0.9]}', "`betas` must be a list of 2 numbers", id="a list too short"),
        pytest.param('{"betas": ["a", "b"]}', "`betas` must be a list of 2 numbers", id="a list of words"),
        pytest.param('{"amsgrad": 1}', "`amsgrad` must be true or false", id="a number for a boolean"),
        pytest.param('{"differentiable": true}', "`differentiable` must be false", id="autograd through the step"),
        pytest.param('{"lr": -1}', "Invalid learning rate: -1", id="a value that torch refuses"),
        pytest.param('{"betas": [0.9, 2.0]}', "Invalid beta parameter at index 1", id="a list that torch refuses"),
        pytest.param("[]", "must be a JSON object", id="no object"),
        pytest.param("\x80\x04]", "must be a JSON object", id="no JSON"),
        pytest.param("[" * 100_000, "must be a JSON object", id="JSON nested without end"),
    ],
)
def test_a_group_that_cannot_be_used_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_group("Adam", text)


@pytest.mark.parametrize("option", ["foreach", "fused", "capturable"])
def test_execution_options_are_ignored(option: str) -> None:
    assert decode_group("Adam", json.dumps({option: True})) == decode_group("Adam", "{}")


def test_a_scale_multiplies_the_rate_of_its_step_only() -> None:
    split = Split("SGD", group_of("SGD", lr=1.0), torch.zeros(1, dtype=torch.float64), cuts=[])
    split.gradients.fill_(1.0)
    for scale in (0.5, 0.5, 1.0):
        split.optimizer.step([], scale, frozenset())
    assert split.values.item() == -2.0


def test_hyperparameters_of_a_step_last_until_others_come() -> None:
    split = Split("SGD", group_of("SGD", lr=1.0), torch.zeros(1, dtype=torch.float64), cuts=[])
    split.gradients.fill_(1.0)
    for groups in ([group_of("SGD", lr=10.0)], [], [group_of("SGD", lr=100.0)]):
        split.optimizer.step(groups, 1.0, frozenset())
    assert split.values.item() == -120.0


def test_absent_tensors_are_passed_over() -> None:
    split = Split("Adam", group_of("Adam", weight_decay=0.1), torch.ones(4, dtype=torch.float64), cuts=[1, 2])
    split.gradients.fill_(1.0)
    split.optimizer.step([], 1.0, frozenset({1}))
    assert (split.values != 1.0).tolist() == [True, False, True, True]


def test_after_moving_to_another_arena_steps_happen_there() -> None:
    split = Split("SGD", group_of("SGD", lr=1.0), torch.zeros(2, dtype=torch.float64), cuts=[1])
    split.gradients.fill_(1.0)
    other = split.arenas[0].clone()
    split.optimizer.rebind(other)
    split.optimizer.step([], 1.0, frozenset())
    assert (split.values.tolist(), elements(other, "F64", 0, 2).tolist()) == ([0.0, 0.0], [-1.0, -1.0])


@pytest.mark.parametrize(
    ("name", "start", "changed"),
    [
        pytest.param("Adam", {}, {"amsgrad": True}, id="amsgrad"),
        pytest.param("RMSprop", {}, {"centered": True}, id="centered"),
        pytest.param("RMSprop", {}, {"momentum": 0.5}, id="the momentum of RMSprop, from none"),
    ],
)
def test_options_that_decide_what_is_kept_cannot_change(name: str, start: Any, changed: Any) -> None:
    split = Split(name, group_of(name, **start), torch.zeros(1, dtype=torch.float64), cuts=[])
    with pytest.raises(ValueError, match=r"during training"):
        split.optimizer.check([group_of(name, **changed)])


def test_another_number_of_groups_is_refused() -> None:
    split = Split("SGD", group_of("SGD"), torch.zeros(1, dtype=torch.float64), cuts=[])
    with pytest.raises(ValueError, match="1 parameter groups, not 2"):
        split.optimizer.check([group_of("SGD")] * 2)


def test_a_shard_without_a_piece_of_a_group_steps() -> None:
    arena = allocate(0)
    optimizer = ShardOptimizer("Adam", [group_of("Adam")] * 2, [], arena, arena)
    optimizer.step([], 1.0, frozenset())
    assert optimizer.state_bytes == 0


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("SGD", {}, 0),
        ("SGD", {"momentum": 0.9}, 4),
        ("Adam", {}, 8),
        ("Adam", {"amsgrad": True}, 12),
        ("Adagrad", {}, 4),
    ],
)
def test_bytes_of_optimizer_state(name: str, options: dict[str, Any], expected: int) -> None:
    values = decode_group(name, group_of(name, **options))
    assert state_bytes_per_element(name, values, torch.float32) == expected


def test_what_a_caller_does_to_decoded_hyperparameters_is_its_own_affair() -> None:
    text = group_of("SGD", lr=0.1, momentum=0.9)
    decode_group("SGD", text)["lr"] = 5.0
    assert decode_group("SGD", text)["lr"] == 0.1


def test_a_rate_that_a_schedule_changes_is_encoded_anew() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    before = encode_group("SGD", optimizer.param_groups[0])
    optimizer.param_groups[0]["lr"] = 0.05
    after = encode_group("SGD", optimizer.param_groups[0])
    assert [decode_group("SGD", text)["lr"] for text in (before, after)] == [0.1, 0.05]
