"""Frames and buffers over a stream, with deadlines. Used by both ends.

A transfer goes in slices; each slice must be through within `stall_seconds`, so that a peer that stops, or trickles, is
given up, however large the whole is. TCP keep-alive finds peers whose machine is gone while nothing is sent.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from heterotrain.transport.frames import HEADER_BYTES, Frame, decode, encode, text_length
from heterotrain.transport.process_memory import address_bytes, addresses, decode_addresses
from heterotrain.transport.stream import STEP_BYTES, Stream

SLICE_BYTES: Final = STEP_BYTES
SMALL_BYTES: Final = 1 << 14
"""Buffers below one TLS record are copied together, others are encrypted from where they are."""


class Connection:
    """One end of a connection. One thread at a time, but `abort` may be called from any."""

    def __init__(self, stream: Stream, stall_seconds: float) -> None:
        self._stream = stream
        self._stall_seconds = stall_seconds
        self._aborted = False

    def go_on(self, stream: Stream) -> None:
        """Use another stream to the same peer from here on, between two frames, and close this one."""
        before, self._stream = self._stream, stream
        if self._aborted:  # perhaps while `before` was still the one
            stream.abort()
        before.close(0)

    def send(
        self,
        buffers: Iterable[memoryview | bytes],
        deadline: float | None,
        interrupted: Callable[[], bool] | None = None,
    ) -> bool:
        """Send all buffers; False if `interrupted` said so between two slices. Raises `OSError`."""
        for piece in gathered(buffers):
            if interrupted is not None and interrupted():
                return False
            self._stream.send(piece, self._until(deadline))
        return True

    def send_frame(self, frame: Frame, deadline: float | None, *more: bytes) -> None:
        """Send a frame, and bytes that belong to it, at once. Raises as `send`."""
        self.send([b"".join((encode(frame), *more))], deadline)

    def receive_into(self, view: memoryview, deadline: float | None) -> None:
        """Fill `view`. Raises `OSError`: the connection broke, or no progress in time."""
        for start in range(0, len(view), SLICE_BYTES):
            self._stream.receive_into(view[start : start + SLICE_BYTES], self._until(deadline))

    def discard(self, num_bytes: int, deadline: float | None) -> None:
        """Receive bytes and drop them. Raises as `receive_into`."""
        scratch = memoryview(bytearray(min(num_bytes, SLICE_BYTES)))
        for start in range(0, num_bytes, SLICE_BYTES):
            self.receive_into(scratch[: min(SLICE_BYTES, num_bytes - start)], deadline)

    def receive_frame(self, deadline: float | None) -> Frame:
        """The next frame. Raises as `receive_into`, and `FrameError`."""
        header = bytearray(HEADER_BYTES)
        self.receive_into(memoryview(header), deadline)
        text = bytearray(text_length(header))
        self.receive_into(memoryview(text), deadline)
        return decode(header, text)

    def receive_bytes(self, num_bytes: int, deadline: float | None) -> bytearray:
        """Receive a small amount into new memory; the caller has checked `num_bytes`. Raises as `receive_into`."""
        received = bytearray(num_bytes)
        self.receive_into(memoryview(received), deadline)
        return received

    @property
    def is_read(self) -> bool:
        """The peer reads tensors where they lie in this process, from what `payload` gives in their place."""
        return self._stream.is_read

    @property
    def reads(self) -> bool:
        """Tensors of the peer are read where they lie there, instead of being received."""
        return self._stream.peer_memory is not None

    @property
    def in_memory(self) -> bool:
        """Tensors are read where they lie in at least one direction."""
        return self.is_read or self.reads

    def payload(self, buffers: Iterable[memoryview]) -> list[memoryview | bytes]:
        """What to send for buffers: themselves, or where they lie."""
        return [addresses(buffers)] if self.is_read else [*buffers]

    def receive_sources(self, count: int, deadline: float | None) -> Sequence[int | None]:
        """Where the peer's next buffers lie, what its `payload` told; `None` for each that is sent. Raises as
        `receive_into`.
        """
        if not self.reads:
            return [None] * count
        return decode_addresses(self.receive_bytes(address_bytes(count), deadline))

    def fetch_into(self, view: memoryview, source: int | None, deadline: float | None) -> None:
        """Fill `view` from what `receive_sources` gave for it. Raises as `receive_into` and `copy_into`."""
        if source is None:
            self.receive_into(view, deadline)
        else:
            self.copy_into(view, source)

    def copy_into(self, view: memoryview, address: int) -> None:
        """Fill `view` from the peer's memory. Raises `OSError`: it cannot be read, or the peer gave up meanwhile."""
        memory = self._stream.peer_memory
        assert memory is not None, "only if `reads`"  # noqa: S101 - our own order of calls
        memory.read_into(address, view)
        if self._stream.is_shut():
            raise ConnectionError("the peer closed the connection while its memory was read")

    def readable(self, timeout_seconds: float | None = 0.0) -> bool:
        """Whether the peer has sent something, or closed; waits up to `timeout_seconds` for it (`None`: for ever)."""
        return self._stream.readable(timeout_seconds)

    def wait_for_request(self) -> bool:
        """Wait, for ever, for the peer's next frame to begin; False: it closed the connection instead."""
        self._stream.readable(None)
        return not self._stream.closed_by_peer()

    def fileno(self) -> int:
        """Of the stream's socket, to wait for it among others."""
        return self._stream.fileno()

    def abort(self) -> None:
        """Make pending and further transfers of both ends fail, from any thread."""
        self._aborted = True
        self._stream.abort()

    def close(self, linger_bytes: int = 0) -> None:
        """Close; see `Stream.close`."""
        self._stream.close(linger_bytes)

    def _until(self, deadline: float | None) -> float:
        until = time.monotonic() + self._stall_seconds
        return until if deadline is None else min(until, deadline)


def gathered(buffers: Iterable[memoryview | bytes]) -> Iterator[memoryview]:
    """The same bytes in slices of at most `SLICE_BYTES`; small buffers side by side are copied into one."""
    small = bytearray()
    for buffer in buffers:
        if len(buffer) < SMALL_BYTES:
            small += buffer
            if len(small) < SLICE_BYTES // 4:
                continue
        if small:
            yield memoryview(small)
            small = bytearray()
        if len(buffer) >= SMALL_BYTES:
            view = memoryview(buffer)
            for start in range(0, len(view), SLICE_BYTES):
                yield view[start : start + SLICE_BYTES]
    if small:
        yield memoryview(small)


def tune(sock: socket.socket) -> None:
    """Options of every connection: no delay of small frames, and lost machines found within about a minute."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[IPv6]:port``; raises `ValueError`."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise ValueError(f"an address must be host:port or [IPv6]:port, not {address!r}")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """The inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
