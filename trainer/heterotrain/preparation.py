"""Checks and first steps of `Session.prepare`: all that a script can get wrong is refused here, with the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from heterotrain.engine import Setup
from heterotrain.errors import UsageError
from heterotrain.manifest import describe_model, refuse_unusable, smallest_batch
from heterotrain.ps.optimizer import check_optimizer

Parameters: TypeAlias = Iterable[torch.Tensor] | Iterable[dict[str, Any]]
Weights: TypeAlias = str | Path | Mapping[str, torch.Tensor]

_NOT_OPTIONS = {
    "batch_size": "the job decides it: globalBatchSize in a job, heterotrain.join(batch_size=…) alone",
    "shuffle": "every epoch has its own order, made from the seed and shared by all workers",
    "sampler": "the coordinator shares out an order made from the seed; use a torch.utils.data.Subset to choose",
    "batch_sampler": "the coordinator decides who computes which samples",
    "drop_last": "every sample of an epoch is used; the last round may be smaller",
    "generator": "all random numbers come from the seed; heterotrain.join(seed=…)",
    "persistent_workers": "loader processes always stay",
    "in_order": "batches always come in the order in which they were granted",
}


def prepare_model(
    model: nn.Module,
    optimizer_class: type[torch.optim.Optimizer],
    dataset_size: int,
    device: torch.device,
    *,
    parameters: Parameters | None,
    weights: Weights | None,
    hyperparameters: Mapping[str, Any],
) -> Setup:
    """Check everything, load `weights`, move the model, and make the real optimizer, which completes the groups."""
    _refuse_loader_options(hyperparameters)
    if not isinstance(model, nn.Module):
        raise UsageError(f"model: must be a torch.nn.Module, not {type(model).__name__}")
    _check_class(optimizer_class)
    # A compiled model is a wrapper that would put its own prefix before every name.
    inner = getattr(model, "_orig_mod", model)
    refuse_unusable(inner)
    if weights is not None:
        load_weights(inner, weights)
    model.to(device)
    optimizer = _make_optimizer(
        optimizer_class, inner.parameters() if parameters is None else parameters, hyperparameters
    )
    tensors = describe_model(inner, optimizer.param_groups)
    return Setup(tensors, optimizer, dataset_size, device, smallest_batch(inner))


def load_weights(model: nn.Module, weights: Weights) -> None:
    """Copy weights, a ``.safetensors`` file or a state dict, into `model`; tied tensors may be given under one name.

    Raises `UsageError` naming what is missing, unknown or of another shape.
    """
    state = _read_weights(Path(weights)) if isinstance(weights, str | Path) else dict(weights)
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise UsageError(f"weights: they do not fit the model: {error}") from error
    if unexpected:
        raise UsageError(f"weights: the model has no {_some(unexpected)}")
    own = model.state_dict(keep_vars=True)
    given = {id(own[name]) for name in state if name in own}
    missing = [name for name in missing if id(own.get(name)) not in given]
    if missing:
        raise UsageError(f"weights: they have no {_some(missing)}")


def _refuse_loader_options(hyperparameters: Mapping[str, Any]) -> None:
    for name, reason in _NOT_OPTIONS.items():
        if name in hyperparameters:
            raise UsageError(f"{name}: not an option of session.prepare; {reason}")


def _check_class(cls: object) -> None:
    if not (isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)):
        raise UsageError("optimizer_class: give the class itself (torch.optim.SGD), its hyperparameters as keywords")
    try:
        known = check_optimizer(cls.__name__)
    except ValueError as error:
        raise UsageError(f"optimizer_class: {error}") from error
    if known is not cls:
        raise UsageError(
            f"optimizer_class: {cls.__module__}.{cls.__qualname__} is not of torch.optim; only those run on"
            " parameter servers"
        )


def _make_optimizer(
    cls: type[torch.optim.Optimizer], parameters: Parameters, hyperparameters: Mapping[str, Any]
) -> torch.optim.Optimizer:
    groups: Any = [dict(p) if isinstance(p, dict) else p for p in parameters]
    try:
        optimizer: torch.optim.Optimizer = cls(groups, **hyperparameters)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"optimizer torch.optim.{cls.__name__} refuses its arguments: {error}") from error
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            raise UsageError("differentiable: must be false, the step runs in another process")
    return optimizer


def _read_weights(path: Path) -> dict[str, torch.Tensor]:
    if path.suffix != ".safetensors":
        raise UsageError(f"weights: must be a .safetensors file or a state dict, not {path.name!r}")
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"weights: {path} cannot be read: {error}") from error


def _some(names: list[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")
