"""A TCP proxy that breaks or stalls a connection at a chosen byte, for scheduled faults."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from enum import Enum


class Fault(Enum):
    """What happens after the given number of bytes towards the server."""

    NONE = "pass everything"
    CUT = "close both sides"
    STALL = "pass nothing more, close nothing"


class Proxy:
    """Forwards to `target`. `plan`: a fault and the bytes before it, for each connection in turn, then none."""

    def __init__(self, target: tuple[str, int], plan: Sequence[tuple[Fault, int]]) -> None:
        self.fired: list[Fault] = []
        self.connections = 0
        self._target = target
        self._plan = list(plan)
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._spawn(self._accept)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (self._listener, *self._sockets):
            _shut(sock)
        for thread in self._threads:
            thread.join(5)
        for sock in (self._listener, *self._sockets):
            sock.close()

    def _spawn(self, target, *args) -> None:  # type: ignore[no-untyped-def]
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            self._sockets += [near, far]
            fault, limit = self._plan.pop(0) if self._plan else (Fault.NONE, 0)
            self.connections += 1
            self._spawn(self._pump, near, far, fault, limit)
            self._spawn(self._pump, far, near, Fault.NONE, 0)

    def _pump(self, source: socket.socket, sink: socket.socket, fault: Fault, left: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536 if fault is Fault.NONE else max(1, min(65536, left))):
                sink.sendall(data)
                left -= len(data)
                if fault is not Fault.NONE and left <= 0:
                    self.fired.append(fault)
                    if fault is Fault.STALL:
                        return
                    break
        _shut(source)
        _shut(sink)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
