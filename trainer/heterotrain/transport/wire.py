"""A TLS connection with deadlines: whole buffers in and out, no copies of large ones. Used by both ends.

A transfer goes in slices; each slice must be through within `stall_seconds`, so that a peer that stops, or trickles, is
given up, however large the whole is. TCP keep-alive finds peers whose machine is gone while nothing is sent.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from heterotrain.transport.frames import HEADER_BYTES, Frame, decode, encode, text_length

SLICE_BYTES: Final = 1 << 20
"""Larger writes gain nothing measurable; smaller ones take the interpreter's lock more often."""
SMALL_BYTES: Final = 1 << 14
"""Buffers below one TLS record are copied together, others are sent from where they are."""
LINGER_SECONDS: Final = 5.0


class Connection:
    """One end of a connection. One thread at a time, but `abort` may be called from any."""

    def __init__(self, sock: ssl.SSLSocket, stall_seconds: float) -> None:
        self._socket = sock
        self._stall_seconds = stall_seconds

    def handshake(self, timeout_seconds: float) -> None:
        """TLS handshake; raises `ssl.SSLError`, `OSError`."""
        self._socket.settimeout(timeout_seconds)
        self._socket.do_handshake()

    def peer_certificate(self) -> bytes | None:
        """The peer's verified certificate, DER."""
        return self._socket.getpeercert(binary_form=True)

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
            self._set_timeout(deadline)
            self._socket.sendall(piece)
        return True

    def send_frame(self, frame: Frame, deadline: float | None, *more: bytes) -> None:
        """Send a frame, and bytes that belong to it, at once. Raises as `send`."""
        self.send([b"".join((encode(frame), *more))], deadline)

    def receive_into(self, view: memoryview, deadline: float | None) -> None:
        """Fill `view`. Raises `OSError`: the connection broke, or no progress in time."""
        receive = self._socket.recv_into
        for start in range(0, len(view), SLICE_BYTES):
            piece = view[start : start + SLICE_BYTES]
            until = self._set_timeout(deadline)
            got, size = 0, len(piece)
            # At most one TLS record (16 KiB) a call: this loop is the transport's hot spot.
            while got < size:
                count = receive(piece[got:])
                if count == 0:
                    raise ConnectionError("the peer closed the connection in the middle of a transfer")
                got += count
                if got < size and time.monotonic() > until:
                    raise TimeoutError("the peer is too slow")

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

    def readable(self, timeout_seconds: float | None = 0.0) -> bool:
        """Whether the peer has sent something, or closed; waits up to `timeout_seconds` for it (`None`: for ever)."""
        if self._socket.pending():
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(None if timeout_seconds is None else timeout_seconds * 1000))

    def wait_for_request(self) -> bool:
        """Wait, for ever, for the peer's next frame to begin; False: it closed the connection instead."""
        self.readable(None)
        if self._socket.pending():
            return True
        # Below TLS, where a peek is possible; the descriptor is in non-blocking mode (it has a timeout) and readable.
        return bool(socket.socket.recv(self._socket, 1, socket.MSG_PEEK))

    def abort(self) -> None:
        """Make pending and further transfers of both ends fail, from any thread."""
        # Not SSLSocket.shutdown: that would let a thread that is reading go on in plain text.
        try:
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:
            return  # already closed by the peer

    def close(self, linger_bytes: int = 0) -> None:
        """Close. With `linger_bytes`, first drop that much of what the peer is still sending, so that it reads our last
        words rather than a reset.
        """
        with self._socket as sock:
            if linger_bytes:
                _linger(sock, linger_bytes)

    def _set_timeout(self, deadline: float | None) -> float:
        now = time.monotonic()
        until = now + self._stall_seconds
        if deadline is not None:
            until = min(until, deadline)
        if until <= now:
            raise TimeoutError("out of time")
        self._socket.settimeout(until - now)
        return until


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


def _linger(sock: ssl.SSLSocket, num_bytes: int) -> None:
    try:
        socket.socket.shutdown(sock, socket.SHUT_WR)
        until = time.monotonic() + LINGER_SECONDS
        while num_bytes > 0 and (left := until - time.monotonic()) > 0:
            sock.settimeout(left)
            # Below TLS: after a failed handshake there is nothing to decrypt with.
            count = len(socket.socket.recv(sock, min(num_bytes, SLICE_BYTES)))
            if count == 0:
                return
            num_bytes -= count
    except OSError:
        return  # the peer is gone: nobody to wait for
