"""The tensor transport's server: accepts connections, one thread each."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from heterotrain.transport.base import RefusedError, TensorStore
from heterotrain.transport.frames import FrameError, Hello, Reply, Status
from heterotrain.transport.local_socket import offer_to
from heterotrain.transport.serving import Limits, Peer, Service, admit
from heterotrain.transport.tls import server_context
from heterotrain.transport.tls_stream import TlsStream
from heterotrain.transport.wire import Connection, join_address, tune
from heterotrain_rpc.identity import Identity, IdentityError

_LOG = logging.getLogger(__name__)
_LINGER_BYTES: Final = 1 << 28
_CLOSE_SECONDS: Final = 1.0


class TcpTensorServer:
    """Serves a shard's store to the workers and parameter servers of one job.

    `credentials` is the folder with the shard's own certificate; it is read at each connection. `worker_ordinals`
    gives a worker's ordinal by name, `None` if the shard knows no such worker; called from connection threads.
    Without `local_sockets` TLS carries everything, also within a machine.
    """

    def __init__(
        self,
        store: TensorStore,
        credentials: Path,
        job_uid: str,
        worker_ordinals: Callable[[str], int | None],
        *,
        host: str = "0.0.0.0",  # noqa: S104  # a pod has one address and its network policy
        port: int = 0,
        limits: Limits = Limits(),  # noqa: B008  # frozen
        local_sockets: bool = True,
    ) -> None:
        self.refusals: Counter[str] = Counter()
        """Connections refused or cut off since the start, by cause: Limit, Handshake, Refused, Protocol."""
        self._store = store
        self._credentials = credentials
        self._job_uid = job_uid
        self._worker_ordinals = worker_ordinals
        self._limits = limits
        self._local_sockets = local_sockets
        self._bind = (host, port)
        self._listener: socket.socket | None = None
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._open: dict[threading.Thread, Connection | None] = {}
        self._peers: Counter[str] = Counter()
        self._acceptor = threading.Thread(target=self._accept, name="tensor-acceptor", daemon=True)

    @property
    def address(self) -> str:
        """``host:port`` that the server is bound to; after `start`."""
        if self._listener is None:
            raise RuntimeError("the server has not been started")
        host, port = self._listener.getsockname()[:2]
        return join_address(host, port)

    @property
    def connections(self) -> int:
        """Connections that are open now, those in their handshake too."""
        with self._lock:
            return len(self._open)

    def start(self) -> None:
        """Bind and accept. Raises `OSError` if the address is taken or the credentials cannot be read."""
        server_context(self._credentials)
        family = socket.AF_INET6 if ":" in self._bind[0] else socket.AF_INET
        self._listener = socket.create_server(self._bind, family=family, backlog=128)
        self._acceptor.start()

    def close(self) -> None:
        """Stop accepting and break all connections; their threads end within a second, unless the store holds one."""
        self._closing.set()
        if self._listener is None:
            return
        try:
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the acceptor
        except OSError:
            _LOG.debug("listener was already shut down")
        self._acceptor.join(_CLOSE_SECONDS)
        self._listener.close()
        with self._lock:
            threads = list(self._open)
            for connection in self._open.values():
                if connection is not None:
                    connection.abort()
        until = time.monotonic() + _CLOSE_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def __enter__(self) -> TcpTensorServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        listener = self._listener
        assert listener is not None  # noqa: S101
        while not self._closing.is_set():
            try:
                sock, address = listener.accept()
            except OSError as error:
                if not self._closing.is_set():
                    # Out of descriptors, or the peer was gone before we came: neither may end the server.
                    _LOG.warning("tensor transport cannot accept: %s", error)
                    self._closing.wait(0.1)
                continue
            self._admit_socket(sock, str(address[0]))

    def _admit_socket(self, sock: socket.socket, address: str) -> None:
        thread = threading.Thread(target=self._run, args=(sock, address), name=f"tensor-{address}", daemon=True)
        with self._lock:
            full = len(self._open) >= self._limits.connections
            if full:
                self.refusals["Limit"] += 1
            else:
                self._open[thread] = None
        if full or self._closing.is_set():
            sock.close()
            return
        thread.start()

    def _run(self, sock: socket.socket, address: str) -> None:
        peer: Peer | None = None
        linger_bytes = 0
        connection: Connection | None = None
        try:
            tune(sock)
            tls = TlsStream(sock, server_context(self._credentials))
            connection = self._opened(tls)
            tls.handshake(time.monotonic() + self._limits.handshake_seconds)
            peer = self._greet(connection, Identity.from_der(tls.peer_certificate()))
            self._welcome(connection, sock)
            Service(self._store, connection, peer, self._limits, self._closing.is_set).run()
        except RefusedError as error:
            linger_bytes = self._dismiss(connection, "Refused", Reply(Status.REFUSED, str(error)), peer, address)
        except (FrameError, IdentityError) as error:
            linger_bytes = self._dismiss(connection, "Protocol", Reply(Status.BROKEN, str(error)), peer, address)
        except OSError as error:
            if peer is None:
                self._count("Handshake")
                linger_bytes = _LINGER_BYTES
            if not self._closing.is_set():
                _LOG.info("tensor connection of %s from %s broke: %s", peer.name if peer else "?", address, error)
        finally:
            if connection is None:
                sock.close()
            else:
                connection.close(0 if self._closing.is_set() else linger_bytes)
            with self._lock:
                self._open.pop(threading.current_thread(), None)
                if peer is not None:
                    self._peers[peer.name] -= 1

    def _opened(self, stream: TlsStream) -> Connection:
        connection = Connection(stream, self._limits.stall_seconds)
        with self._lock:
            self._open[threading.current_thread()] = connection
        return connection

    def _greet(self, connection: Connection, identity: Identity) -> Peer:
        deadline = time.monotonic() + self._limits.handshake_seconds
        hello = connection.receive_frame(deadline)
        if not isinstance(hello, Hello):
            raise FrameError(f"the first frame must be HELLO, not {type(hello).__name__}")
        peer = admit(identity, hello, self._job_uid, self._worker_ordinals)
        with self._lock:
            if self._peers[peer.name] >= self._limits.connections_per_peer:
                raise ConnectionError(f"{peer.name} has {self._limits.connections_per_peer} connections already")
            self._peers[peer.name] += 1
        return peer

    def _welcome(self, connection: Connection, sock: socket.socket) -> None:
        """Say welcome, and let the peer choose the way if there are two."""
        deadline = time.monotonic() + self._limits.handshake_seconds
        offer = offer_to(sock) if self._local_sockets else None
        if offer is None:
            connection.send_frame(Reply(Status.WELCOME), deadline)
            return
        with offer:
            connection.send_frame(Reply(Status.WELCOME, offer.text), deadline)
            if (local := offer.accepted(connection)) is not None:
                connection.go_on(local)
                local.meet(deadline)

    def _dismiss(self, connection: Connection | None, cause: str, reply: Reply, peer: Peer | None, address: str) -> int:
        self._count(cause)
        _LOG.warning("tensor connection of %s from %s ended: %s", peer.name if peer else "?", address, reply.text)
        if connection is not None:
            try:
                connection.send_frame(reply, time.monotonic() + 1.0)
            except OSError as error:
                _LOG.info("the peer did not wait for the reason: %s", error)
        # It may be in the middle of a large push and must read the answer before it is reset.
        return _LINGER_BYTES

    def _count(self, cause: str) -> None:
        with self._lock:
            self.refusals[cause] += 1
