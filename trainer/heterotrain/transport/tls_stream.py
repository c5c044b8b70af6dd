"""TLS over a socket in large steps: the cipher works on memory, the socket moves many records a call.

`ssl.SSLSocket` reads each record of 16 KiB with two system calls of its own and writes it with another. Here a receive
takes whatever the kernel has, up to `STEP_BYTES`, and a send hands over as much at once: two more copies, but inside
the processor's cache, for a fraction of the system calls and of the switches between sender and receiver
(`bench/transport.py`, *TLS socket* beside *heterotrain*). It also keeps plain socket calls apart from TLS: an
interrupted reader can never go on in plain text.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import Any

from heterotrain.transport.stream import STEP_BYTES, Stream


class TlsStream(Stream):
    """One end of a TLS connection. Calls also raise `ssl.SSLError` if the peer does not speak TLS or is not trusted."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_hostname: str | None = None) -> None:
        """`server_hostname`: the name to verify the server by; `None` on the server."""
        super().__init__(sock)
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

    def _flush(self, until: float) -> None:
        if self._outgoing.pending:
            self._set_timeout(until)
            self._socket.sendall(self._outgoing.read())

    def _fill(self, until: float) -> None:
        count = self._receive_some(self._step, until)
        self._incoming.write(self._step[:count])
