"""Pushes and pulls between a client and a server, over real TLS."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

from heterotrain.transport.base import Part, PullStatus, PushKey, PushStatus, RefusedError, TransportError
from heterotrain.transport.tcp import Hello, TcpTensorClient, TcpTensorServer
from heterotrain_api.contract import Role
from support.credentials import credentials
from support.proxy import Fault, Proxy
from support.tensor_store import MemoryStore

KEY = PushKey(term=1, worker=0, incarnation=1, iteration=0)
Serve = Callable[..., TcpTensorServer]
Connect = Callable[..., TcpTensorClient]


def cut(content: bytes | bytearray, *sizes: int) -> list[Part]:
    """`content` in parts of these sizes, in order; the last one is the rest."""
    view, parts, start = memoryview(content), [], 0
    for size in (*sizes, len(content) - sum(sizes)):
        parts.append(Part(start, view[start : start + size]))
        start += size
    return parts


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((), id="in one part"),
        pytest.param((1, 2, 16_383, 16_384, 1 << 20, 5), id="in parts around the sizes of records and slices"),
        pytest.param((1 << 21, 0, 3), id="with an empty part"),
        pytest.param((64,) * 10_000, id="in ten thousand tiny parts and a rest"),
    ],
)
def test_what_is_pushed_arrives_and_what_is_published_comes_back(
    store: MemoryStore, serve: Serve, connect: Connect, sizes: tuple[int, ...]
) -> None:
    client = connect(serve(store).address)
    content = os.urandom(store.num_bytes)
    assert client.push(KEY, cut(content, *sizes), timeout_seconds=20) is PushStatus.COMPLETE
    assert store.gradients[KEY] == content
    store.publish(1, content)
    target = bytearray(store.num_bytes)
    done = client.pull(1, 1, cut(target, *sizes), wait_seconds=0, timeout_seconds=20)
    assert (done, bytes(target)) == (PullStatus.DONE, content)
    assert store.is_given_free()


def test_parts_of_one_gradient_may_come_in_several_pushes_and_again(
    store: MemoryStore, serve: Serve, connect: Connect
) -> None:
    client = connect(serve(store).address)
    first, second = cut(os.urandom(store.num_bytes), 1 << 20)
    answers = [client.push(KEY, parts, timeout_seconds=10) for parts in ([first], [first], [second], [second])]
    assert answers == [PushStatus.PARTIAL, PushStatus.PARTIAL, PushStatus.COMPLETE, PushStatus.COMPLETE]
    assert bytes(store.gradients[KEY]) == bytes(first.buffer) + bytes(second.buffer)


def test_a_push_without_parts_asks_for_the_status(serve: Serve, connect: Connect) -> None:
    empty_shard = MemoryStore(0)
    client = connect(serve(empty_shard).address)
    empty_shard.publish(0, b"")
    assert client.push(KEY, [], timeout_seconds=10) is PushStatus.COMPLETE
    assert client.pull(1, 0, [], wait_seconds=0, timeout_seconds=10) is PullStatus.DONE


def test_a_pull_waits_until_the_version_is_published(store: MemoryStore, serve: Serve, connect: Connect) -> None:
    server = serve(store)
    puller = connect(server.address)
    pusher = connect(server.address, Hello("cpu-1", 1, 1, 1), credentials(Role.WORKER, "cpu-1"))
    content = os.urandom(store.num_bytes)
    target = bytearray(store.num_bytes)
    answers: list[PullStatus] = []
    waiting = threading.Thread(
        target=lambda: answers.append(puller.pull(1, 1, cut(target), wait_seconds=20, timeout_seconds=20))
    )
    began = time.monotonic()
    waiting.start()
    pushed = pusher.push(PushKey(1, 1, 1, 0), cut(content), timeout_seconds=20)
    assert (pushed, answers) == (PushStatus.COMPLETE, [])
    published = time.monotonic()
    store.publish(1, content)
    waiting.join(20)
    assert (answers, bytes(target)) == ([PullStatus.DONE], content)
    whole = time.monotonic() - began
    assert 0 < puller.receive_seconds <= whole - (published - began), "the wait for the version counts as receiving"


def test_a_pull_of_what_does_not_come_says_so_and_leaves_the_connection_usable(
    store: MemoryStore, serve: Serve, connect: Connect
) -> None:
    client = connect(serve(store).address)
    target = bytearray(16)
    assert client.pull(1, 5, cut(target), wait_seconds=0.01, timeout_seconds=10) is PullStatus.NOT_YET
    store.publish(5, b"0123456789abcdef" * (store.num_bytes // 16))
    assert client.pull(1, 5, cut(target), wait_seconds=0, timeout_seconds=10) is PullStatus.DONE
    assert target == b"0123456789abcdef"


def test_a_broken_push_leaves_its_range_unreceived_and_is_applied_once_when_tried_again(
    store: MemoryStore, serve: Serve, connect: Connect
) -> None:
    server = serve(store)
    host, _, port = server.address.rpartition(":")
    content = os.urandom(store.num_bytes)
    first, second = cut(content, 1 << 20)
    with Proxy((host, int(port)), [(Fault.CUT, 4 << 20)]) as proxy:
        client = connect(proxy.address)
        with pytest.raises(TransportError, match="ps-0"):
            client.push(KEY, [first, second], timeout_seconds=10)
        assert client.push(KEY, [first, second], timeout_seconds=10) is PushStatus.COMPLETE
        assert (proxy.fired, proxy.connections) == ([Fault.CUT], 2)
    assert store.gradients[KEY] == content
    assert [c for c in store.calls if c[0] == "received"] == [
        ("received", 0, 1 << 20),
        ("received", 0, 1 << 20),
        ("received", 1 << 20, store.num_bytes - (1 << 20)),
    ]
    assert store.wait_for_answers(1)
    assert store.answers == 1, "a push that broke had none"


def test_a_shard_that_stops_answering_is_given_up_in_time(store: MemoryStore, serve: Serve, connect: Connect) -> None:
    server = serve(store)
    host, _, port = server.address.rpartition(":")
    store.publish(1, bytes(store.num_bytes))
    with Proxy((host, int(port)), [(Fault.STALL, 3 << 20), (Fault.STALL, 700)]) as proxy:
        client = connect(proxy.address, stall_seconds=0.3)
        with pytest.raises(TransportError, match="broke"):
            client.push(KEY, cut(bytes(store.num_bytes)), timeout_seconds=1)
        with pytest.raises(TransportError, match="cannot greet ps-0"):
            client.pull(1, 1, cut(bytearray(16)), wait_seconds=0, timeout_seconds=0.5)
        assert client.pull(1, 1, cut(bytearray(16)), wait_seconds=0, timeout_seconds=10) is PullStatus.DONE
        assert proxy.fired == [Fault.STALL, Fault.STALL]


@pytest.mark.parametrize(
    ("key", "offset", "want_message"),
    [
        pytest.param(PushKey(1, 0, 1, 0), 1, "outside the arena", id="a range outside"),
        pytest.param(PushKey(9, 0, 1, 0), 0, "term 9 is over", id="another term"),
    ],
)
def test_a_large_push_is_refused_before_it_has_travelled(
    store: MemoryStore, serve: Serve, connect: Connect, key: PushKey, offset: int, want_message: str
) -> None:
    client = connect(serve(store).address, Hello("cpu-0", 0, 1, key.term))
    part = Part(offset, memoryview(bytes(store.num_bytes)))
    for _ in range(2):
        with pytest.raises(RefusedError, match=want_message):
            client.push(key, [part], timeout_seconds=10)
    assert store.gradients == {}


def test_refused_pulls_say_why(store: MemoryStore, serve: Serve, connect: Connect) -> None:
    client = connect(serve(store).address)
    store.publish(1, bytes(store.num_bytes))
    outside = Part(store.num_bytes - 8, memoryview(bytearray(16)))
    with pytest.raises(RefusedError, match="outside the shard's 8388608 bytes"):
        client.pull(1, 1, [outside], wait_seconds=0, timeout_seconds=10)
    assert client.pull(1, 1, cut(bytearray(8)), wait_seconds=0, timeout_seconds=10) is PullStatus.DONE


def test_calls_that_belong_to_another_connection_are_refused_before_they_are_sent(connect: Connect) -> None:
    client = connect("127.0.0.1:9")
    for key in (PushKey(2, 0, 1, 0), PushKey(1, 1, 1, 0), PushKey(1, 0, 2, 0)):
        with pytest.raises(ValueError, match="does not belong to this connection"):
            client.push(key, [], timeout_seconds=1)
    with pytest.raises(ValueError, match="does not belong to this connection"):
        client.pull(2, 0, [], wait_seconds=0, timeout_seconds=1)
    with pytest.raises(ValueError, match="writable for a pull"):
        client.pull(1, 0, [Part(0, memoryview(b"read only"))], wait_seconds=0, timeout_seconds=1)
    with pytest.raises(ValueError, match="flat bytes"):
        client.push(KEY, [Part(0, memoryview(bytes(16)).cast("B", (4, 4)))], timeout_seconds=1)
