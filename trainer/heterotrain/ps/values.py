"""What a shard is told, as values: the model it holds a part of, and the commits. Checked when made; no I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from heterotrain.ps.optimizer import check_optimizer, decode_group
from heterotrain_core.layout import TensorKind, TensorSpec

FLOAT_DTYPES: Final = frozenset({"F64", "F32", "F16", "BF16"})
MAXIMUM_BYTES: Final = 1 << 46
"""A model larger than 64 TiB is a mistake in a shape; refused before anything is computed from it."""

_DTYPES_OF_KIND: Final = {
    TensorKind.PARAMETER: FLOAT_DTYPES,
    TensorKind.FLOAT_BUFFER: FLOAT_DTYPES,
    TensorKind.INTEGER_BUFFER: frozenset({"I64", "I32", "I16", "I8", "U8", "BOOL"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSpec:
    """The model and this shard's place in it. Raises `ValueError` that names the field for what cannot be."""

    term: int
    shard: int
    num_shards: int
    tensors: tuple[TensorSpec, ...]
    optimizer: str
    groups: tuple[str, ...]
    """Hyperparameters of each parameter group at the start, a JSON object each."""
    workers: tuple[str, ...]
    """Names by ordinal."""

    def __post_init__(self) -> None:
        if not 0 <= self.shard < self.num_shards:
            raise ValueError(f"shard must be 0 to num_shards - 1 = {self.num_shards - 1}, not {self.shard}")
        if not self.workers:
            raise ValueError("workers must name at least one worker")
        check_optimizer(self.optimizer)
        for index, group in enumerate(self.groups):
            try:
                decode_group(self.optimizer, group)
            except ValueError as error:
                raise ValueError(f"groups[{index}]: {error}") from error
        for tensor in self.tensors:
            _check_tensor(tensor, len(self.groups))
        if sum(t.num_bytes for t in self.tensors) > MAXIMUM_BYTES:
            raise ValueError(f"the model's tensors have more than {MAXIMUM_BYTES} bytes")


def _check_tensor(tensor: TensorSpec, num_groups: int) -> None:
    for name in (tensor.name, *tensor.aliases):
        if not name or not name.isprintable():
            raise ValueError(f"tensor names must be printable and not empty, not {name!r}")
    if any(n < 0 or n > MAXIMUM_BYTES for n in tensor.shape):
        raise ValueError(f"tensor `{tensor.name}`: shape {tensor.shape} is out of bounds")
    allowed = _DTYPES_OF_KIND.get(tensor.kind)
    if allowed is not None and tensor.dtype not in allowed:
        raise ValueError(
            f"tensor `{tensor.name}`: dtype of a {tensor.kind.name} must be one of {', '.join(sorted(allowed))},"
            f" not {tensor.dtype}"
        )
    if tensor.kind is TensorKind.PARAMETER and not 0 <= tensor.group < num_groups:
        raise ValueError(f"tensor `{tensor.name}`: group must be 0 to {num_groups - 1}, not {tensor.group}")


@dataclass(frozen=True, slots=True, order=True)
class GradientName:
    """Whose gradient it is and of which iteration; ordered as gradients are summed."""

    worker: int
    incarnation: int
    iteration: int

    def __str__(self) -> str:
        return f"iteration {self.iteration} of worker {self.worker} (incarnation {self.incarnation})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOrder:
    """Make version ``version + 1`` out of `version`. Raises `ValueError` for what makes no sense."""

    term: int
    version: int
    contributions: tuple[tuple[GradientName, float], ...] = ()
    """Gradients and their weights, which sum to 1. None: only the version moves."""
    scale: float = 1.0
    """Multiplies the learning rates and the differences of float buffers."""
    groups: tuple[str, ...] = ()
    """Hyperparameters from now on; none: those of the commit before."""
    absent: frozenset[int] = frozenset()
    """Tensors that no contribution has a gradient for."""
    retain: frozenset[int] = frozenset()
    """Versions that must stay readable besides the new one."""
    clip_coefficient: float | None = None
    norm_type: float = 2.0
    discard: tuple[GradientName, ...] = ()
    """Gradients that will never be in a commit."""
    compensation: float = 0.0
    """Strength of the delay compensation of stale contributions (`stale`)."""

    @property
    def stale(self) -> tuple[GradientName, ...]:
        """Contributions that were computed on an older version, which is their iteration; in the order of summation."""
        return tuple(sorted(name for name, _ in self.contributions if name.iteration < self.version))

    def __post_init__(self) -> None:
        names = [name for name, _ in self.contributions]
        weights = [weight for _, weight in self.contributions]
        if len(set(names)) < len(names):
            raise ValueError(f"contributions must be different gradients, not {', '.join(map(str, names))}")
        if not all(0.0 <= w <= 1.0 for w in weights) or (weights and abs(math.fsum(weights) - 1.0) > 1e-9):
            raise ValueError(f"weights of contributions must be 0 to 1 and sum to 1, not {weights}")
        if not 0.0 <= self.scale <= 1e9:
            raise ValueError(f"scale must be a finite number of at least 0, not {self.scale}")
        if not 0.0 <= self.compensation <= 1e9:
            raise ValueError(f"compensation must be a finite number of at least 0, not {self.compensation}")
        if not self.norm_type > 0.0:
            raise ValueError(f"norm_type must be above 0 (infinity is allowed), not {self.norm_type}")
        if self.clip_coefficient is not None and not 0.0 <= self.clip_coefficient <= 1.0:
            raise ValueError(f"clip_coefficient must be 0 to 1, not {self.clip_coefficient}")
