"""What carries a connection's bytes: the part that TLS (`tls_stream`) and plain sockets have in common, and the latter.

Plain ones are for two processes of one machine alone (`local_socket`).
"""

from __future__ import annotations

import select
import socket
import time
from abc import ABC, abstractmethod
from typing import Final

from heterotrain.transport.process_memory import PeerMemory, meet

STEP_BYTES: Final = 1 << 19
"""Smaller steps wake the other end more often than they keep both busy, larger ones leave the cache."""
LINGER_SECONDS: Final = 5.0


class Stream(ABC):
    """One end of a connection. One thread at a time, but `abort` may be called from any.

    Every call that moves bytes has a time `until` (monotonic) and raises `OSError`: `TimeoutError` after it,
    `ConnectionError` if the peer closed.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.peer_memory: PeerMemory | None = None
        """Where tensors of the other end are read by this one, instead of being sent."""
        self.is_read = False
        """The other end reads tensors where they lie in this process."""

    @abstractmethod
    def send(self, piece: memoryview, until: float) -> None:
        """Send all of `piece`, at best `STEP_BYTES`."""

    @abstractmethod
    def receive_into(self, view: memoryview, until: float) -> None:
        """Fill all of `view`."""

    @abstractmethod
    def pending(self) -> bool:
        """Whether something that the peer sent is already here, in this process."""

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

    def is_shut(self) -> bool:
        """Whether the connection is shut down, by whichever end, whatever is still to be received."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return bool(poll.poll(0))

    def fileno(self) -> int:
        """Of the socket, to wait for it among others."""
        return self._socket.fileno()

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
        dropped = bytearray(min(num_bytes, STEP_BYTES))
        try:
            sock.shutdown(socket.SHUT_WR)
            until = time.monotonic() + LINGER_SECONDS
            while num_bytes > 0:
                num_bytes -= self._receive_some(dropped, until)
        except OSError:
            return  # the peer is gone: nobody to wait for

    def _receive_some(self, buffer: bytearray | memoryview, until: float) -> int:
        """Receive what the kernel has, at least one byte, into the beginning of `buffer`; how many."""
        self._set_timeout(until)
        count = self._socket.recv_into(buffer)
        if count == 0:
            raise ConnectionError("the peer closed the connection in the middle of a transfer")
        return count

    def _set_timeout(self, until: float) -> None:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the peer is too slow, or gone")
        self._socket.settimeout(left)


class PlainStream(Stream):
    """A socket's bytes as they are."""

    def meet(self, until: float, *, willing: bool = True) -> None:
        """Find out, with the other end, who can read whose memory (see `process_memory.meet`)."""
        self.peer_memory, self.is_read = meet(self, self._socket, until, willing=willing)

    def close(self, linger_bytes: int) -> None:
        """Shut down, then close: a process that was forked from this one may hold the socket open."""
        if not linger_bytes:
            self.abort()
        super().close(linger_bytes)

    def send(self, piece: memoryview, until: float) -> None:
        """Send all of `piece`."""
        self._set_timeout(until)
        self._socket.sendall(piece)

    def receive_into(self, view: memoryview, until: float) -> None:
        """Fill all of `view`."""
        got = 0
        while got < len(view):
            got += self._receive_some(view[got:], until)

    def pending(self) -> bool:
        """Never: whatever comes is in the kernel until it is received."""
        return False
