"""Serves the app in the running event loop until cancelled: no signal handlers, no logging of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvicorn
from starlette.types import ASGIApp

GRACE_SECONDS: Final = 3
"""For requests at work when the server ends."""
KEEP_ALIVE_SECONDS: Final = 30
RELOAD_SECONDS: Final = 10.0
"""Between looks whether there is a new certificate."""
MAX_HEADER_BYTES: Final = 65_536
UNREAD_SECONDS: Final = 30.0
"""That a client may leave unread what was sent; then its connection is gone. Else it would be held for ever."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files of the server; read again when they change."""

    certificate: Path
    key: Path


async def serve(
    app: ASGIApp, host: str, port: int, tls: Tls | None = None, ready: Callable[[int], None] | None = None
) -> None:
    """Serve until cancelled; then watch streams end, requests finish within `GRACE_SECONDS`, and the port is free.

    `ready` is called with the port once connections are taken (`port` 0: any free one). Raises `OSError` if the
    address cannot be had and `ssl.SSLError` or `OSError` for files that are no certificate and key.
    """
    listener = bind(host, port)
    server = _Server(_configuration(app, tls))
    with listener:
        serving = asyncio.create_task(server.serve([listener]), name="REST API")
        reloading = asyncio.create_task(_reload(server.config, tls), name="certificate of the REST API")
        try:
            if ready is not None:
                ready(listener.getsockname()[1])
            await asyncio.shield(serving)
        finally:
            reloading.cancel()
            end_streams(app)
            server.should_exit = True
            await asyncio.wait([serving, reloading])


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named: only then does asyncio send small answers at once instead of waiting for the other side.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; connections inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_SECONDS * 1000))
        listener.bind((host, port))
        listener.listen(128)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def end_streams(app: ASGIApp) -> None:
    """Tell the app's watch streams to end."""
    closing = getattr(getattr(app, "state", None), "closing", None)
    if isinstance(closing, asyncio.Event):
        closing.set()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to whoever runs the loop."""
        yield


def _configuration(app: ASGIApp, tls: Tls | None) -> uvicorn.Config:
    configuration = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ssl_certfile=None if tls is None else tls.certificate,
        ssl_keyfile=None if tls is None else tls.key,
    )
    configuration.load()
    return configuration


async def _reload(configuration: uvicorn.Config, tls: Tls | None) -> None:
    """New connections get the new certificate; while files do not fit together the old one stays."""
    if tls is None or configuration.ssl is None:
        return
    seen = _times(tls)
    while True:
        await asyncio.sleep(RELOAD_SECONDS)
        times = _times(tls)
        if times != seen:
            try:
                configuration.ssl.load_cert_chain(tls.certificate, tls.key)
                seen = times
            except OSError:  # half written: looked at again
                continue


def _times(tls: Tls) -> tuple[float, ...]:
    try:
        return tuple(file.stat().st_mtime for file in (tls.certificate, tls.key))
    except OSError:
        return ()
