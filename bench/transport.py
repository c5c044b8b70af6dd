"""How fast parameters and gradients travel: our transport beside what else could carry them, on this machine.

    python bench/transport.py                       # 256 MB, three repeats, about half a minute
    python bench/transport.py --megabytes 64 --repeats 5 --json transport.json

Every variant copies the same bytes over the loopback between two processes, from the sender's memory into the memory
where the receiver keeps them. *push* is client to server, *pull* the way back. Variants take turns within a repeat, so
that a busy moment of the machine hits all of them; the table gives medians. CPU seconds are those of both processes,
and less noisy than rates on a machine that is not quiet.

    plain socket    no TLS: what the loopback and one copy at each end allow
    TLS socket      the same loop over TLS, without a protocol: the limit for any protocol over Python's TLS
    heterotrain     the tensor transport, mutual TLS, one connection: as between machines
    local socket    the same by the local socket that it offers to a peer of its own machine
    in memory       the same, read where it lies in the other process; the way that jobs on one machine take
    gRPC sync/aio   a stream of 1 MiB messages over the same mutual TLS, identity serialisation
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import socket
import ssl
import statistics
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Protocol

import grpc
import grpc.aio

from heterotrain.transport.base import Part, PullStatus, PushKey, PushStatus
from heterotrain.transport.tcp import Hello, TcpTensorClient, TcpTensorServer
from heterotrain.transport.tls import client_context, server_context
from heterotrain_api.contract import Role
from heterotrain_rpc.certificates import Credentials, make_authority
from heterotrain_rpc.channels import (
    SERVER_OPTIONS,
    channel_credentials,
    client_options,
    make_channel,
    server_credentials,
)
from heterotrain_rpc.identity import Identity, dns_name

JOB_UID: Final = "bench"
CHUNK_BYTES: Final = 1 << 20
TIMEOUT_SECONDS: Final = 120
SERVER, CLIENT = "ps-0", "cpu-0"


class Variant(Protocol):
    """A way to copy bytes; each call returns when the receiver has them all."""

    def push(self, source: memoryview) -> None: ...

    def pull(self, target: memoryview) -> None: ...

    def close(self) -> None: ...


@dataclass
class Result:
    """Of one variant in one direction, by repeat."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)


# Raw sockets.


def serve_socket(report: Connection, folder: Path, num_bytes: int, *, tls: bool) -> None:
    memory = memoryview(bytearray(num_bytes))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        report.send(f"127.0.0.1:{listener.getsockname()[1]}")
        sock, _ = listener.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls:
        sock = server_context(folder / SERVER).wrap_socket(sock, server_side=True)
    threading.Thread(target=answer_socket, args=(sock, memory), daemon=True).start()
    wait_for_end(report)


def answer_socket(sock: socket.socket, memory: memoryview) -> None:
    with sock:
        while command := sock.recv(1):
            if command == b"u":
                receive(sock, memory)
                sock.sendall(b"k")
            else:
                send(sock, memory)


def send(sock: socket.socket, view: memoryview) -> None:
    for start in range(0, len(view), CHUNK_BYTES):
        sock.sendall(view[start : start + CHUNK_BYTES])


def receive(sock: socket.socket, view: memoryview) -> None:
    got = 0
    while got < len(view):
        count = sock.recv_into(view[got:])
        if count == 0:
            raise ConnectionError("the other process closed the connection")
        got += count


class SocketVariant:
    def __init__(self, address: str, folder: Path, *, tls: bool) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            context = client_context(folder / CLIENT)
            self._socket = context.wrap_socket(self._socket, server_hostname=dns_name(SERVER))

    def push(self, source: memoryview) -> None:
        self._socket.sendall(b"u")
        send(self._socket, source)
        self._socket.recv(1)

    def pull(self, target: memoryview) -> None:
        self._socket.sendall(b"d")
        receive(self._socket, target)

    def close(self) -> None:
        self._socket.close()


# The tensor transport.


@dataclass(frozen=True)
class Held:
    buffer: memoryview


class OneArena:
    """A store without bookkeeping: what arrives is there, what is there is published."""

    def __init__(self, num_bytes: int) -> None:
        self._memory = memoryview(bytearray(num_bytes))

    def reserve(self, key: PushKey, offset: int, num_bytes: int) -> memoryview:
        return self._memory[offset : offset + num_bytes]

    def received(self, key: PushKey, offset: int, num_bytes: int) -> PushStatus:
        return PushStatus.COMPLETE

    def answered(self) -> None:
        pass

    @contextmanager
    def snapshot(self, term: int, version: int, wait_seconds: float) -> Iterator[Held]:
        yield Held(self._memory)


def serve_heterotrain(report: Connection, folder: Path, num_bytes: int, *, local: bool) -> None:
    store, ordinals = OneArena(num_bytes), {CLIENT: 0}.get
    with TcpTensorServer(store, folder / SERVER, JOB_UID, ordinals, host="127.0.0.1", local_sockets=local) as server:
        report.send(server.address)
        wait_for_end(report)


class HeterotrainVariant:
    def __init__(self, address: str, folder: Path, num_parts: int, in_memory: bool = True) -> None:
        hello = Hello(CLIENT, 0, 1, 1)
        self._client = TcpTensorClient(address, SERVER, folder / CLIENT, hello, in_memory=in_memory)
        self._num_parts = num_parts

    def push(self, source: memoryview) -> None:
        self._client.push(PushKey(1, 0, 1, 0), self._parts(source), timeout_seconds=TIMEOUT_SECONDS)

    def pull(self, target: memoryview) -> None:
        status = self._client.pull(1, 0, self._parts(target), wait_seconds=0, timeout_seconds=TIMEOUT_SECONDS)
        assert status is PullStatus.DONE

    def _parts(self, view: memoryview) -> list[Part]:
        edges = [len(view) * i // self._num_parts for i in range(self._num_parts + 1)]
        return [Part(a, view[a:b]) for a, b in pairwise(edges)]

    def close(self) -> None:
        self._client.close()


# gRPC.


def chunks(view: memoryview) -> Iterator[bytes]:
    for start in range(0, len(view), CHUNK_BYTES):
        yield bytes(view[start : start + CHUNK_BYTES])


def serve_grpc_sync(report: Connection, folder: Path, num_bytes: int) -> None:
    memory = memoryview(bytearray(num_bytes))

    def push(messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        at = 0
        for message in messages:
            memory[at : at + len(message)] = message
            at += len(message)
        return b""

    def pull(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        return chunks(memory)

    server = grpc.server(ThreadPoolExecutor(4), options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bench.Copy", handlers(push, pull))])
    port = server.add_secure_port("127.0.0.1:0", server_credentials(Credentials.read(folder / SERVER)))
    server.start()
    report.send(f"127.0.0.1:{port}")
    wait_for_end(report)
    server.stop(None).wait()


def serve_grpc_aio(report: Connection, folder: Path, num_bytes: int) -> None:
    memory = memoryview(bytearray(num_bytes))

    async def push(messages: AsyncIterator[bytes], context: Any) -> bytes:
        at = 0
        async for message in messages:
            memory[at : at + len(message)] = message
            at += len(message)
        return b""

    async def pull(request: bytes, context: Any) -> AsyncIterator[bytes]:
        for message in chunks(memory):
            yield message

    async def serve() -> None:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bench.Copy", handlers(push, pull))])
        port = server.add_secure_port("127.0.0.1:0", server_credentials(Credentials.read(folder / SERVER)))
        await server.start()
        report.send(f"127.0.0.1:{port}")
        await asyncio.to_thread(wait_for_end, report)
        await server.stop(None)

    asyncio.run(serve())


def handlers(push: Any, pull: Any) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    return {
        "Push": grpc.stream_unary_rpc_method_handler(push),
        "Pull": grpc.unary_stream_rpc_method_handler(pull),
    }


class GrpcSyncVariant:
    def __init__(self, address: str, folder: Path) -> None:
        credentials = channel_credentials(Credentials.read(folder / CLIENT))
        self._channel = grpc.secure_channel(address, credentials, client_options(SERVER))
        self._push: Any = self._channel.stream_unary("/bench.Copy/Push")
        self._pull: Any = self._channel.unary_stream("/bench.Copy/Pull")

    def push(self, source: memoryview) -> None:
        self._push(chunks(source), timeout=TIMEOUT_SECONDS)

    def pull(self, target: memoryview) -> None:
        at = 0
        for message in self._pull(b"", timeout=TIMEOUT_SECONDS):
            target[at : at + len(message)] = message
            at += len(message)

    def close(self) -> None:
        self._channel.close()


class GrpcAioVariant:
    def __init__(self, address: str, folder: Path) -> None:
        self._runner = asyncio.Runner()
        self._runner.run(self._open(address, Credentials.read(folder / CLIENT)))

    async def _open(self, address: str, credentials: Credentials) -> None:
        self._channel = make_channel(address, SERVER, credentials)
        self._push: Any = self._channel.stream_unary("/bench.Copy/Push")
        self._pull: Any = self._channel.unary_stream("/bench.Copy/Pull")

    def push(self, source: memoryview) -> None:
        async def run() -> None:
            await self._push(chunks(source), timeout=TIMEOUT_SECONDS)

        self._runner.run(run())

    def pull(self, target: memoryview) -> None:
        async def run() -> None:
            at = 0
            async for message in self._pull(b"", timeout=TIMEOUT_SECONDS):
                target[at : at + len(message)] = message
                at += len(message)

        self._runner.run(run())

    def close(self) -> None:
        self._runner.run(self._channel.close())
        self._runner.close()


# Running.


def wait_for_end(report: Connection) -> None:
    """In the server process: answer each request for its CPU seconds until the client's side closes."""
    try:
        while True:
            report.recv()
            report.send(time.process_time())
    except EOFError:
        return


@contextmanager
def server_process(serve: Callable[..., None], *arguments: Any, **options: Any) -> Iterator[tuple[str, Connection]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, *arguments), kwargs=options, daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours.recv(), ours
    finally:
        ours.close()
        process.join(10)
        if process.is_alive():
            process.kill()


def write_credentials(folder: Path) -> None:
    now = datetime.now(UTC)
    authority = make_authority(JOB_UID, now, timedelta(hours=2))
    for role, name in ((Role.PS, SERVER), (Role.WORKER, CLIENT)):
        authority.issue(Identity(JOB_UID, role, name), now, timedelta(hours=1)).write(folder / name)


@dataclass(frozen=True)
class Entrant:
    """A variant and how to ask its server for the CPU seconds that it has used."""

    variant: Variant
    server: Connection

    def cpu_seconds(self) -> float:
        self.server.send(None)
        return time.process_time() + float(self.server.recv())


@contextmanager
def entrants(folder: Path, num_bytes: int, num_parts: int) -> Iterator[dict[str, Entrant]]:
    """All variants, each with its server's process, in the order of the table."""
    plans: list[tuple[str, Callable[..., None], dict[str, bool], Callable[[str], Variant]]] = [
        ("plain socket", serve_socket, {"tls": False}, lambda a: SocketVariant(a, folder, tls=False)),
        ("TLS socket", serve_socket, {"tls": True}, lambda a: SocketVariant(a, folder, tls=True)),
        ("heterotrain", serve_heterotrain, {"local": False}, lambda a: HeterotrainVariant(a, folder, num_parts)),
        ("local socket", serve_heterotrain, {"local": True}, lambda a: HeterotrainVariant(a, folder, num_parts, False)),
        ("in memory", serve_heterotrain, {"local": True}, lambda a: HeterotrainVariant(a, folder, num_parts)),
        ("gRPC sync", serve_grpc_sync, {}, lambda a: GrpcSyncVariant(a, folder)),
        ("gRPC aio", serve_grpc_aio, {}, lambda a: GrpcAioVariant(a, folder)),
    ]
    with ExitStack() as stack:
        made: dict[str, Entrant] = {}
        for name, serve, options, connect in plans:
            address, report = stack.enter_context(server_process(serve, folder, num_bytes, **options))
            made[name] = Entrant(connect(address), report)
        try:
            yield made
        finally:
            for entrant in made.values():
                entrant.variant.close()


def measure(entrant: Entrant, result: Result, copy: Callable[[memoryview], None], view: memoryview) -> None:
    cpu, start = entrant.cpu_seconds(), time.perf_counter()
    copy(view)
    result.seconds.append(time.perf_counter() - start)
    result.cpu_seconds.append(entrant.cpu_seconds() - cpu)


def run(num_bytes: int, repeats: int, num_parts: int) -> dict[str, dict[str, Result]]:
    """Results by variant and direction. Checks once per variant that what was pushed is what is pulled."""
    block = os.urandom(1 << 20)
    source = memoryview((block * (num_bytes // len(block) + 1))[:num_bytes])
    target = memoryview(bytearray(num_bytes))
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        write_credentials(folder)
        made = stack.enter_context(entrants(folder, num_bytes, num_parts))
        results = {variant: {"push": Result(), "pull": Result()} for variant in made}
        for variant, entrant in made.items():
            # Warm-up: memory is touched for the first time, windows and buffers grow.
            entrant.variant.push(source)
            target[:] = bytes(num_bytes)
            entrant.variant.pull(target)
            if target != source:
                raise AssertionError(f"{variant}: what came back is not what was sent")
        for _ in range(repeats):
            for variant, entrant in made.items():
                measure(entrant, results[variant]["push"], entrant.variant.push, source)
                measure(entrant, results[variant]["pull"], entrant.variant.pull, target)
    return results


def summary(results: dict[str, dict[str, Result]], num_bytes: int) -> dict[str, dict[str, dict[str, Any]]]:
    return {
        variant: {
            direction: {
                "bytes_per_second": num_bytes / statistics.median(result.seconds),
                "seconds": result.seconds,
                "cpu_seconds": result.cpu_seconds,
                "cpu_seconds_per_gigabyte": statistics.median(result.cpu_seconds) / num_bytes * 1e9,
            }
            for direction, result in directions.items()
        }
        for variant, directions in results.items()
    }


def table(summarised: dict[str, dict[str, dict[str, Any]]]) -> str:
    def rate(variant: str, direction: str) -> float:
        return float(summarised[variant][direction]["bytes_per_second"])

    best = {d: max(rate("gRPC sync", d), rate("gRPC aio", d)) for d in ("push", "pull")}
    lines = [f"{'':14}{'push MB/s':>11}{'x gRPC':>8}{'CPU s/GB':>10}{'pull MB/s':>12}{'x gRPC':>8}{'CPU s/GB':>10}"]
    for variant, directions in summarised.items():
        cells = [
            f"{rate(variant, d) / 1e6:{width}.0f}{rate(variant, d) / best[d]:8.2f}"
            f"{directions[d]['cpu_seconds_per_gigabyte']:10.2f}"
            for d, width in (("push", 11), ("pull", 12))
        ]
        lines.append(f"{variant:14}{''.join(cells)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=256, help="size of the model, 10^6 bytes each (default 256)")
    parser.add_argument("--repeats", type=int, default=3, help="measured copies of each kind (default 3)")
    parser.add_argument("--parts", type=int, default=8, help="byte ranges that the model is pushed in (default 8)")
    parser.add_argument("--json", type=Path, help="also write every measurement to this file")
    options = parser.parse_args()
    num_bytes = options.megabytes * 1_000_000
    load_before = os.getloadavg()[0]
    summarised = summary(run(num_bytes, options.repeats, options.parts), num_bytes)
    circumstances = {
        "bytes": num_bytes,
        "repeats": options.repeats,
        "parts": options.parts,
        "cores": os.cpu_count(),
        "load_before": load_before,
        "python": platform.python_version(),
        "openssl": ssl.OPENSSL_VERSION,
        "grpcio": grpc.__version__,
        "machine": platform.machine(),
    }
    print(
        f"{options.megabytes} MB in {options.parts} parts over the loopback, medians of {options.repeats}; "
        f"{os.cpu_count()} cores, load {load_before:.1f} before the run"
    )
    print(table(summarised))
    print("x gRPC: rate over that of the faster gRPC variant in the same direction")
    if options.json:
        options.json.write_text(json.dumps({"circumstances": circumstances, "results": summarised}, indent=2) + "\n")


if __name__ == "__main__":
    main()
