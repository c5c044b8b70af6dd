"""Tensors that are read where they lie in another process: what is whole, and what happens where that fails."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from heterotrain.transport import process_memory
from heterotrain.transport.base import Part, PullStatus, PushKey, PushStatus, TransportError
from heterotrain.transport.process_memory import PeerMemory, addresses, decode_addresses
from heterotrain.transport.stream import PlainStream
from heterotrain.transport.tcp import TcpTensorClient, TcpTensorServer
from heterotrain.transport.wire import Connection
from support.tensor_store import MemoryStore

KEY = PushKey(1, 0, 1, 0)
Serve = Callable[..., TcpTensorServer]
Connect = Callable[..., TcpTensorClient]


@pytest.fixture
def way() -> str:
    return "memory"


def meet(one: PlainStream, other: PlainStream, *, willing: bool = True) -> None:
    until = time.monotonic() + 10
    thread = threading.Thread(target=lambda: other.meet(until))
    thread.start()
    one.meet(until, willing=willing)
    thread.join(10)


def pair() -> tuple[PlainStream, PlainStream]:
    one, other = socket.socketpair()
    return PlainStream(one), PlainStream(other)


def test_memory_of_another_process_is_read_and_what_is_not_there_is_an_error() -> None:
    script = (
        "import sys; from heterotrain.transport.process_memory import addresses;"
        "held = bytes(range(256)) * 400; print(addresses([held]).hex(), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        (address,) = decode_addresses(bytes.fromhex(other.stdout.readline().decode()))
        memory, got = PeerMemory(other.pid), bytearray(256 * 400)

        memory.read_into(address, memoryview(got))

        assert got == bytes(range(256)) * 400
        with pytest.raises(OSError, match="cannot be read"):
            memory.read_into(8, memoryview(got))
        other.communicate()
    with pytest.raises(OSError, match="cannot be read"):
        memory.read_into(address, memoryview(got))


def test_both_ends_find_out_that_they_can_read_each_other() -> None:
    one, other = pair()

    meet(one, other)

    assert [one.is_read, other.is_read] == [True, True]
    assert one.peer_memory is not None
    assert other.peer_memory is not None
    one.close(0)
    other.close(0)


def test_an_end_that_is_not_willing_is_not_read_and_reads_nothing() -> None:
    one, other = pair()

    meet(one, other, willing=False)

    assert [(end.peer_memory, end.is_read) for end in (one, other)] == [(None, False)] * 2
    one.close(0)
    other.close(0)


def test_where_the_system_forbids_it_bytes_are_sent(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore, serve: Serve, connect: Connect
) -> None:
    monkeypatch.setattr(PeerMemory, "read_into", _forbidden)
    content = os.urandom(store.num_bytes)

    client = connect(serve(store).address)

    assert client.push(KEY, [Part(0, memoryview(content))], timeout_seconds=10) is PushStatus.COMPLETE
    assert store.gradients[KEY] == content


def test_memory_that_others_cannot_read_is_sent_by_the_next_try(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore, serve: Serve, connect: Connect
) -> None:
    """As that of a device may be: the ends meet, and the tensors themselves are out of reach."""
    client, content = connect(serve(store).address), os.urandom(store.num_bytes)
    monkeypatch.setattr("heterotrain.transport.wire.addresses", lambda buffers: addresses(b"" for _ in buffers))

    with pytest.raises(TransportError):
        client.push(KEY, [Part(0, memoryview(content))], timeout_seconds=10)

    assert client.push(KEY, [Part(0, memoryview(content))], timeout_seconds=10) is PushStatus.COMPLETE
    assert store.gradients[KEY] == content


def test_a_version_that_cannot_be_read_is_sent_by_the_next_try(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore, serve: Serve, connect: Connect
) -> None:
    content = os.urandom(store.num_bytes)
    store.publish(0, content)
    client, got = connect(serve(store).address), bytearray(store.num_bytes)
    parts = [Part(0, memoryview(got))]
    monkeypatch.setattr("heterotrain.transport.wire.addresses", lambda buffers: addresses(b"" for _ in buffers))

    with pytest.raises(TransportError):
        client.pull(1, 0, parts, wait_seconds=1, timeout_seconds=10)

    assert client.pull(1, 0, parts, wait_seconds=1, timeout_seconds=10) is PullStatus.DONE
    assert got == content


def test_after_a_break_that_memory_was_not_the_reason_of_it_is_read_again(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore, serve: Serve, connect: Connect
) -> None:
    server = serve(store)
    store.publish(0, os.urandom(store.num_bytes))
    client, got = connect(server.address), bytearray(store.num_bytes)
    ways: list[bool] = []  # true for each part that is read, false after each pull
    copy_into = Connection.copy_into

    def noted(connection: Connection, view: memoryview, address: int) -> None:
        ways.append(True)
        copy_into(connection, view, address)

    monkeypatch.setattr(Connection, "copy_into", noted)
    for breaks in (False, True, True, False):
        if breaks:
            client.abort()
            with pytest.raises(TransportError):
                client.pull(1, 0, [Part(0, memoryview(got))], wait_seconds=1, timeout_seconds=10)
        client.pull(1, 0, [Part(0, memoryview(got))], wait_seconds=1, timeout_seconds=10)
        ways.append(False)

    assert ways == [True, False, False, True, False, True, False]


def test_a_gradient_whose_worker_gave_up_while_it_was_read_does_not_count(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore, serve: Serve, connect: Connect
) -> None:
    client, content = connect(serve(store).address), os.urandom(store.num_bytes)
    with _at_the_first_read(monkeypatch, client.close), pytest.raises(TransportError):
        client.push(KEY, [Part(0, memoryview(content))], timeout_seconds=10)

    assert client.push(KEY, [Part(0, memoryview(content))], timeout_seconds=10) is PushStatus.COMPLETE
    assert store.gradients[KEY] == content
    assert [name for name, _, _ in store.calls if name == "received"] == ["received"]


def test_a_version_whose_shard_gave_up_while_it_was_read_does_not_count(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore, serve: Serve, connect: Connect
) -> None:
    server = serve(store)
    content = os.urandom(store.num_bytes)
    store.publish(0, content)
    client, got = connect(server.address), bytearray(store.num_bytes)

    with _at_the_first_read(monkeypatch, server.close), pytest.raises(TransportError):
        client.pull(1, 0, [Part(0, memoryview(got))], wait_seconds=1, timeout_seconds=10)


def test_a_version_is_read(store: MemoryStore, serve: Serve, connect: Connect) -> None:
    content = os.urandom(store.num_bytes)
    store.publish(0, content)
    client, got = connect(serve(store).address), bytearray(store.num_bytes)
    half = store.num_bytes // 2
    parts = [Part(half, memoryview(got)[half:]), Part(0, memoryview(got)[:half])]

    assert client.pull(1, 0, parts, wait_seconds=1, timeout_seconds=10) is PullStatus.DONE

    assert got == content


def _forbidden(memory: PeerMemory, address: int, view: memoryview) -> None:
    raise PermissionError(1, "Operation not permitted")


class _at_the_first_read:  # noqa: N801 - a context manager
    """Has `action` done after the first tensor was read, before whoever read it goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, action: Callable[[], Any]) -> None:
        self._monkeypatch = monkeypatch
        self._action = action

    def __enter__(self) -> None:
        read, done = PeerMemory.read_into, threading.Event()

        def read_into(memory: PeerMemory, address: int, view: memoryview) -> None:
            read(memory, address, view)
            if view.nbytes > process_memory.PROBE_BYTES and not done.is_set():
                done.set()
                self._action()

        self._monkeypatch.setattr(PeerMemory, "read_into", read_into)

    def __exit__(self, *_: object) -> None:
        self._monkeypatch.undo()
