"""Past TLS between two processes of one machine: a Unix socket, for a peer that TLS has let in.

Cipher and records are most of what an exchange costs on one machine (`bench/transport.py`), and keep nothing from
anybody there: whoever could read a Unix socket's bytes could read the memory that they come from. So the server opens
one for each peer that it has welcomed, and tells it the name and a secret over TLS.

That both are on one machine is not guessed. The socket lies in Linux's abstract namespace, which no other machine, nor
a pod with a network of its own, can reach; and the client takes it only if the server sees it at the client's own
address, so that nothing stands between the two that shall carry, slow down or cut the connection. In any other case
the connection goes on over TLS.
"""

from __future__ import annotations

import secrets
import select
import socket
import sys
import time
from types import TracebackType
from typing import Final, Self

from heterotrain.transport.stream import PlainStream
from heterotrain.transport.wire import Connection, join_address

SECRET_BYTES: Final = 16
SECRET_SECONDS: Final = 1.0
"""For whoever connects to show the secret."""
BUFFER_BYTES: Final = 1 << 20
"""Asked for; the kernel gives what it allows."""


class LocalOffer:
    """The server's: a socket for one peer. Raises `OSError` if the machine has none to give."""

    def __init__(self, peer: str) -> None:
        """`peer`: its address as seen from here, ``host:port``."""
        name = f"heterotrain-{secrets.token_hex(16)}"
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self.text = f"{peer} {name} {self._secret.hex()}"
        """What the peer is told, over TLS."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"\0{name}")
        self._listener.listen(1)

    def accepted(self, connection: Connection) -> PlainStream | None:
        """Wait until the peer comes; `None` if it goes on by `connection` instead, or has left."""
        poll = select.poll()
        for waited_for in (self._listener, connection):
            poll.register(waited_for, select.POLLIN)
        # A peer that has come here closes the other connection: who waits here counts first.
        while self._listener.fileno() in dict(poll.poll(0 if connection.readable() else None)):
            sock, _ = self._listener.accept()
            stream = _tuned(sock)
            if _shows(stream, self._secret):
                return stream
            stream.close(0)
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.close()


def offer_to(sock: socket.socket) -> LocalOffer | None:
    """An offer to the peer of an accepted connection; `None` if it is on another machine for sure."""
    peer, own = sock.getpeername()[:2], sock.getsockname()[:2]
    if sys.platform != "linux" or peer[0] != own[0]:
        return None
    return LocalOffer(join_address(*peer))


def take(offer: str, own: str, timeout_seconds: float) -> PlainStream | None:
    """The client's: take what the server has offered, if both are on one machine. `own`: this end's address."""
    try:
        seen, name, secret = offer.split(" ")
        shown = bytes.fromhex(secret)
    except ValueError:
        return None
    if sys.platform != "linux" or seen != own:
        return None
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(timeout_seconds)
        sock.connect(f"\0{name}")
        sock.sendall(shown)
    except OSError:
        sock.close()
        return None
    return _tuned(sock)


def _shows(stream: PlainStream, secret: bytes) -> bool:
    shown = bytearray(len(secret))
    try:
        stream.receive_into(memoryview(shown), time.monotonic() + SECRET_SECONDS)
    except OSError:
        return False
    return secrets.compare_digest(shown, secret)


def _tuned(sock: socket.socket) -> PlainStream:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    return PlainStream(sock)
