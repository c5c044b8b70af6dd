"""Pushes and pulls over all shards: what is tried again, what is not, and who is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from heterotrain import PeerLostError
from heterotrain.shards import RETRIES, Shards, make_links, retry_delays
from heterotrain.transport.base import Part, PullStatus, PushKey, PushStatus, RefusedError, TransportError
from heterotrain_core.layout import TensorKind, TensorSpec, make_layout

LAYOUT = make_layout(
    (TensorSpec("w", (8,), "F32", TensorKind.PARAMETER, 0), TensorSpec("fixed", (4,), "F32", TensorKind.FROZEN)), 2
)
KEY = PushKey(1, 0, 1, 0)


@dataclass
class FakeClient:
    """Answers with `script` first, then well; errors are raised."""

    script: list[object] = field(default_factory=list)
    seen: list[list[tuple[int, int]]] = field(default_factory=list)
    closed: bool = False
    receive_seconds: float = 0.0

    def push(self, key: PushKey, parts: Sequence[Part], *, timeout_seconds: float) -> PushStatus:
        return self._answer(parts, PushStatus.COMPLETE)

    def pull(
        self, term: int, version: int, parts: Sequence[Part], *, wait_seconds: float, timeout_seconds: float
    ) -> PullStatus:
        return self._answer(parts, PullStatus.DONE)

    def close(self) -> None:
        self.closed = True

    def _answer(self, parts: Sequence[Part], usual: object) -> object:
        self.seen.append([(p.offset, p.buffer.nbytes) for p in parts])
        answer = self.script.pop(0) if self.script else usual
        if isinstance(answer, Exception):
            raise answer
        return answer


def make_shards(*clients: FakeClient, check: Callable[[], None] = lambda: None) -> tuple[Shards, list[float]]:
    slept: list[float] = []
    values, pushed = (memoryview(bytearray(LAYOUT.global_bytes)) for _ in range(2))
    links = make_links(["ps-0", "ps-1"], clients, LAYOUT, values=values, pushed=pushed)
    return Shards(links, check, slept.append), slept


def test_a_gradient_leaves_out_what_is_frozen() -> None:
    clients = FakeClient(), FakeClient()
    shards, _ = make_shards(*clients)
    assert shards.push(KEY) == {"ps-0": PushStatus.COMPLETE, "ps-1": PushStatus.COMPLETE}
    shards.pull(1, 0, frozen=True)
    shards.pull(1, 1, frozen=False)
    shards.close()
    for client in clients:
        assert client.seen == [[(0, 16)], [(0, 16), (64, 8)], [(0, 16)]]
        assert client.closed


def test_receiving_takes_as_long_as_the_slowest_shard_whatever_was_waited_for() -> None:
    slow = FakeClient([PullStatus.NOT_YET] * 3, receive_seconds=0.25)
    shards, _ = make_shards(FakeClient(receive_seconds=0.125), slow)
    assert shards.pull(1, 5, frozen=False) == 0.25


def test_a_refusal_of_one_shard_is_told_beside_the_others() -> None:
    shards, _ = make_shards(FakeClient(), FakeClient([PushStatus.NOT_FINITE]))
    assert shards.push(KEY) == {"ps-0": PushStatus.COMPLETE, "ps-1": PushStatus.NOT_FINITE}


def test_a_broken_transfer_is_tried_again_after_growing_pauses() -> None:
    client = FakeClient([TransportError("broken")] * 3)
    shards, slept = make_shards(client, FakeClient())
    assert shards.push(KEY)["ps-0"] is PushStatus.COMPLETE
    assert slept == pytest.approx([0.1, 0.2, 0.4])


def test_a_shard_that_stays_away_ends_the_worker() -> None:
    shards, slept = make_shards(FakeClient([TransportError("no route")] * RETRIES), FakeClient())
    with pytest.raises(PeerLostError) as raised:
        shards.push(KEY)
    assert raised.value.reason == "parameter server ps-0 does not answer: no route"
    assert slept == list(retry_delays())


def test_a_refusal_for_good_is_not_tried_again() -> None:
    shards, slept = make_shards(FakeClient(), FakeClient([RefusedError("term 1 is over")]))
    with pytest.raises(PeerLostError) as raised:
        shards.pull(1, 0, frozen=True)
    assert raised.value.reason == "parameter server ps-1 refused this worker: term 1 is over"
    assert slept == []


def test_a_version_is_asked_for_again_while_the_session_lives() -> None:
    checks: list[int] = []
    shards, _ = make_shards(FakeClient([PullStatus.NOT_YET] * 3), FakeClient(), check=lambda: checks.append(1))
    shards.pull(1, 5, frozen=False)
    assert len(checks) == 3


@pytest.mark.parametrize("answer", [PullStatus.NOT_YET, TransportError("broken"), RefusedError("shutting down")])
def test_the_coordinators_reason_wins(answer: object) -> None:
    def dismissed() -> None:
        raise PeerLostError("worker cpu-1 was lost")

    shards, _ = make_shards(FakeClient([answer]), FakeClient(), check=dismissed)
    with pytest.raises(PeerLostError) as raised:
        shards.pull(1, 5, frozen=False)
    assert raised.value.reason == "worker cpu-1 was lost"
