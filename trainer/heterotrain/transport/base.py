"""The tensor transport's interface: ranges of flat buffers between workers and shards, whatever carries them.

A shard's *arena* is one flat buffer (`heterotrain_core.layout`); a *part* is a byte range of it. Both ends lay the
arena out from the same manifest, so that only offsets and bytes travel and everything is received straight into place.

Ownership: the buffers given to `push` may be changed once it has returned; those given to `pull` hold the version
once it has returned `PullStatus.DONE`, and must not be read before.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol


class TransportError(Exception):
    """The connection broke or the peer answered out of protocol; it may be tried again (pushes are idempotent)."""


class RefusedError(Exception):
    """The peer refused for good (identity, term, range, model); trying again cannot help. Says why."""


@dataclass(frozen=True, slots=True)
class PushKey:
    """What a pushed range belongs to. `worker` is the ordinal; the connection fixes it and the incarnation."""

    term: int
    worker: int
    incarnation: int
    iteration: int


class PushStatus(IntEnum):
    """A shard's answer to a pushed part."""

    PARTIAL = 1
    """Stored; other ranges of this gradient are missing."""
    COMPLETE = 2
    """The gradient is whole and finite on this shard."""
    NOT_FINITE = 3
    """The gradient is whole and holds NaN or Inf: it will be discarded on all shards."""


class PullStatus(IntEnum):
    """A shard's answer to a pull."""

    DONE = 1
    NOT_YET = 2
    """The version did not appear within the wait asked for; ask again."""


@dataclass(frozen=True, slots=True)
class Part:
    """A byte range of a shard's arena, and the worker's memory for it (read by `push`, written by `pull`)."""

    offset: int
    buffer: memoryview
    """Flat, format "B", contiguous."""


MINIMUM_RATE_BYTES: Final = 1_000_000
"""Per second; a transfer slower than this, beside what an end waits for in any case, counts as broken."""

INITIAL_ITERATION = -1
"""`PushKey.iteration` of the initial values (the whole arena, frozen tensors included)."""


def capture_version(version: int) -> int:
    """What a pull names instead of a version to read a shard's copy of its whole state at `version`."""
    return -2 * version - 2


def file_version(file: int) -> int:
    """What a pull names instead of a version to read a file of the checkpoint that shard 0 restores from."""
    return -2 * file - 3


class TensorClient(Protocol):
    """A worker's connection to one shard. Not thread-safe: one thread at a time."""

    receive_seconds: float
    """Of the newest pull that gave a version: from when its answer began to arrive until all of it was there.

    The wait for the version to be published is not in it, whoever it was waited for.
    """

    def push(self, key: PushKey, parts: Sequence[Part], *, timeout_seconds: float) -> PushStatus:
        """Send parts of a gradient; returns the status after the last one.

        Raises `TransportError` (may be tried again), `RefusedError` (may not).
        """
        ...

    def pull(
        self, term: int, version: int, parts: Sequence[Part], *, wait_seconds: float, timeout_seconds: float
    ) -> PullStatus:
        """Receive parts of exactly `version`, waiting at the shard up to `wait_seconds` for it to be published.

        Raises `TransportError` (may be tried again), `RefusedError` (older term, version dropped, range outside).
        """
        ...

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        ...


class Snapshot(Protocol):
    """An immutable published version; `buffer` stays valid while the context is open."""

    @property
    def buffer(self) -> memoryview:
        """The whole arena of the shard, format "B"."""
        ...


class TensorStore(Protocol):
    """What a transport server needs of a shard. Called from many threads; raises `RefusedError` for what is refused."""

    def reserve(self, key: PushKey, offset: int, num_bytes: int) -> memoryview | None:
        """Memory that a pushed range is received into; `None`: already there, receive and drop the bytes.

        Checks term, worker, iteration and range before any memory is given.
        """
        ...

    def received(self, key: PushKey, offset: int, num_bytes: int) -> PushStatus:
        """The range lies in the reserved memory as a whole (not called for a broken transfer)."""
        ...

    def answered(self) -> None:
        """A push has had its answer: what can be done now keeps nobody waiting."""
        ...

    def snapshot(self, term: int, version: int, wait_seconds: float) -> AbstractContextManager[Snapshot | None]:
        """Hold a version for reading; `None` if it was not published within `wait_seconds`."""
        ...
