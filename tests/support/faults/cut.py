"""A network cut: all that a worker says and hears goes through a relay that at some time stops, and closes nothing."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any


class Relay:
    """Forwards both ways between the worker and one peer, until `cut` is set."""

    def __init__(self, target: str, cut: threading.Event) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._cut = cut
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            if self._cut.is_set():
                _kept.append(near)  # it is let in, as by a network that drops packets, and hears nothing
                continue
            far = socket.create_connection(self._target)
            _kept.extend((near, far))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        while data := source.recv(1 << 16):
            if self._cut.is_set():
                return
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


_kept: list[socket.socket] = []
"""Not to be closed when nobody else holds them."""


def install(shards: Any, version: int, file: Path) -> None:
    """Have every connection of this process go through a relay; cut them before the push of iteration `version`."""
    import heterotrain.job as job

    cut = threading.Event()
    relays: dict[str, Relay] = {}

    def through(address: str) -> str:
        if address not in relays:
            relays[address] = Relay(address, cut)
        return relays[address].address

    make_channel, client = job.make_channel, job.TcpTensorClient
    job.make_channel = lambda address, *rest: make_channel(through(address), *rest)
    job.TcpTensorClient = lambda address, *rest: client(through(address), *rest)
    real = shards.push

    def push(self: Any, key: Any) -> Any:
        if key.iteration >= version and not cut.is_set():
            file.write_text(str(os.getpid()))
            cut.set()
        return real(self, key)

    shards.push = push
