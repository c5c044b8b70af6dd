"""Who is let in, what hostile or lost peers can do, and how the server ends."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from heterotrain.transport.base import Part, PullStatus, PushKey, PushStatus, RefusedError, TransportError
from heterotrain.transport.frames import Frame, Hello, Pull, Push, Reply, Span, Status, encode, encode_table
from heterotrain.transport.tcp import Limits, TcpTensorClient, TcpTensorServer
from heterotrain.transport.tls import client_context
from heterotrain.transport.tls_stream import TlsStream
from heterotrain.transport.wire import Connection, split_address
from heterotrain_api.contract import Role
from heterotrain_rpc.certificates import Credentials
from support.credentials import (
    OTHER_JOB_UID,
    credentials,
    expired_credentials,
    forged_credentials,
    strayed_credentials,
)
from support.tensor_store import MemoryStore

HELLO = Hello("cpu-0", 0, 1, 1)
KEY = PushKey(1, 0, 1, 0)
Serve = Callable[..., TcpTensorServer]
Connect = Callable[..., TcpTensorClient]
Folder = Callable[[Credentials, str], Path]


def small(content: bytes | bytearray = b"01234567") -> list[Part]:
    return [Part(0, memoryview(content))]


def works(client: TcpTensorClient) -> bool:
    return client.push(KEY, small(), timeout_seconds=10) is PushStatus.PARTIAL


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether the condition comes true within a generous time."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    ("caller", "hello", "want_message"),
    [
        pytest.param(forged_credentials(Role.WORKER, "cpu-0"), HELLO, "no trust", id="a forged certificate"),
        pytest.param(expired_credentials(Role.WORKER, "cpu-0"), HELLO, "no trust", id="an expired certificate"),
        pytest.param(credentials(Role.WORKER, "cpu-0", OTHER_JOB_UID), HELLO, "no trust", id="another job's authority"),
        pytest.param(strayed_credentials(Role.WORKER, "cpu-0"), HELLO, "another job", id="another job's worker"),
        pytest.param(credentials(Role.WORKER, "cpu-1"), HELLO, "HELLO names 'cpu-0'", id="a worker as another"),
        pytest.param(
            credentials(Role.WORKER, "cpu-7"), Hello("cpu-7", 0, 1, 1), "not among the workers", id="a stranger"
        ),
        pytest.param(
            credentials(Role.WORKER, "cpu-1"), Hello("cpu-1", 0, 1, 1), "has ordinal 1", id="another's ordinal"
        ),
        pytest.param(
            credentials(Role.OPERATOR, "operator"), Hello("operator", 0, 1, 1), "may not use", id="the operator"
        ),
        pytest.param(
            credentials(Role.PS, "ps-1"), Hello("ps-1", 0, 1, 1), "may pull, but not push", id="a parameter server"
        ),
    ],
)
def test_who_may_not_push(
    store: MemoryStore, serve: Serve, connect: Connect, caller: Credentials, hello: Hello, want_message: str
) -> None:
    server = serve(store)
    with pytest.raises(RefusedError, match=want_message):
        connect(server.address, hello, caller).push(KEY, small(), timeout_seconds=10)
    assert store.calls == []
    assert eventually(lambda: server.refusals.total() > 0)
    assert works(connect(server.address))


def test_a_parameter_server_may_pull(store: MemoryStore, serve: Serve, connect: Connect) -> None:
    client = connect(serve(store).address, Hello("ps-1", -1, 0, 1), credentials(Role.PS, "ps-1"))
    store.publish(0, bytes(store.num_bytes))
    assert client.pull(1, 0, small(bytearray(8)), wait_seconds=0, timeout_seconds=10) is PullStatus.DONE


def test_a_client_refuses_a_server_under_another_name(store: MemoryStore, serve: Serve, connect: Connect) -> None:
    client = connect(serve(store).address, server_name="ps-1")
    with pytest.raises(RefusedError, match="no trust"):
        client.push(KEY, small(), timeout_seconds=10)


def test_credentials_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    client = TcpTensorClient("127.0.0.1:9", "ps-0", tmp_path / "absent", HELLO)
    with pytest.raises(RefusedError, match="absent cannot be used"):
        client.push(KEY, small(), timeout_seconds=1)


def test_nobody_listening_may_be_tried_again(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(TransportError, match="cannot reach ps-0"):
        connect(f"127.0.0.1:{port}").push(KEY, small(), timeout_seconds=1)


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\0" * 100_000, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff", b"\x80\x04\x95pickle."],
    ids=["nothing", "zeros", "http", "half a handshake", "a pickle"],
)
def test_peers_that_do_not_speak_tls_are_dropped_and_others_served(
    store: MemoryStore, serve: Serve, connect: Connect, garbage: bytes
) -> None:
    server = serve(store, Limits(handshake_seconds=2))
    with socket.create_connection(split_address(server.address)) as stranger:
        stranger.sendall(garbage)
        assert works(connect(server.address))
        assert eventually(lambda: server.refusals["Handshake"] == 1)


def raw_connection(address: str, folder: Path) -> Connection:
    """TLS with good credentials, and nothing said yet."""
    sock = socket.create_connection(split_address(address))
    tls = TlsStream(sock, client_context(folder), "ps-0.heterotrain")
    tls.handshake(time.monotonic() + 10)
    return Connection(tls, 10)


def welcomed(frame: Frame) -> bool:
    """Its text may offer a local socket, which these peers do not take."""
    return isinstance(frame, Reply) and frame.status is Status.WELCOME


def table(*parts: tuple[int, int]) -> bytes:
    return encode_table([Span(*part) for part in parts])


BROKEN = [
    pytest.param([b"\xff" * 48], "not a frame", id="random bytes instead of HELLO"),
    pytest.param([encode(Push(1, 0, 0, 0))], "first frame must be HELLO", id="a request before HELLO"),
    pytest.param([HELLO, b"\x80\x04" * 24], "not a frame", id="a pickle instead of a request"),
    pytest.param([HELLO, HELLO], "Hello is not a request", id="HELLO twice"),
    pytest.param([HELLO, Reply(Status.DONE)], "Reply is not a request", id="an answer"),
    pytest.param([HELLO, Push(2, 0, 0, 0)], "term 2 on a connection of term 1", id="another term"),
    pytest.param([HELLO, Push(1, 0, 70_000, 8)], "70000 parts", id="too many parts"),
    pytest.param([HELLO, Push(1, 0, 1, 1 << 60)], "more than any arena", id="more bytes than there can be"),
    pytest.param([HELLO, Push(1, 0, 1, 9), table((0, 8))], "9 declared", id="a sum that does not fit"),
    pytest.param([HELLO, Push(1, 0, 1, 0), table((0, 0))], "an empty part", id="an empty part"),
    pytest.param([HELLO, Pull(1, 0, 1, 8, 0), table(((1 << 64) - 4, 8))], "beyond any arena", id="a wrapping range"),
]


@pytest.mark.parametrize(("frames", "want_message"), BROKEN)
def test_who_breaks_the_protocol_is_told_and_cut_off(
    store: MemoryStore, serve: Serve, connect: Connect, folder: Folder, frames: list[Frame | bytes], want_message: str
) -> None:
    server = serve(store)
    peer = raw_connection(server.address, folder(credentials(Role.WORKER, "cpu-0"), "raw"))
    try:
        peer.send([f if isinstance(f, bytes) else encode(f) for f in frames], None)
        if frames[0] is HELLO:
            assert welcomed(peer.receive_frame(None))
        reply = peer.receive_frame(None)
        assert isinstance(reply, Reply)
        assert reply.status is Status.BROKEN
        assert want_message in reply.text
        assert not peer.wait_for_request()
    finally:
        peer.close()
    assert (store.calls, server.refusals["Protocol"]) == ([], 1)
    assert works(connect(server.address))


def test_a_declared_giant_is_refused_without_taking_memory(store: MemoryStore, serve: Serve, folder: Folder) -> None:
    peer = raw_connection(serve(store).address, folder(credentials(Role.WORKER, "cpu-0"), "raw"))
    size = 10 << 30
    try:
        peer.send([encode(HELLO), encode(Push(1, 0, 1, size)), table((0, size)), bytes(1 << 20)], None)
        replies = [peer.receive_frame(None), peer.receive_frame(None)]
    finally:
        peer.close()
    assert welcomed(replies[0])
    assert replies[1] == Reply(Status.REFUSED, f"range outside the arena of {store.num_bytes} bytes")
    assert store.gradients == {}


def test_a_peer_that_stalls_in_a_push_is_cut_off_and_its_range_is_not_received(
    store: MemoryStore, serve: Serve, folder: Folder
) -> None:
    server = serve(store, Limits(stall_seconds=0.2))
    peer = raw_connection(server.address, folder(credentials(Role.WORKER, "cpu-0"), "raw"))
    try:
        peer.send([encode(HELLO), encode(Push(1, 0, 1, 4096)), table((0, 4096)), bytes(100)], None)
        assert welcomed(peer.receive_frame(None))
        assert not peer.wait_for_request()
    finally:
        peer.close()
    assert store.calls == [("reserve", 0, 4096)]


def test_a_peer_that_does_not_read_its_pull_gives_the_version_free(serve: Serve, folder: Folder) -> None:
    store = MemoryStore(64 << 20)
    server = serve(store, Limits(stall_seconds=0.2))
    store.publish(0, bytes(store.num_bytes))
    peer = raw_connection(server.address, folder(credentials(Role.WORKER, "cpu-0"), "raw"))
    try:
        peer.send([encode(HELLO), encode(Pull(1, 0, 1, store.num_bytes, 0)), table((0, store.num_bytes))], None)
        assert welcomed(peer.receive_frame(None))
        assert peer.receive_frame(None) == Reply(Status.DONE, num_bytes=store.num_bytes)
        assert store.is_given_free()
    finally:
        peer.close()


def test_a_peer_that_leaves_while_its_pull_waits_frees_its_thread(
    store: MemoryStore, serve: Serve, folder: Folder, connect: Connect
) -> None:
    server = serve(store, Limits(connections=1))
    peer = raw_connection(server.address, folder(credentials(Role.WORKER, "cpu-0"), "raw"))
    peer.send([encode(HELLO), encode(Pull(1, 99, 0, 0, 60_000))], None)
    assert welcomed(peer.receive_frame(None))
    with pytest.raises(TransportError):
        connect(server.address).push(KEY, small(), timeout_seconds=5)
    assert server.refusals["Limit"] == 1
    peer.close()

    def let_in() -> bool:
        try:
            return works(connect(server.address))
        except TransportError:
            return False

    assert eventually(let_in)


def test_one_peer_cannot_take_all_connections(store: MemoryStore, serve: Serve, connect: Connect) -> None:
    server = serve(store, Limits(connections_per_peer=1))
    first = connect(server.address)
    assert works(first)
    with pytest.raises(TransportError):
        connect(server.address).push(KEY, small(), timeout_seconds=5)
    other = connect(server.address, Hello("cpu-1", 1, 1, 1), credentials(Role.WORKER, "cpu-1"))
    assert other.push(PushKey(1, 1, 1, 0), small(), timeout_seconds=5) is PushStatus.PARTIAL
    assert works(first)


def test_renewed_credentials_count_from_the_next_connection_on(
    store: MemoryStore, serve: Serve, connect: Connect, folder: Folder
) -> None:
    server = serve(store)
    client = connect(server.address, made=expired_credentials(Role.WORKER, "cpu-0"))
    with pytest.raises(RefusedError, match="no trust"):
        works(client)
    folder(credentials(Role.WORKER, "cpu-0"), "client-cpu-0")
    assert works(client)


def test_closing_the_server_ends_waiting_pulls_and_all_threads(
    store: MemoryStore, serve: Serve, connect: Connect
) -> None:
    before = set(threading.enumerate())
    server = serve(store)
    idle, waiting = connect(server.address), connect(server.address)
    assert works(idle)
    errors: list[str] = []

    def wait() -> None:
        try:
            waiting.pull(1, 99, small(bytearray(8)), wait_seconds=50, timeout_seconds=50)
        except TransportError as error:
            errors.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    assert eventually(lambda: server.connections == 2)
    server.close()
    server.close()
    thread.join(20)
    assert len(errors) == 1
    assert set(threading.enumerate()) <= before
    with pytest.raises(TransportError):
        works(idle)


def test_a_call_can_be_aborted_from_another_thread_and_the_next_one_works(
    store: MemoryStore, serve: Serve, connect: Connect
) -> None:
    server = serve(store)
    client = connect(server.address)
    assert works(client)
    timer = threading.Timer(0.1, client.abort)
    timer.start()
    with pytest.raises(TransportError):
        client.pull(1, 99, small(bytearray(8)), wait_seconds=50, timeout_seconds=50)
    assert works(client)
    timer.join()


def test_the_connection_is_encrypted_with_tls_1_2_or_newer(store: MemoryStore, serve: Serve, folder: Folder) -> None:
    at = folder(credentials(Role.WORKER, "cpu-0"), "raw")
    context = client_context(at)
    with context.wrap_socket(
        socket.create_connection(split_address(serve(store).address)), server_hostname="ps-0.heterotrain"
    ) as sock:
        assert sock.version() in {"TLSv1.2", "TLSv1.3"}
        cipher = sock.cipher()
    assert cipher is not None
    assert "AES" in cipher[0]
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
