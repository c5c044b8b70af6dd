"""How a model lies in flat memory and how it is spread over shards. Pure; computed alike by workers and shards.

The *global arena* holds all tensors in regions of one (kind, dtype) each, tensors of a region side by side in manifest
order. Every region is cut evenly by bytes over the shards (a tensor may be split), so that each shard's memory, link
and optimizer get the same load. A *shard arena* is the concatenation of the shard's cuts. All regions start at a
multiple of `ALIGNMENT` bytes, all cuts at a whole element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

ALIGNMENT = 64

DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


class TensorKind(IntEnum):
    """What happens to a tensor (numbers as in ``session.proto``)."""

    PARAMETER = 1
    FROZEN = 2
    FLOAT_BUFFER = 3
    INTEGER_BUFFER = 4


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of the manifest."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: TensorKind
    group: int = -1
    aliases: tuple[str, ...] = ()
    """Further names of the same tensor in the model's state dict (tied weights); it lies in memory once."""

    @property
    def num_elements(self) -> int:
        """Product of the shape; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Size in memory."""
        return self.num_elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Region:
    """Elements of one kind and dtype, in one arena. `offset` in bytes, `num_elements` in elements of `dtype`."""

    kind: TensorKind
    dtype: str
    offset: int
    num_elements: int

    @property
    def num_bytes(self) -> int:
        """Size without padding."""
        return self.num_elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Extent:
    """A byte range that lies whole in one shard and one region."""

    global_offset: int
    shard: int
    shard_offset: int
    num_bytes: int
    kind: TensorKind


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of one tensor that one shard holds; elements ``[start, stop)`` of the flattened tensor."""

    tensor: int
    start: int
    stop: int
    offset: int
    """In the shard's arena, bytes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where every tensor lies, globally and on each shard."""

    tensors: tuple[TensorSpec, ...]
    num_shards: int
    global_bytes: int
    tensor_offsets: tuple[int, ...]
    """Byte offset of each tensor in the global arena, in manifest order."""
    regions: tuple[Region, ...]
    """Of the global arena."""
    shard_bytes: tuple[int, ...]
    shard_regions: tuple[tuple[Region, ...], ...]
    """Of each shard's arena; regions without elements are kept, so that all shards list the same ones."""
    extents: tuple[Extent, ...]
    """In global order; they cover every region exactly."""
    pieces: tuple[tuple[Piece, ...], ...]
    """Of each shard, in the order of its arena; empty tensors have none."""

    def extents_of(self, shard: int, *, pushed: bool) -> tuple[Extent, ...]:
        """A shard's extents; with `pushed` only those that a gradient covers (all but frozen tensors)."""
        return tuple(e for e in self.extents if e.shard == shard and not (pushed and e.kind is TensorKind.FROZEN))


def make_layout(tensors: tuple[TensorSpec, ...], num_shards: int) -> Layout:
    """Lay `tensors` out over `num_shards` shards.

    Raises `ValueError` if there is no shard, a dtype is unknown, a size is negative, or a name appears twice.
    """
    _check(tensors, num_shards)
    order = sorted({(t.kind, t.dtype) for t in tensors})
    tensor_offsets = [0] * len(tensors)
    regions: list[Region] = []
    extents: list[Extent] = []
    shard_regions: list[list[Region]] = [[] for _ in range(num_shards)]
    pieces: list[list[Piece]] = [[] for _ in range(num_shards)]
    shard_bytes = [0] * num_shards
    end = 0
    for kind, dtype in order:
        size = DTYPE_BYTES[dtype]
        start = _aligned(end)
        members = [i for i, t in enumerate(tensors) if (t.kind, t.dtype) == (kind, dtype)]
        firsts: list[int] = []
        count = 0
        for i in members:
            tensor_offsets[i] = start + count * size
            firsts.append(count)
            count += tensors[i].num_elements
        regions.append(Region(kind, dtype, start, count))
        end = start + count * size
        for shard in range(num_shards):
            low, high = count * shard // num_shards, count * (shard + 1) // num_shards
            base = _aligned(shard_bytes[shard])
            shard_regions[shard].append(Region(kind, dtype, base, high - low))
            shard_bytes[shard] = base + (high - low) * size
            if high > low:
                extents.append(Extent(start + low * size, shard, base, (high - low) * size, kind))
            for first, i in zip(firsts, members, strict=True):
                a, b = max(low, first), min(high, first + tensors[i].num_elements)
                if b > a:
                    pieces[shard].append(Piece(i, a - first, b - first, base + (a - low) * size))
    return Layout(
        tensors=tensors,
        num_shards=num_shards,
        global_bytes=_aligned(end),
        tensor_offsets=tuple(tensor_offsets),
        regions=tuple(regions),
        shard_bytes=tuple(_aligned(n) for n in shard_bytes),
        shard_regions=tuple(tuple(r) for r in shard_regions),
        extents=tuple(extents),
        pieces=tuple(tuple(p) for p in pieces),
    )


def _check(tensors: tuple[TensorSpec, ...], num_shards: int) -> None:
    if num_shards < 1:
        raise ValueError(f"num_shards must be at least 1, not {num_shards}")
    names: set[str] = set()
    for tensor in tensors:
        if tensor.dtype not in DTYPE_BYTES:
            known = ", ".join(DTYPE_BYTES)
            raise ValueError(f"tensor `{tensor.name}`: dtype must be one of {known}, not {tensor.dtype}")
        if any(n < 0 for n in tensor.shape):
            raise ValueError(f"tensor `{tensor.name}`: shape must have no negative size, not {tensor.shape}")
        for name in (tensor.name, *tensor.aliases):
            if name in names:
                raise ValueError(f"tensor `{name}` appears twice")
            names.add(name)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
