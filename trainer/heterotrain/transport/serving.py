"""The server's side of one connection: who it is, then pushes and pulls until either end closes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from heterotrain.transport.base import MINIMUM_RATE_BYTES, PushKey, PushStatus, RefusedError, TensorStore
from heterotrain.transport.frames import (
    READ,
    Frame,
    FrameError,
    Hello,
    Pull,
    Push,
    Reply,
    Span,
    Status,
    decode_table,
    encode,
    table_bytes,
)
from heterotrain.transport.wire import Connection
from heterotrain_api.contract import Role
from heterotrain_rpc.identity import Identity

WAIT_SLICE_SECONDS: Final = 0.5
"""A waiting pull looks this often whether its peer is still there and the server still open."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server grants its peers."""

    connections: int = 1024
    """At once; further ones are closed when they come."""
    connections_per_peer: int = 8
    handshake_seconds: float = 10.0
    """From the connection to the end of the TLS handshake, and again to HELLO."""
    stall_seconds: float = 30.0
    """For each 512 KiB of a transfer, or the rest of it."""
    wait_seconds: float = 60.0
    """Longest wait of a pull; who asks for more gets NOT_YET after this and asks again."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A process that was let in. Workers push and pull, parameter servers only pull."""

    name: str
    role: Role
    ordinal: int
    incarnation: int
    term: int


def admit(identity: Identity, hello: Hello, job_uid: str, worker_ordinals: Callable[[str], int | None]) -> Peer:
    """Decide from the certificate and HELLO whom a connection belongs to; raises `RefusedError` with the reason."""
    if identity.job_uid != job_uid:
        raise RefusedError(f"{identity.uri} is of another job than {job_uid}")
    if hello.name != identity.name:
        raise RefusedError(f"HELLO names {hello.name!r}, the certificate {identity.name!r}")
    match identity.role:
        case Role.WORKER:
            ordinal = worker_ordinals(identity.name)
            if ordinal is None:
                raise RefusedError(f"worker {identity.name} is not among the workers of this shard")
            if ordinal != hello.ordinal:
                raise RefusedError(f"worker {identity.name} has ordinal {ordinal}, HELLO says {hello.ordinal}")
        case Role.PS:
            ordinal = -1
        case Role.OPERATOR:
            raise RefusedError(f"{identity.role.value} {identity.name} may not use the tensor transport")
    return Peer(identity.name, identity.role, ordinal, hello.incarnation, hello.term)


class Service:
    """Answers the requests of one admitted peer. Runs in the connection's own thread."""

    def __init__(
        self, store: TensorStore, connection: Connection, peer: Peer, limits: Limits, closing: Callable[[], bool]
    ) -> None:
        self._store = store
        self._connection = connection
        self._peer = peer
        self._limits = limits
        self._closing = closing

    def run(self) -> None:
        """Serve until the peer closes between two requests.

        Raises `RefusedError` and `FrameError` when the connection must end with that answer, `OSError` when it broke.
        """
        while not self._closing() and self._connection.wait_for_request():
            self._answer(self._connection.receive_frame(None))

    def _answer(self, frame: Frame) -> None:
        match frame:
            case Push():
                self._push(frame)
            case Pull():
                self._pull(frame)
            case _:
                raise FrameError(f"{type(frame).__name__} is not a request")

    def _push(self, push: Push) -> None:
        self._check_term(push.term)
        if self._peer.role is not Role.WORKER:
            raise RefusedError(f"{self._peer.role.value} {self._peer.name} may pull, but not push")
        # Without parts (a shard that holds nothing) the store is asked about the empty range, for its status.
        spans = self._spans(push)
        sources = self._connection.receive_sources(len(spans), None)
        key = PushKey(push.term, self._peer.ordinal, self._peer.incarnation, push.iteration)
        for span, source in zip(spans or (Span(0, 0),), sources or (None,), strict=True):
            status = self._receive(key, span, source)
        self._connection.send_frame(Reply(Status(status)), None)
        self._store.answered()

    def _receive(self, key: PushKey, span: Span, source: int | None) -> PushStatus:
        """`source`: where the range lies in the peer's memory; `None`: it is sent."""
        memory = self._store.reserve(key, span.offset, span.size)
        if memory is not None and memory.nbytes != span.size:
            raise AssertionError(f"the store gave {memory.nbytes} bytes for a range of {span.size}")
        if memory is not None:
            self._connection.fetch_into(memory, source, None)
        elif source is None:
            self._connection.discard(span.size, None)
        return self._store.received(key, span.offset, span.size)

    def _pull(self, pull: Pull) -> None:
        self._check_term(pull.term)
        spans = self._spans(pull)
        until = time.monotonic() + min(pull.wait_milliseconds / 1000, self._limits.wait_seconds)
        while not self._send_version(pull, spans, min(WAIT_SLICE_SECONDS, until - time.monotonic())):
            if time.monotonic() >= until:
                self._connection.send_frame(Reply(Status.NOT_YET), None)
                return
            if self._closing() or self._connection.readable():
                raise ConnectionError("the connection was closed while a pull waited")

    def _send_version(self, pull: Pull, spans: tuple[Span, ...], wait_seconds: float) -> bool:
        with self._store.snapshot(pull.term, pull.version, max(0.0, wait_seconds)) as snapshot:
            if snapshot is None:
                return False
            arena = snapshot.buffer
            for span in spans:
                if span.offset + span.size > arena.nbytes:
                    raise RefusedError(
                        f"range of {span.size} bytes at {span.offset} is outside the shard's {arena.nbytes} bytes"
                    )
            header = encode(Reply(Status.DONE, num_bytes=pull.num_bytes))
            parts = [arena[s.offset : s.offset + s.size] for s in spans]
            try:
                self._connection.send([header, *self._connection.payload(parts)], None)
                if self._connection.is_read:
                    self._connection.readable(pull.num_bytes / MINIMUM_RATE_BYTES)
                    self._connection.receive_bytes(len(READ), None)
            except BaseException:
                # The peer may be reading still: it must see that before the version's memory is used again.
                self._connection.abort()
                raise
            return True

    def _spans(self, request: Push | Pull) -> tuple[Span, ...]:
        table = self._connection.receive_bytes(table_bytes(request.num_parts), None)
        return decode_table(table, request.num_bytes)

    def _check_term(self, term: int) -> None:
        if term != self._peer.term:
            raise FrameError(f"request of term {term} on a connection of term {self._peer.term}")
