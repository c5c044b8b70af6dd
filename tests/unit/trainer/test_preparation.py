"""What `Session.prepare` refuses, and what it makes of what it accepts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from heterotrain import UsageError
from heterotrain.manifest import describe_model, smallest_batch
from heterotrain.preparation import load_weights, prepare_model
from heterotrain_core.layout import TensorKind, TensorSpec
from training import CPU, make_data, make_model, make_session

P, F, FB, IB = TensorKind.PARAMETER, TensorKind.FROZEN, TensorKind.FLOAT_BUFFER, TensorKind.INTEGER_BUFFER


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


class NoLength:
    def __getitem__(self, index: int) -> int:
        return index


class MySGD(torch.optim.SGD):
    pass


def with_complex_buffer() -> nn.Module:
    model = make_model()
    model.register_buffer("phase", torch.zeros(2, dtype=torch.complex64))
    return model


def frozen() -> nn.Module:
    return make_model().requires_grad_(False)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an iterable data set": ({"dataset": Stream()}, "IterableDataset has no indices"),
    "a data set without length": ({"dataset": NoLength()}, "must have __getitem__ and __len__"),
    "an empty data set": ({"dataset": []}, "at least one sample"),
    "a DataLoader": ({"dataset": DataLoader(make_data())}, "give the data set itself"),
    "batch_size": ({"batch_size": 3}, "batch_size: not an option.*globalBatchSize"),
    "shuffle": ({"shuffle": True}, "shuffle: not an option.*own order"),
    "sampler": ({"sampler": None}, "sampler: not an option"),
    "batch_sampler": ({"batch_sampler": None}, "batch_sampler: not an option"),
    "drop_last": ({"drop_last": True}, "drop_last: not an option.*every sample"),
    "an optimizer of whole matrices": ({"cls": torch.optim.Adafactor}, "Adafactor.*whole matrices.*AdamW"),
    "an optimizer that is called again": ({"cls": torch.optim.LBFGS}, "LBFGS"),
    "an optimizer of one's own": ({"cls": type("Own", (torch.optim.SGD,), {})}, "`Own` cannot run"),
    "a namesake of an optimizer": ({"cls": type("SGD", (torch.optim.SGD,), {})}, "is not of torch.optim"),
    "an optimizer already made": (
        {"cls": torch.optim.SGD(make_model().parameters(), lr=0.1)},
        "give the class itself",
    ),
    "an unknown hyperparameter": ({"learning_rate": 0.1}, "SGD refuses its arguments.*learning_rate"),
    "a rate below 0": ({"lr": -1.0}, "SGD refuses its arguments"),
    "a differentiable step": ({"differentiable": True}, "differentiable: must be false"),
    "sparse gradients": ({"model": nn.Embedding(3, 2, sparse=True)}, "sparse=True"),
    "the meta device": ({"model": nn.Linear(2, 2, device="meta")}, "`weight` is on the meta device"),
    "a lazy module": ({"model": nn.LazyLinear(2)}, "`weight` is not initialised yet"),
    "a foreign parameter": ({"parameters": [nn.Parameter(torch.zeros(5))]}, r"shape \(5,\) that is not in the model"),
    "nothing to train": ({"model": frozen()}, "no parameter is trained"),
    "a complex buffer": ({"model": with_complex_buffer()}, "`phase`: dtype must be one of"),
    "no module": ({"model": make_model}, "must be a torch.nn.Module"),
    "weights of another format": ({"weights": "model.pt"}, "must be a .safetensors file"),
    "weights that are not there": ({"weights": "none.safetensors"}, "none.safetensors cannot be read"),
    "weights of another shape": (
        {"weights": {**make_model().state_dict(), "0.bias": torch.zeros(9)}},
        "do not fit the model.*0.bias",
    ),
    "weights of another model": ({"weights": {**make_model().state_dict(), "9.bias": torch.zeros(9)}}, "no `9.bias`"),
    "weights with a gap": ({"weights": {"0.bias": torch.zeros(8)}}, "they have no `0.weight`"),
}


@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(change: dict[str, Any], message: str) -> None:
    arguments = {"model": make_model(), "cls": torch.optim.SGD, "dataset": make_data(), "lr": 0.1, **change}
    model, cls, dataset = arguments.pop("model"), arguments.pop("cls"), arguments.pop("dataset")
    with pytest.raises(UsageError, match=f"(?s){message}"):
        make_session().prepare(model, cls, dataset, **arguments)


class Mixed(nn.Module):
    """Tied, frozen, left out of the optimizer, and buffers of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 2)
        self.out = nn.Linear(2, 5, bias=False)
        self.out.weight = self.embed.weight
        self.fixed = nn.Parameter(torch.zeros(3, dtype=torch.float16), requires_grad=False)
        self.norm = nn.BatchNorm1d(2, dtype=torch.float64)
        self.register_buffer("mask", torch.ones(2, dtype=torch.bool))
        self.register_buffer("cache", torch.ones(2), persistent=False)


def test_the_manifest_names_every_shared_tensor_once() -> None:
    model = Mixed()
    groups: list[dict[str, object]] = [{"params": [model.norm.weight]}, {"params": [model.embed.weight, model.fixed]}]
    assert describe_model(model, groups).specs == (
        TensorSpec("fixed", (3,), "F16", F, -1),
        TensorSpec("embed.weight", (5, 2), "F32", P, 1, aliases=("out.weight",)),
        TensorSpec("norm.weight", (2,), "F64", P, 0),
        TensorSpec("norm.bias", (2,), "F64", F, -1),
        TensorSpec("mask", (2,), "BOOL", IB, -1),
        TensorSpec("norm.running_mean", (2,), "F64", FB, -1),
        TensorSpec("norm.running_var", (2,), "F64", FB, -1),
        TensorSpec("norm.num_batches_tracked", (), "I64", IB, -1),
    )


def test_batchnorm_needs_two_samples_at_once_and_other_layers_one() -> None:
    frozen = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).eval())
    assert [smallest_batch(m) for m in (Mixed(), frozen, nn.GroupNorm(1, 2), nn.Linear(2, 2))] == [2, 2, 1, 1]


@pytest.mark.parametrize("of_the_optimizer", [True, False], ids=["of the optimizer", "that is no part of it"])
def test_a_parameter_that_is_thawed_later_is_refused_if_plain_pytorch_would_train_it(of_the_optimizer: bool) -> None:
    net = make_model()
    net[0].weight.requires_grad_(False)
    parameters = list(net.parameters()) if of_the_optimizer else list(net[2].parameters())
    model, optimizer, loader = make_session_of(net, parameters)
    for number, (inputs, _) in enumerate(loader):
        net[0].weight.requires_grad_(number == 2)
        model(inputs).sum().backward()
        if number == 2 and of_the_optimizer:
            with pytest.raises(UsageError, match=r"parameter `0\.weight` had requires_grad off"):
                optimizer.step()
            return
        optimizer.step()
    assert not of_the_optimizer


def make_session_of(net: nn.Module, parameters: list[nn.Parameter]) -> tuple[nn.Module, Any, Iterator[Any]]:
    """Model, optimizer and the batches of one epoch."""
    session = make_session()
    model, optimizer, loader = session.prepare(net, torch.optim.SGD, make_data(), parameters=parameters, lr=0.1)
    return model, optimizer, (batch for _ in session.epochs(1) for batch in loader)


def test_hyperparameters_and_groups_are_those_of_the_real_class() -> None:
    model = make_model()
    groups = [{"params": list(model[0].parameters()), "lr": 0.5}, {"params": model[2].parameters()}]
    setup = prepare_model(
        model, torch.optim.AdamW, 50, CPU, parameters=groups, weights=None, hyperparameters={"weight_decay": 0.3}
    )
    assert setup.optimizer_name == "AdamW"
    assert [(g["lr"], g["weight_decay"], g["betas"]) for g in setup.groups] == [
        (0.5, 0.3, (0.9, 0.999)),
        (0.001, 0.3, (0.9, 0.999)),
    ]


def test_a_compiled_model_keeps_its_names() -> None:
    wrapper = nn.Module()
    wrapper._orig_mod = make_model()  # what torch.compile returns holds the model so
    setup = prepare_model(wrapper, torch.optim.SGD, 50, CPU, parameters=None, weights=None, hyperparameters={"lr": 0.1})
    assert [s.name for s in setup.tensors.specs] == ["0.weight", "0.bias", "2.weight", "2.bias"]


@pytest.mark.parametrize("as_file", [True, False], ids=["from a file", "from a state dict"])
def test_warm_start(tmp_path: Path, as_file: bool) -> None:
    state = {name: torch.full_like(value, 0.25) for name, value in make_model().state_dict().items()}
    path = tmp_path / "model.safetensors"
    save_file(state, path)
    model, _, _ = make_session().prepare(
        make_model(), torch.optim.SGD, make_data(), weights=path if as_file else state, lr=0.1
    )
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_tied_weights_may_be_given_under_one_name() -> None:
    model = Mixed()
    state = {name: value + 1 for name, value in model.state_dict().items() if name != "out.weight"}
    load_weights(model, {**state, "mask": model.mask})
    assert torch.equal(model.out.weight, state["embed.weight"])
