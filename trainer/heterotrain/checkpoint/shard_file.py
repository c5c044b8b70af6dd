"""The files of a checkpoint: safetensors, one a shard, each tensor's piece with the optimizer's state for it. Pure.

Entries are ``value/<tensor>`` and ``state/<key>/<tensor>``, flat: the elements from `Header.starts` of the tensor on. A
state without dimensions (a step count) belongs to the whole tensor. https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from heterotrain_core.layout import DTYPE_BYTES

LENGTH: Final = struct.Struct("<Q")
LARGEST_HEADER_BYTES: Final = 100_000_000
"""As the format's own reader allows."""


class Entry(NamedTuple):
    """One tensor of a file. `begin` and `end`: bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """What a file holds."""

    entries: Mapping[str, Entry]
    starts: Mapping[str, int]
    """First element of each tensor's piece, by the tensor's name."""

    def state_keys(self) -> dict[str, list[str]]:
        """Names of the optimizer's state, by tensor."""
        keys: dict[str, list[str]] = {}
        for name in self.entries:
            kind, _, rest = name.partition("/")
            key, _, tensor = rest.partition("/")
            if kind == "state":
                keys.setdefault(tensor, []).append(key)
        return keys


def value_name(tensor: str) -> str:
    """Entry of a tensor's values."""
    return f"value/{tensor}"


def state_name(key: str, tensor: str) -> str:
    """Entry of the optimizer's state `key` for a tensor."""
    return f"state/{key}/{tensor}"


def encode_entries(entries: Mapping[str, object]) -> bytes:
    """What precedes the tensors in a safetensors file: the length, then `entries` as JSON, padded to 8 bytes."""
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return LENGTH.pack(len(text)) + text


def encode_header(
    tensors: Sequence[tuple[str, str, tuple[int, ...]]], starts: Mapping[str, int]
) -> tuple[bytes, Header]:
    """The bytes before the tensors, and where each (name, dtype, shape) then lies: in the order given, without gaps.

    With the widest types first every tensor is aligned.
    """
    described: dict[str, Any] = {"__metadata__": {"format": "pt", "starts": json.dumps(dict(starts))}}
    sizes: list[tuple[str, str, tuple[int, ...], int]] = []
    offset = 0
    for name, dtype, shape in tensors:
        num_bytes = Entry(dtype, shape, 0, 0).num_elements * DTYPE_BYTES[dtype]
        described[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + num_bytes]}
        sizes.append((name, dtype, shape, offset))
        offset += num_bytes
    before = encode_entries(described)
    base = len(before)
    entries = {
        name: Entry(
            dtype, shape, base + begin, base + begin + Entry(dtype, shape, 0, 0).num_elements * DTYPE_BYTES[dtype]
        )
        for name, dtype, shape, begin in sizes
    }
    return before, Header(entries, dict(starts))


def header_bytes(first: bytes | bytearray | memoryview, file_bytes: int) -> int:
    """Length of the header's text, from the first 8 bytes of a file; raises `ValueError` if that cannot be."""
    if len(first) < LENGTH.size:
        raise ValueError("the file ends before its header")
    (length,) = LENGTH.unpack(first[: LENGTH.size])
    if length > min(LARGEST_HEADER_BYTES, file_bytes - LENGTH.size):
        raise ValueError(f"a header of {length} bytes in a file of {file_bytes}")
    return int(length)


def decode_header(text: bytes | bytearray | memoryview, file_bytes: int) -> Header:
    """Read a header's text; raises `ValueError` for one that describes no file of `file_bytes` bytes."""
    base = LENGTH.size + len(text)
    try:
        described = json.loads(bytes(text))
        starts = json.loads(described.pop("__metadata__")["starts"])
        entries = {str(name): _entry(value, base) for name, value in described.items()}
        header = Header(entries, {str(name): int(start) for name, start in starts.items()})
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not the header of a shard's file: {type(error).__name__} {error}") from error
    for name, entry in entries.items():
        size = entry.num_elements * DTYPE_BYTES[entry.dtype]
        if any(n < 0 for n in entry.shape) or entry.end - entry.begin != size:
            raise ValueError(f"`{name}` has {entry.end - entry.begin} bytes, its shape and type need {size}")
        if not base <= entry.begin <= entry.end <= file_bytes:
            raise ValueError(f"`{name}` lies outside the file")
    return header


def _entry(value: Any, base: int) -> Entry:
    begin, end = value["data_offsets"]
    if value["dtype"] not in DTYPE_BYTES:
        raise ValueError(f"unknown type {value['dtype']!r}")
    return Entry(str(value["dtype"]), tuple(map(int, value["shape"])), base + int(begin), base + int(end))
