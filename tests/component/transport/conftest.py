from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from heterotrain.transport.tcp import Hello, Limits, TcpTensorClient, TcpTensorServer
from heterotrain_api.contract import Role
from heterotrain_rpc.certificates import Credentials
from support.credentials import JOB_UID, credentials
from support.tensor_store import MemoryStore

ORDINALS = {"cpu-0": 0, "cpu-1": 1}
ARENA_BYTES = 8 << 20
DEFAULT_LIMITS = Limits()
HELLO = Hello("cpu-0", 0, 1, 1)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(ARENA_BYTES)


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[Credentials, str], Path]:
    def write(made: Credentials, label: str) -> Path:
        made.write(tmp_path / label)
        return tmp_path / label

    return write


@pytest.fixture(params=["memory", "socket", "TLS"])
def way(request: pytest.FixtureRequest) -> str:
    """How bytes go within this machine: read where they lie, by a local socket, or through TLS."""
    return str(request.param)


@pytest.fixture
def serve(way: str, folder: Callable[[Credentials, str], Path]) -> Iterator[Callable[..., TcpTensorServer]]:
    """Starts servers."""
    with ExitStack() as stack:

        def start(store: MemoryStore, limits: Limits = DEFAULT_LIMITS) -> TcpTensorServer:
            at = folder(credentials(Role.PS, "ps-0"), "server")
            server = TcpTensorServer(
                store, at, JOB_UID, ORDINALS.get, host="127.0.0.1", limits=limits, local_sockets=way != "TLS"
            )
            return stack.enter_context(server)

        yield start


@pytest.fixture
def connect(way: str, folder: Callable[[Credentials, str], Path]) -> Iterator[Callable[..., TcpTensorClient]]:
    with ExitStack() as stack:

        def make(
            address: str,
            hello: Hello = HELLO,
            made: Credentials | None = None,
            server_name: str = "ps-0",
            stall_seconds: float = 10.0,
        ) -> TcpTensorClient:
            made = made or credentials(Role.WORKER, "cpu-0")
            at = folder(made, f"client-{hello.name}")
            in_memory = way == "memory"
            client = TcpTensorClient(address, server_name, at, hello, stall_seconds=stall_seconds, in_memory=in_memory)
            return stack.enter_context(client)

        yield make
