"""TLS over a socket in large steps: the cipher works on memory, the socket moves many records a call.

`ssl.SSLSocket` reads each record of 16 KiB with two system calls of its own and writes it with another. Here a receive
takes whatever the kernel has, up to `STEP_BYTES`, and a send hands over as much at once: two more copies, but inside
the processor's cache, for a fraction of the system calls and of the switches between sender and receiver
(`bench/transport.py`, *TLS socket* beside *heterotrain*). It also keeps plain socket calls apart from TLS: an
interrupted reader can never go on in plain text.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Final

STEP_BYTES: Final = 1 << 19
"""Smaller steps wake the other end more often than they keep both busy, larger ones leave the cache."""
LINGER_SECONDS: Final = 5.0


class TlsStream:
    """One end of a TLS connection. One thread at a time, but `abort` may be called from any.

    Every call that moves bytes has a time `until` (monotonic) and raises `OSError`: `TimeoutError` after it,
    `ConnectionError` if the peer closed, `ssl.SSLError` if it does not speak TLS or is not trusted.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_hostname: str | None = None) -> None:
        """`server_hostname`: the name to verify the server by; `None` on the server."""
        self._socket = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_hostname is None, server_hostname=server_hostname
        )
        self._step = memoryview(bytearray(STEP_BYTES))

    def handshake(self, until: float) -> None:
        """Agree on keys and verify the peer."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush(until)
                self._fill(until)
            except ssl.SSLError:
                self._flush(until)  # tells the peer what is wrong
                raise
            else:
                self._flush(until)
                return

    def peer_certificate(self) -> bytes | None:
        """The peer's verified certificate, DER."""
        return self._tls.getpeercert(binary_form=True)

    def send(self, piece: memoryview, until: float) -> None:
        """Send all of `piece`, at best `STEP_BYTES`."""
        self._tls.write(piece)
        self._flush(until)

    def receive_into(self, view: memoryview, until: float) -> None:
        """Fill all of `view`."""
        # With a buffer it returns a count, which its type information does not know.
        read: Callable[[int, memoryview], Any] = self._tls.read
        got, size = 0, len(view)
        # At most one TLS record (16 KiB) a call: this loop is the transport's hot spot.
        while got < size:
            try:
                count = read(size - got, view[got:])
            except ssl.SSLWantReadError:
                self._fill(until)
                continue
            if count == 0:
                raise ConnectionError("the peer ended the connection in the middle of a transfer")
            got += count

    def pending(self) -> bool:
        """Whether something that the peer sent is already here."""
        return bool(self._incoming.pending or self._tls.pending())

    def readable(self, timeout_seconds: float | None) -> bool:
        """Whether the peer has sent something, or closed; waits up to `timeout_seconds` for it (`None`: for ever)."""
        if self.pending():
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(None if timeout_seconds is None else timeout_seconds * 1000))

    def closed_by_peer(self) -> bool:
        """Once it is readable: whether that is because the peer closed."""
        return not self.pending() and not self._socket.recv(1, socket.MSG_PEEK)

    def abort(self) -> None:
        """Make pending and further transfers of both ends fail, from any thread."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # already closed by the peer

    def close(self, linger_bytes: int) -> None:
        """Close. With `linger_bytes`, first drop that much of what the peer still sends, or for `LINGER_SECONDS`, so
        that it reads our last words rather than a reset.
        """
        with self._socket as sock:
            if linger_bytes:
                self._linger(sock, linger_bytes)

    def _linger(self, sock: socket.socket, num_bytes: int) -> None:
        try:
            sock.shutdown(socket.SHUT_WR)
            until = time.monotonic() + LINGER_SECONDS
            while num_bytes > 0:
                self._set_timeout(until)
                count = sock.recv_into(self._step)
                if count == 0:
                    return
                num_bytes -= count
        except OSError:
            return  # the peer is gone: nobody to wait for

    def _flush(self, until: float) -> None:
        if self._outgoing.pending:
            self._set_timeout(until)
            self._socket.sendall(self._outgoing.read())

    def _fill(self, until: float) -> None:
        self._set_timeout(until)
        count = self._socket.recv_into(self._step)
        if count == 0:
            raise ConnectionError("the peer closed the connection in the middle of a transfer")
        self._incoming.write(self._step[:count])

    def _set_timeout(self, until: float) -> None:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the peer is too slow, or gone")
        self._socket.settimeout(left)
