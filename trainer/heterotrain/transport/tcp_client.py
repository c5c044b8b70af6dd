"""The tensor transport's client: one connection to one shard, made at the first call and again after it broke."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from heterotrain.transport.base import Part, PullStatus, PushKey, PushStatus, RefusedError, TransportError
from heterotrain.transport.frames import (
    MAX_PARTS,
    READ,
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
from heterotrain.transport.local_socket import take
from heterotrain.transport.tls import client_context
from heterotrain.transport.tls_stream import TlsStream
from heterotrain.transport.wire import Connection, join_address, split_address, tune
from heterotrain_rpc.identity import dns_name

_CERTIFICATE_ALERTS: Final = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "DECRYPT_ERROR", "PROTOCOL_VERSION")
_PUSH_STATUS: Final = {
    Status.PARTIAL: PushStatus.PARTIAL,
    Status.COMPLETE: PushStatus.COMPLETE,
    Status.NOT_FINITE: PushStatus.NOT_FINITE,
}


class TcpTensorClient:
    """A `TensorClient` to the shard `server_name` (``ps-0``) at `address` (``host:port``).

    `hello` says who calls: `hello.name` must be the name in the certificate in the folder `credentials`, which is read
    at each connection. `stall_seconds` bounds each 512 KiB of a transfer, `connect_seconds` the way to the shard's
    welcome. Without `in_memory` tensors are sent even where the other end could read them.
    """

    def __init__(
        self,
        address: str,
        server_name: str,
        credentials: Path,
        hello: Hello,
        *,
        stall_seconds: float = 30.0,
        connect_seconds: float = 10.0,
        in_memory: bool = True,
    ) -> None:
        self._host, self._port = split_address(address)
        self._server_name = server_name
        self._credentials = credentials
        self._hello = hello
        self._stall_seconds = stall_seconds
        self._connect_seconds = connect_seconds
        self._connection: Connection | None = None
        self._aborted = threading.Event()
        self._answered = 0.0
        """When the newest answer began to arrive."""
        self.receive_seconds = 0.0
        self._in_memory = in_memory
        self._tries_memory = in_memory
        """The next connection shall read and be read where both ends can."""

    def push(self, key: PushKey, parts: Sequence[Part], *, timeout_seconds: float) -> PushStatus:
        """Send parts of a gradient (empty ones are left out); see `TensorClient.push`."""
        hello = self._hello
        if (key.term, key.worker, key.incarnation) != (hello.term, hello.ordinal, hello.incarnation):
            raise ValueError(f"{key} does not belong to this connection, which is of {hello}")
        parts, spans, num_bytes = _checked(parts, writable=False)
        request = encode(Push(key.term, key.iteration, len(spans), num_bytes)) + encode_table(spans)
        deadline = time.monotonic() + timeout_seconds
        with self._connected(deadline) as connection:
            # A shard that refuses says so at once; the rest of the gradient need not travel.
            payload = connection.payload([p.buffer for p in parts])
            connection.send([request, *payload], deadline, interrupted=connection.readable)
            reply = self._reply(connection, deadline)
            if reply.status not in _PUSH_STATUS or reply.num_bytes:
                raise TransportError(f"{self._server_name} answered a push with {reply.status.name}")
            return _PUSH_STATUS[reply.status]

    def pull(
        self, term: int, version: int, parts: Sequence[Part], *, wait_seconds: float, timeout_seconds: float
    ) -> PullStatus:
        """Receive parts of exactly `version` (empty ones are left out); see `TensorClient.pull`."""
        if term != self._hello.term:
            raise ValueError(f"term {term} does not belong to this connection, which is of {self._hello}")
        parts, spans, num_bytes = _checked(parts, writable=True)
        wait_milliseconds = max(0, min(round(wait_seconds * 1000), (1 << 32) - 1))
        request = encode(Pull(term, version, len(spans), num_bytes, wait_milliseconds)) + encode_table(spans)
        deadline = time.monotonic() + timeout_seconds
        with self._connected(deadline) as connection:
            connection.send([request], deadline)
            reply = self._reply(connection, deadline)
            if reply.status is Status.NOT_YET:
                return PullStatus.NOT_YET
            if reply.status is not Status.DONE or reply.num_bytes != num_bytes:
                raise TransportError(f"{self._server_name} answered a pull of {num_bytes} bytes with {reply}")
            self._receive(connection, parts, deadline)
            self.receive_seconds = time.monotonic() - self._answered
            return PullStatus.DONE

    @staticmethod
    def _receive(connection: Connection, parts: Sequence[Part], deadline: float) -> None:
        for part, source in zip(parts, connection.receive_sources(len(parts), deadline), strict=True):
            connection.fetch_into(part.buffer, source, deadline)
        if connection.reads:
            connection.send([READ], deadline)

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

    def __enter__(self) -> TcpTensorClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _connected(self, deadline: float) -> Iterator[Connection]:
        """A connection that is between two requests; it is closed if anything goes wrong in the middle of one."""
        self._aborted.clear()
        if self._connection is None:
            self._connection = self._connect(min(deadline, time.monotonic() + self._connect_seconds))
        try:
            if self._aborted.is_set():
                raise TransportError(f"connection to {self._where} was given up while it was made")
            yield self._connection
        except (OSError, FrameError) as error:
            # Some memory cannot be read by others (that of a device, for one): the next connection sends what it holds.
            # Once that one breaks as well, memory was not the reason.
            self._tries_memory = self._in_memory and not (self._connection is not None and self._connection.in_memory)
            self.close()
            raise TransportError(f"connection to {self._where} broke: {error or type(error).__name__}") from error
        except BaseException:
            self.close()
            raise

    @property
    def _where(self) -> str:
        return f"{self._server_name} at {self._host}:{self._port}"

    def _connect(self, deadline: float) -> Connection:
        try:
            context = client_context(self._credentials)
        except OSError as error:
            raise RefusedError(f"credentials in {self._credentials} cannot be used: {error}") from error
        try:
            raw = socket.create_connection((self._host, self._port), max(0.001, deadline - time.monotonic()))
        except OSError as error:
            raise TransportError(f"cannot reach {self._where}: {error}") from error
        tune(raw)
        tls = TlsStream(raw, context, dns_name(self._server_name))
        connection = Connection(tls, self._stall_seconds)
        try:
            tls.handshake(deadline)
            self._greet(connection, join_address(*raw.getsockname()[:2]), deadline)
        except BaseException as error:
            connection.close()
            if isinstance(error, ssl.SSLError) and _is_about_certificates(error):
                raise RefusedError(f"no trust between {self._hello.name} and {self._where}: {error}") from error
            if isinstance(error, OSError | FrameError):
                raise TransportError(f"cannot greet {self._where}: {error or type(error).__name__}") from error
            raise
        return connection

    def _greet(self, connection: Connection, own: str, deadline: float) -> None:
        connection.send_frame(self._hello, deadline)
        reply = self._reply(connection, deadline)
        if reply.status is not Status.WELCOME:
            raise TransportError(f"{self._where} answered HELLO with {reply.status.name}")
        local = take(reply.text, own, max(0.001, deadline - time.monotonic()))
        if local is not None:
            connection.go_on(local)
            local.meet(deadline, willing=self._tries_memory)

    def _reply(self, connection: Connection, deadline: float) -> Reply:
        if not connection.readable(max(0.0, deadline - time.monotonic())):
            raise TimeoutError("no answer in time")
        self._answered = time.monotonic()
        reply = connection.receive_frame(deadline)
        if not isinstance(reply, Reply):
            raise FrameError(f"{type(reply).__name__} is not an answer")
        if reply.status in {Status.REFUSED, Status.BROKEN}:
            raise RefusedError(f"{self._server_name} refused: {reply.text}")
        return reply


def _checked(parts: Sequence[Part], *, writable: bool) -> tuple[list[Part], list[Span], int]:
    kept = [part for part in parts if part.buffer.nbytes]
    if len(kept) > MAX_PARTS:
        raise ValueError(f"{len(kept)} parts in one call; at most {MAX_PARTS} are allowed")
    for part in kept:
        buffer = part.buffer
        if buffer.format != "B" or buffer.ndim != 1 or not buffer.c_contiguous or (writable and buffer.readonly):
            raise ValueError(f"the buffer of the part at {part.offset} must be flat bytes, writable for a pull")
    spans = [Span(part.offset, part.buffer.nbytes) for part in kept]
    return kept, spans, sum(span.size for span in spans)


def _is_about_certificates(error: ssl.SSLError) -> bool:
    if isinstance(error, ssl.SSLCertVerificationError):
        return True
    reason = error.reason or ""
    return "_ALERT_" in reason and any(word in reason for word in _CERTIFICATE_ALERTS)
