"""Frames of the tensor transport: fixed-size headers, little endian, checked before anything is made of them.

Every header has 48 bytes: magic, protocol version, kind and the length of a text (8 bytes), then fields of the kind,
zeros to the end. The order on a connection:

    client  HELLO name                             server  REPLY
    client  PUSH  table, bytes of all parts        server  REPLY status
    client  PULL  table                            server  REPLY status, bytes of all parts if DONE

A table is one (offset, size) of 8 bytes each per part. The server may answer a PUSH before it has all its bytes only
to refuse it; the client then stops and closes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from heterotrain_api.contract import PROTOCOL_VERSION

HEADER_BYTES: Final = 48
MAX_PARTS: Final = 65_536
MAX_TEXT_BYTES: Final = 1_024
READ: Final = b"\1"
"""What a peer sends once it has read a version where it lies."""
MAX_OFFSET: Final = 1 << 48
"""No arena is larger; sums of offsets and sizes below it cannot overflow anywhere."""

_MAGIC: Final = b"HTNT"
_PREFIX: Final = struct.Struct("<4sBBH")
_HELLO: Final = struct.Struct("<iqq")
_PUSH: Final = struct.Struct("<qqIQ")
_PULL: Final = struct.Struct("<qqIQI")
_REPLY: Final = struct.Struct("<BQ")
_PART: Final = struct.Struct("<QQ")


class FrameError(ValueError):
    """The bytes are no frame of this protocol, or declare something impossible: the connection is of no more use."""


class Kind(IntEnum):
    """What a header announces."""

    HELLO = 1
    PUSH = 2
    PULL = 3
    REPLY = 4


class Status(IntEnum):
    """The server's answer. The first ones are `PushStatus`, the next `PullStatus`."""

    WELCOME = 0
    PARTIAL = 1
    COMPLETE = 2
    NOT_FINITE = 3
    DONE = 4
    NOT_YET = 5
    REFUSED = 6
    """Trying again cannot help; the text says why."""
    BROKEN = 7
    """The client broke the protocol; the text says how, the connection ends."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Who connects; `name` must be the certificate's."""

    name: str
    ordinal: int
    """The worker's; -1 for a parameter server."""
    incarnation: int
    term: int


@dataclass(frozen=True, slots=True)
class Push:
    """Announces parts of a gradient; the table follows."""

    term: int
    iteration: int
    num_parts: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Pull:
    """Asks for parts of a version; the table follows."""

    term: int
    version: int
    num_parts: int
    num_bytes: int
    wait_milliseconds: int


@dataclass(frozen=True, slots=True)
class Reply:
    """The server's answer; `num_bytes` follow it."""

    status: Status
    text: str = ""
    num_bytes: int = 0


Frame: TypeAlias = Hello | Push | Pull | Reply


@dataclass(frozen=True, slots=True)
class Span:
    """A byte range of a shard's arena."""

    offset: int
    size: int


def encode(frame: Frame) -> bytes:
    """Header and text of a frame. Raises `struct.error` for fields out of range, which is a mistake of the caller's."""
    text = b""
    match frame:
        case Hello(name, ordinal, incarnation, term):
            kind, body, text = Kind.HELLO, _HELLO.pack(ordinal, incarnation, term), name.encode()
        case Push(term, iteration, num_parts, num_bytes):
            kind, body = Kind.PUSH, _PUSH.pack(term, iteration, num_parts, num_bytes)
        case Pull(term, version, num_parts, num_bytes, wait_milliseconds):
            kind, body = Kind.PULL, _PULL.pack(term, version, num_parts, num_bytes, wait_milliseconds)
        case Reply(status, message, num_bytes):
            kind, body = Kind.REPLY, _REPLY.pack(status, num_bytes)
            text = message.encode()[:MAX_TEXT_BYTES]
    prefix = _PREFIX.pack(_MAGIC, PROTOCOL_VERSION, kind, len(text))
    return (prefix + body).ljust(HEADER_BYTES, b"\0") + text


def text_length(header: bytes | bytearray) -> int:
    """How many bytes of text follow a header. Raises `FrameError` if it is no header of this protocol version."""
    magic, protocol, _, length = _PREFIX.unpack_from(header)
    if magic != _MAGIC:
        raise FrameError("not a frame of the tensor protocol")
    if protocol != PROTOCOL_VERSION:
        raise FrameError(f"protocol version {protocol} is not {PROTOCOL_VERSION}, which this side speaks")
    if length > MAX_TEXT_BYTES:
        raise FrameError(f"a text of {length} bytes; at most {MAX_TEXT_BYTES} are allowed")
    return int(length)


def decode(header: bytes | bytearray, text: bytes | bytearray = b"") -> Frame:
    """The frame in a header of `HEADER_BYTES` and its text. Raises `FrameError` for what `encode` never makes."""
    text_length(header)
    kind, length = header[5], len(text)
    if kind not in {Kind.HELLO, Kind.REPLY} and length:
        raise FrameError(f"a frame of kind {kind} has no text")
    # A refusal's text may have been cut inside a character.
    string = bytes(text).decode("utf-8", errors="replace")
    at = _PREFIX.size
    match kind:
        case Kind.HELLO:
            ordinal, incarnation, term = _HELLO.unpack_from(header, at)
            return Hello(string, ordinal, incarnation, term)
        case Kind.PUSH:
            push = Push(*_PUSH.unpack_from(header, at))
            _check_counts(push.num_parts, push.num_bytes)
            return push
        case Kind.PULL:
            pull = Pull(*_PULL.unpack_from(header, at))
            _check_counts(pull.num_parts, pull.num_bytes)
            return pull
        case Kind.REPLY:
            status, num_bytes = _REPLY.unpack_from(header, at)
            if status not in set(Status):
                raise FrameError(f"unknown status {status}")
            return Reply(Status(status), string, num_bytes)
        case _:
            raise FrameError(f"unknown kind of frame {kind}")


def encode_table(spans: Sequence[Span]) -> bytes:
    """The table of a request."""
    return b"".join(_PART.pack(span.offset, span.size) for span in spans)


def table_bytes(num_parts: int) -> int:
    """Size of a table."""
    return num_parts * _PART.size


def decode_table(table: bytes | bytearray, num_bytes: int) -> tuple[Span, ...]:
    """The parts of a request that declared `num_bytes`.

    Raises `FrameError` for empty parts, ranges beyond any arena, and another sum.
    """
    spans = tuple(Span(offset, size) for offset, size in _PART.iter_unpack(table))
    for span in spans:
        if span.size == 0:
            raise FrameError(f"an empty part at offset {span.offset}")
        if span.offset + span.size > MAX_OFFSET:
            raise FrameError(f"a part of {span.size} bytes at offset {span.offset}, beyond any arena")
    total = sum(span.size for span in spans)
    if total != num_bytes:
        raise FrameError(f"parts of {total} bytes together, {num_bytes} declared")
    return spans


def _check_counts(num_parts: int, num_bytes: int) -> None:
    if num_parts > MAX_PARTS:
        raise FrameError(f"{num_parts} parts; at most {MAX_PARTS} are allowed")
    if num_bytes > MAX_OFFSET:
        raise FrameError(f"{num_bytes} bytes declared, more than any arena has")
