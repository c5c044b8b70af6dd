"""What a script's model consists of: the manifest that travels, and the tensors that it describes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from heterotrain.errors import UsageError
from heterotrain.tensors import dtype_name
from heterotrain_core.layout import TensorKind, TensorSpec

_Named: TypeAlias = tuple[str, torch.Tensor, nn.Module, str]
"""A tensor's name in the state dict, itself, the module that holds it, and its name there."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of the model and its description. `owner` and `key` say which module holds it."""

    spec: TensorSpec
    tensor: torch.Tensor
    owner: nn.Module
    key: str


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """The tensors that all workers share, in manifest order: parameters, then persistent buffers; tied ones once."""

    entries: tuple[Entry, ...]
    held: tuple[tuple[str, torch.Tensor], ...] = ()
    """Name and parameter of everything that the optimizer was given with `requires_grad` off."""

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Descriptions, in manifest order."""
        return tuple(e.spec for e in self.entries)

    @property
    def trained(self) -> tuple[tuple[int, nn.Parameter], ...]:
        """Manifest index and parameter of everything that gradients are pushed for."""
        return tuple(
            (i, e.tensor)
            for i, e in enumerate(self.entries)
            if e.spec.kind is TensorKind.PARAMETER and isinstance(e.tensor, nn.Parameter)
        )


def describe_model(model: nn.Module, groups: Sequence[Mapping[str, object]]) -> ModelTensors:
    """Describe `model`, whose parameters `groups` (as in ``Optimizer.param_groups``) trains.

    A parameter in no group, or with `requires_grad` off, is frozen: one value for all, never changed. Non-persistent
    buffers stay each worker's own. Raises `UsageError` naming the tensor for what cannot be shared.
    """
    group_of = {id(p): i for i, group in enumerate(groups) for p in _members(group)}
    entries: list[Entry] = []
    held: list[tuple[str, torch.Tensor]] = []
    for names, parameter, owner, key in _once(_parameters(model)):
        trained = parameter.requires_grad and id(parameter) in group_of
        kind = TensorKind.PARAMETER if trained else TensorKind.FROZEN
        spec = _spec(names, parameter, kind, group_of[id(parameter)] if trained else -1)
        entries.append(Entry(spec, parameter, owner, key))
        if id(parameter) in group_of and not parameter.requires_grad:
            held.append((names[0], parameter))
    _refuse_strangers(groups, {id(e.tensor) for e in entries})
    for names, buffer, owner, key in _once(_persistent_buffers(model)):
        kind = TensorKind.FLOAT_BUFFER if buffer.is_floating_point() else TensorKind.INTEGER_BUFFER
        entries.append(Entry(_spec(names, buffer, kind, -1), buffer, owner, key))
    if not any(e.spec.kind is TensorKind.PARAMETER for e in entries):
        raise UsageError(
            "model: no parameter is trained; at least one must have requires_grad and be in the optimizer's parameters"
        )
    return ModelTensors(tuple(entries), tuple(held))


def refuse_unusable(model: nn.Module) -> None:
    """Raise `UsageError` for models whose values are not there yet or whose gradients are sparse."""
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise UsageError(
                f"model: parameter `{name}` is not initialised yet (a lazy module); run one batch through the"
                " model first"
            )
        if parameter.is_meta:
            raise UsageError(
                f"model: parameter `{name}` is on the meta device and has no values; call model.to_empty(device='cpu')"
                " and initialise it first"
            )
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise UsageError(
                f"model: `{name}` has sparse=True, and sparse gradients cannot be shared; use sparse=False"
            )


def smallest_batch(model: nn.Module) -> int:
    """Samples that `model` needs at once: 2 with BatchNorm, which cannot normalise over one value, else 1.

    Whether its layers are in training mode now says nothing of how they will be trained.
    """
    return 2 if any(isinstance(module, _BatchNorm) for module in model.modules()) else 1


def _refuse_strangers(groups: Sequence[Mapping[str, object]], known: set[int]) -> None:
    for i, group in enumerate(groups):
        for parameter in _members(group):
            if id(parameter) not in known:
                raise UsageError(
                    f"parameters: group {i} has a parameter of shape {tuple(parameter.shape)} that is not in the model;"
                    " make it part of the model given to prepare"
                )


def _members(group: Mapping[str, object]) -> list[torch.Tensor]:
    return list(cast("Iterable[torch.Tensor]", group["params"]))


def _spec(names: Sequence[str], tensor: torch.Tensor, kind: TensorKind, group: int) -> TensorSpec:
    name, *aliases = names
    if tensor.layout is not torch.strided:
        raise UsageError(f"model: tensor `{name}` must be dense, not {tensor.layout}; convert it with .to_dense()")
    try:
        dtype = dtype_name(tensor.dtype)
    except ValueError as error:
        raise UsageError(f"model: tensor `{name}`: {error}") from error
    return TensorSpec(name, tuple(tensor.shape), dtype, kind, group, tuple(aliases))


def _parameters(model: nn.Module) -> Iterator[_Named]:
    for prefix, module in model.named_modules(remove_duplicate=False):
        for key, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            yield _joined(prefix, key), parameter, module, key


def _persistent_buffers(model: nn.Module) -> Iterator[_Named]:
    for prefix, module in model.named_modules(remove_duplicate=False):
        # `state_dict` is what tells a persistent buffer from others without looking into the module's own fields.
        persistent = module.state_dict(keep_vars=True).keys()
        for key, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            if key in persistent:
                yield _joined(prefix, key), buffer, module, key


def _once(named: Iterable[_Named]) -> Iterator[tuple[list[str], torch.Tensor, nn.Module, str]]:
    """Each tensor once, with all its names, where it is met first."""
    found: dict[int, tuple[list[str], torch.Tensor, nn.Module, str]] = {}
    for name, tensor, owner, key in named:
        found.setdefault(id(tensor), ([], tensor, owner, key))[0].append(name)
    yield from found.values()


def _joined(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key
