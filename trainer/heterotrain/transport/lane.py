"""The client's side of one connection to a shard, made at the first call and again after it broke."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heterotrain.transport.base import Part, PullStatus, PushKey, PushStatus, RefusedError, TransportError
from heterotrain.transport.frames import (
    FrameError,
    Hello,
    Pull,
    Push,
    Reply,
    Span,
    Status,
    encode,
    encode_table,
)
from heterotrain.transport.tls import client_context
from heterotrain.transport.tls_stream import TlsStream
from heterotrain.transport.wire import Connection, split_address, tune
from heterotrain_rpc.identity import dns_name

_CERTIFICATE_ALERTS: Final = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "DECRYPT_ERROR", "PROTOCOL_VERSION")
_PUSH_STATUS: Final = {
    Status.PARTIAL: PushStatus.PARTIAL,
    Status.COMPLETE: PushStatus.COMPLETE,
    Status.NOT_FINITE: PushStatus.NOT_FINITE,
}


@dataclass(frozen=True, slots=True)
class Target:
    """Whom a lane connects to, as whom, and how long it waits."""

    address: str
    server_name: str
    credentials: Path
    hello: Hello
    stall_seconds: float
    connect_seconds: float

    def __str__(self) -> str:
        return f"{self.server_name} at {self.address}"


class Lane:
    """One connection to a shard. One thread at a time, but `abort` may be called from any."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._connection: Connection | None = None
        self._aborted = threading.Event()

    def push(self, key: PushKey, parts: Sequence[Part], deadline: float) -> PushStatus:
        """Send checked parts; see `TensorClient.push`."""
        spans, num_bytes = _spans(parts)
        request = encode(Push(key.term, key.iteration, len(spans), num_bytes)) + encode_table(spans)
        with self._connected(deadline) as connection:
            # A shard that refuses says so at once; the rest of the gradient need not travel.
            connection.send([request, *(p.buffer for p in parts)], deadline, interrupted=connection.readable)
            reply = self._reply(connection, deadline)
            if reply.status not in _PUSH_STATUS or reply.num_bytes:
                raise TransportError(f"{self._target} answered a push with {reply.status.name}")
            return _PUSH_STATUS[reply.status]

    def pull(self, term: int, version: int, parts: Sequence[Part], wait_seconds: float, deadline: float) -> PullStatus:
        """Receive checked parts; see `TensorClient.pull`."""
        spans, num_bytes = _spans(parts)
        wait_milliseconds = max(0, min(round(wait_seconds * 1000), (1 << 32) - 1))
        request = encode(Pull(term, version, len(spans), num_bytes, wait_milliseconds)) + encode_table(spans)
        with self._connected(deadline) as connection:
            connection.send([request], deadline)
            reply = self._reply(connection, deadline)
            if reply.status is Status.NOT_YET:
                return PullStatus.NOT_YET
            if reply.status is not Status.DONE or reply.num_bytes != num_bytes:
                raise TransportError(f"{self._target} answered a pull of {num_bytes} bytes with {reply}")
            for part in parts:
                connection.receive_into(part.buffer, deadline)
            return PullStatus.DONE

    def abort(self) -> None:
        """From any thread: make the call that is under way fail with `TransportError`."""
        self._aborted.set()
        connection = self._connection
        if connection is not None:
            connection.abort()

    def close(self) -> None:
        """Close the connection; safe to call twice. A later call connects again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _connected(self, deadline: float) -> Iterator[Connection]:
        """A connection that is between two requests; it is closed if anything goes wrong in the middle of one."""
        self._aborted.clear()
        if self._connection is None:
            self._connection = self._connect(min(deadline, time.monotonic() + self._target.connect_seconds))
        try:
            if self._aborted.is_set():
                raise TransportError(f"connection to {self._target} was given up while it was made")
            yield self._connection
        except (OSError, FrameError) as error:
            self.close()
            raise TransportError(f"connection to {self._target} broke: {error or type(error).__name__}") from error
        except BaseException:
            self.close()
            raise

    def _connect(self, deadline: float) -> Connection:
        try:
            context = client_context(self._target.credentials)
        except OSError as error:
            raise RefusedError(f"credentials in {self._target.credentials} cannot be used: {error}") from error
        try:
            raw = socket.create_connection(split_address(self._target.address), max(0.001, deadline - time.monotonic()))
        except OSError as error:
            raise TransportError(f"cannot reach {self._target}: {error}") from error
        tune(raw)
        connection = Connection(TlsStream(raw, context, dns_name(self._target.server_name)), self._target.stall_seconds)
        try:
            self._greet(connection, deadline)
        except BaseException as error:
            connection.close()
            if isinstance(error, ssl.SSLError) and _is_about_certificates(error):
                raise RefusedError(f"no trust between {self._target.hello.name} and {self._target}: {error}") from error
            if isinstance(error, OSError | FrameError):
                raise TransportError(f"cannot greet {self._target}: {error or type(error).__name__}") from error
            raise
        return connection

    def _greet(self, connection: Connection, deadline: float) -> None:
        connection.handshake(deadline)
        connection.send_frame(self._target.hello, deadline)
        reply = self._reply(connection, deadline)
        if reply.status is not Status.WELCOME:
            raise TransportError(f"{self._target} answered HELLO with {reply.status.name}")

    def _reply(self, connection: Connection, deadline: float) -> Reply:
        if not connection.readable(max(0.0, deadline - time.monotonic())):
            raise TimeoutError("no answer in time")
        reply = connection.receive_frame(deadline)
        if not isinstance(reply, Reply):
            raise FrameError(f"{type(reply).__name__} is not an answer")
        if reply.status in {Status.REFUSED, Status.BROKEN}:
            raise RefusedError(f"{self._target.server_name} refused: {reply.text}")
        return reply


def _spans(parts: Sequence[Part]) -> tuple[list[Span], int]:
    spans = [Span(part.offset, part.buffer.nbytes) for part in parts]
    return spans, sum(span.size for span in spans)


def _is_about_certificates(error: ssl.SSLError) -> bool:
    if isinstance(error, ssl.SSLCertVerificationError):
        return True
    reason = error.reason or ""
    return "_ALERT_" in reason and any(word in reason for word in _CERTIFICATE_ALERTS)
