"""Ports for servers whose port has to be known before they listen."""

from __future__ import annotations

import random
import socket

_reserved: list[socket.socket] = []


def free_port() -> int:
    """A port that nobody listens on, below those that the kernel gives to outgoing connections.

    Servers take seconds to listen. Until this process ends, nobody else gets the port from here: its namesake of UDP,
    which nobody uses, is held.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        reservation = socket.socket(type=socket.SOCK_DGRAM)
        try:
            reservation.bind(("127.0.0.1", port))
            with socket.create_server(("127.0.0.1", port)):
                _reserved.append(reservation)
                return port
        except OSError:
            reservation.close()
