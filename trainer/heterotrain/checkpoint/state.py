"""A shard's whole state as one file's content, and back, onto the same or another number of shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from heterotrain.checkpoint.shard_file import (
    LENGTH,
    Entry,
    Header,
    decode_header,
    encode_header,
    header_bytes,
    state_name,
    value_name,
)
from heterotrain.tensors import allocate, byte_view, dtype_name, elements, torch_dtype
from heterotrain_core.layout import DTYPE_BYTES, Piece, TensorSpec

State = Mapping[str, torch.Tensor]
"""Of one parameter piece: elementwise tensors (one dimension) and scalars (none), by the optimizer's own keys."""


class Source(Protocol):
    """The files of a checkpoint, wherever they are."""

    def read(self, file: int, offset: int, memory: memoryview) -> None:
        """Fill `memory` from the file's byte `offset` on. Raises what reading raises."""
        ...


@dataclass(frozen=True, slots=True)
class Held:
    """What a shard holds of one tensor, with the optimizer's state for it."""

    name: str
    dtype: str
    start: int
    values: torch.Tensor
    state: State


def held(
    tensors: Sequence[TensorSpec], pieces: Sequence[Piece], arena: torch.Tensor, states: Mapping[int, State]
) -> Iterator[Held]:
    """A shard's pieces as they lie in `arena`; `states` by the index of the tensor."""
    for piece in pieces:
        spec = tensors[piece.tensor]
        values = elements(arena, spec.dtype, piece.offset, piece.stop - piece.start)
        yield Held(spec.name, spec.dtype, piece.start, values, states.get(piece.tensor, {}))


def pack(parts: Sequence[Held]) -> memoryview:
    """Copy a shard's state into new memory, as the content of its file. Raises `MemoryError`."""
    tensors = [(value_name(part.name), part.values) for part in parts]
    tensors += [(state_name(key, part.name), tensor) for part in parts for key, tensor in part.state.items()]
    tensors.sort(key=lambda entry: -entry[1].element_size())
    head, header = encode_header(
        [(name, dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors],
        {part.name: part.start for part in parts},
    )
    end = max((entry.end for entry in header.entries.values()), default=len(head))
    memory = byte_view(allocate(end))
    memory[: len(head)] = head
    for name, tensor in tensors:
        entry = header.entries[name]
        # A scalar may be a view of something larger, or lie anywhere: contiguous() copies only then.
        memory[entry.begin : entry.end] = byte_view(tensor.contiguous())
    return memory


def read_header(source: Source, file: int, file_bytes: int) -> Header:
    """The header of a file; raises `ValueError` if it is none."""
    first = bytearray(LENGTH.size)
    if file_bytes >= len(first):
        source.read(file, 0, memoryview(first))
    text = bytearray(header_bytes(first, file_bytes))
    source.read(file, LENGTH.size, memoryview(text))
    return decode_header(text, file_bytes)


class Unpacker:
    """Takes the pieces of one shard out of a checkpoint's files, however many shards wrote them.

    Raises `ValueError` that names the tensor for what the files do not hold.
    """

    def __init__(self, source: Source, headers: Sequence[Header]) -> None:
        self._source = source
        self._headers = headers
        self._keys = [header.state_keys() for header in headers]

    def values(self, spec: TensorSpec, piece: Piece, arena: torch.Tensor) -> None:
        """Fill the piece's place in `arena`."""
        size = DTYPE_BYTES[spec.dtype]
        memory = byte_view(arena)[piece.offset : piece.offset + (piece.stop - piece.start) * size]
        self._fill(value_name(spec.name), spec.name, spec.dtype, piece, memory)

    def state(self, spec: TensorSpec, piece: Piece) -> dict[str, torch.Tensor]:
        """The optimizer's state for the piece; empty if it had none yet."""
        holders = [
            (file, keys[spec.name])
            for file, keys in enumerate(self._keys)
            if spec.name in keys and self._overlap(file, spec.name, piece)
        ]
        return {key: self._state(spec, piece, holders[0][0], key) for key in (holders[0][1] if holders else ())}

    def _state(self, spec: TensorSpec, piece: Piece, file: int, key: str) -> torch.Tensor:
        name = state_name(key, spec.name)
        entry = self._headers[file].entries[name]
        num_elements = piece.stop - piece.start if entry.shape else 1
        size = DTYPE_BYTES[entry.dtype]
        # Memory of its own: a checkpoint's optimizer state outlives whatever it was read from.
        memory = torch.empty(num_elements * size, dtype=torch.uint8)
        if entry.shape:
            self._fill(name, spec.name, entry.dtype, piece, byte_view(memory))
        else:
            self._source.read(file, entry.begin, byte_view(memory))
        tensor = memory.view(torch_dtype(entry.dtype))
        return tensor if entry.shape else tensor.reshape(())

    def _fill(self, name: str, tensor: str, dtype: str, piece: Piece, memory: memoryview) -> None:
        size, filled = DTYPE_BYTES[dtype], 0
        for file, header in enumerate(self._headers):
            entry = header.entries.get(name)
            if entry is None:
                continue
            if entry.dtype != dtype:
                raise ValueError(f"`{name}` has type {entry.dtype} in the checkpoint, {dtype} is needed")
            begin = header.starts[tensor]
            low, high = max(piece.start, begin), min(piece.stop, begin + entry.num_elements)
            if low < high:
                target = memory[(low - piece.start) * size : (high - piece.start) * size]
                self._source.read(file, entry.begin + (low - begin) * size, target)
                filled += high - low
        if filled != piece.stop - piece.start:
            raise ValueError(f"the checkpoint holds {filled} of {piece.stop - piece.start} elements of `{name}`")

    def _overlap(self, file: int, tensor: str, piece: Piece) -> bool:
        header = self._headers[file]
        entry: Entry | None = header.entries.get(value_name(tensor))
        if entry is None:
            return False
        begin = header.starts[tensor]
        return max(piece.start, begin) < min(piece.stop, begin + entry.num_elements)
