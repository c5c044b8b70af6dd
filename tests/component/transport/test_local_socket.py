"""The way past TLS between two processes of one machine: who finds it, and who is kept out."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from heterotrain.transport.base import Part, PushKey, PushStatus, TransportError
from heterotrain.transport.local_socket import LocalOffer, take
from heterotrain.transport.stream import PlainStream
from heterotrain.transport.tcp import TcpTensorClient, TcpTensorServer
from heterotrain.transport.wire import Connection
from support.proxy import Fault, Proxy
from support.tensor_store import MemoryStore

OWN = "127.0.0.1:50000"
KEY = PushKey(1, 0, 1, 0)
Accepted = list[PlainStream | None]


@contextmanager
def offered() -> Iterator[tuple[LocalOffer, socket.socket, threading.Thread, Accepted]]:
    """An offer to a peer at `OWN`: the offer, the peer's end of the TCP connection, who waits for it, what came."""
    own, peers = socket.socketpair()
    came: Accepted = []
    with LocalOffer(OWN) as offer, own, peers:
        waiting = threading.Thread(target=lambda: came.append(offer.accepted(Connection(PlainStream(own), 10))))
        waiting.start()
        yield offer, peers, waiting, came
        peers.close()
        waiting.join(10)


def test_a_peer_with_the_secret_gets_a_stream_both_ways() -> None:
    with offered() as (offer, _, waiting, came):
        mine = take(offer.text, OWN, 10)
        waiting.join(10)
        theirs = came[0]
        assert mine is not None
        assert theirs is not None
        until = time.monotonic() + 10
        for sender, receiver in ((mine, theirs), (theirs, mine)):
            got = bytearray(5)
            sender.send(memoryview(b"bytes"), until)
            receiver.receive_into(memoryview(got), until)
            assert got == b"bytes"
        mine.close(0)
        assert theirs.readable(10)
        assert theirs.closed_by_peer()
        theirs.close(0)


def test_a_stranger_without_the_secret_is_dropped_and_the_peer_still_let_in() -> None:
    with offered() as (offer, _, waiting, came):
        _, name, _ = offer.text.split()
        stranger = take(f"{OWN} {name} {bytes(16).hex()}", OWN, 10)
        assert stranger is not None
        assert stranger.readable(10)
        assert stranger.closed_by_peer()
        stranger.close(0)
        mine = take(offer.text, OWN, 10)
        waiting.join(10)
        assert mine is not None
        assert came[0] is not None
        mine.close(0)
        came[0].close(0)


@pytest.mark.parametrize("leave", [lambda s: s.sendall(b"a frame"), lambda s: s.close()], ids=["goes on", "leaves"])
def test_a_peer_that_does_not_take_it_goes_on_as_before(leave: Callable[[socket.socket], None]) -> None:
    with offered() as (_, peers, waiting, came):
        leave(peers)
        waiting.join(10)
        assert came == [None]


@pytest.mark.parametrize(
    ("offer", "own"),
    [
        pytest.param("", OWN, id="nothing is offered: an older server, or one that offers none"),
        pytest.param(f"{OWN} heterotrain-nobody 00", OWN, id="nobody listens there: another network namespace"),
        pytest.param("10.0.0.7:50000 {name} {secret}", OWN, id="the server sees another address: something in between"),
        pytest.param(f"{OWN} name-alone", OWN, id="a word is missing"),
        pytest.param(f"{OWN} {{name}} no-hex", OWN, id="the secret is none"),
    ],
)
def test_a_client_stays_with_tls(offer: str, own: str) -> None:
    with offered() as (made, peers, waiting, came):
        _, name, secret = made.text.split()
        assert take(offer.format(name=name, secret=secret), own, 10) is None
        peers.close()
        waiting.join(10)
        assert came == [None]


def test_through_a_proxy_all_goes_through_the_proxy(
    store: MemoryStore, serve: Callable[..., TcpTensorServer], connect: Callable[..., TcpTensorClient]
) -> None:
    host, _, port = serve(store).address.rpartition(":")
    content = os.urandom(store.num_bytes)
    parts = [Part(0, memoryview(content))]
    with Proxy((host, int(port)), [(Fault.CUT, len(content) // 2)]) as proxy:
        client = connect(proxy.address)
        with pytest.raises(TransportError):
            client.push(KEY, parts, timeout_seconds=10)
        assert client.push(KEY, parts, timeout_seconds=10) is PushStatus.COMPLETE
        assert proxy.fired == [Fault.CUT]
        assert store.gradients[KEY] == content
