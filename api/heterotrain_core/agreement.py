"""Whether workers agree: on the model (manifests) and on the hyperparameters of a round. Pure; differences in words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heterotrain_core.layout import TensorSpec, make_layout
from heterotrain_core.run_events import Done
from heterotrain_core.run_values import Clip, Manifest


def manifest_fault(manifest: Manifest) -> str | None:
    """What is wrong with a manifest by itself; `None`: nothing."""
    try:
        make_layout(manifest.tensors, 1)
        groups = [_hyperparameters(g) for g in manifest.groups]
    except ValueError as error:
        return str(error)
    if manifest.dataset_size < 1:
        return f"the data set has {manifest.dataset_size} samples; it needs at least one"
    if manifest.smallest_batch < 1:
        return f"the smallest batch is {manifest.smallest_batch}; it must be at least one sample"
    for tensor in manifest.tensors:
        if tensor.group >= len(groups):
            return f"tensor `{tensor.name}` is of parameter group {tensor.group}, but there are {len(groups)}"
    return None


def manifest_difference(ours: Manifest, theirs: Manifest) -> str | None:
    """The first difference of `theirs` from the agreed model; `None` if they match.

    Values of hyperparameters may differ (a warm-started schedule); only their names must be the same.
    """
    tensors = _tensors_difference(ours.tensors, theirs.tensors)
    if tensors is not None:
        return tensors
    if ours.optimizer != theirs.optimizer:
        return f"optimizer {theirs.optimizer} instead of {ours.optimizer}"
    if len(ours.groups) != len(theirs.groups):
        return f"{len(theirs.groups)} parameter groups instead of {len(ours.groups)}"
    for index, (a_text, b_text) in enumerate(zip(ours.groups, theirs.groups, strict=True)):
        keys = sorted(_hyperparameters(a_text).keys() ^ _hyperparameters(b_text).keys())
        if keys:
            return f"parameter group {index}: only one of the two has the hyperparameter `{keys[0]}`"
    if ours.dataset_size != theirs.dataset_size:
        return f"a data set of {theirs.dataset_size} samples instead of {ours.dataset_size}"
    return None


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """What a commit's optimizer step uses."""

    groups: tuple[str, ...]
    clip: Clip | None


def settle(dones: Sequence[Done]) -> RoundSettings:
    """Hyperparameters and clipping of a commit of these gradients, in worker order; there is at least one.

    The newest base version, then the lowest worker, wins (a mixed commit); gradients of one base version must agree.
    Raises `ValueError` that names workers and key if they do not.
    """
    for done in dones:
        if done.clip is not None and not (done.clip.norm_type > 0 and done.clip.max_norm >= 0):
            raise ValueError(
                f"worker {done.worker} clips {_clip_text(done.clip)}: norm_type must be above 0 and max_norm at least 0"
            )
    newest = max(d.base_version for d in dones)
    first = next(d for d in dones if d.base_version == newest)
    for other in dones:
        if other.base_version == newest and (other.groups, other.clip) != (first.groups, first.clip):
            difference = _settings_difference(first, other)
            if difference is not None:
                raise ValueError(difference)
    return RoundSettings(first.groups, first.clip)


def common_absent(dones: Sequence[Done]) -> tuple[int, ...]:
    """Parameters that none of these gradients has; ascending."""
    if not dones:
        return ()
    return tuple(sorted(frozenset.intersection(*(d.absent for d in dones))))


def _tensors_difference(ours: Sequence[TensorSpec], theirs: Sequence[TensorSpec]) -> str | None:
    for a, b in zip(ours, theirs, strict=False):
        if a != b:
            return _tensor_difference(a, b)
    n, m = len(ours), len(theirs)
    if n == m:
        return None
    extra = (ours if n > m else theirs)[min(n, m)].name
    return f"{m} tensors instead of {n}: `{extra}` is {'missing' if n > m else 'new'}"


def _tensor_difference(ours: TensorSpec, theirs: TensorSpec) -> str:
    if ours.name != theirs.name:
        return f"tensor `{theirs.name}` where `{ours.name}` is expected"
    if ours.shape != theirs.shape:
        return f"tensor `{ours.name}` has shape {theirs.shape} instead of {ours.shape}"
    if ours.dtype != theirs.dtype:
        return f"tensor `{ours.name}` has dtype {theirs.dtype} instead of {ours.dtype}"
    if ours.kind is not theirs.kind:
        return f"tensor `{ours.name}` is a {theirs.kind.name} instead of a {ours.kind.name}"
    if ours.aliases != theirs.aliases:
        return f"tensor `{ours.name}` is tied to {_names(theirs.aliases)} instead of {_names(ours.aliases)}"
    return f"tensor `{ours.name}` is in parameter group {theirs.group} instead of {ours.group}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "no other"


def _settings_difference(first: Done, other: Done) -> str | None:
    if first.clip != other.clip:
        return f"worker {other.worker} clips {_clip_text(other.clip)}, worker {first.worker} {_clip_text(first.clip)}"
    if len(first.groups) != len(other.groups):
        return (
            f"worker {other.worker} has {len(other.groups)} parameter groups, worker {first.worker} {len(first.groups)}"
        )
    for index, (a_text, b_text) in enumerate(zip(first.groups, other.groups, strict=True)):
        a, b = _hyperparameters(a_text), _hyperparameters(b_text)
        for key in sorted(a.keys() | b.keys()):
            # `repr` tells NaN apart from nothing and lets NaN equal itself.
            mine, yours = repr(a.get(key)), repr(b.get(key))
            if mine != yours:
                return (
                    f"`{key}` of parameter group {index} is {yours} at worker {other.worker} and {mine} at worker "
                    f"{first.worker}: every worker must set the same value in the same round"
                )
    return None


def _clip_text(clip: Clip | None) -> str:
    return "no norm" if clip is None else f"the {clip.norm_type:g}-norm to {clip.max_norm:g}"


def _hyperparameters(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ValueError(f"hyperparameters must be a JSON object: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"hyperparameters must be a JSON object, not {text[:40]!r}")  # noqa: TRY004  # a user's value
    return values
