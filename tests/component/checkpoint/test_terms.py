"""Shards that really listen go back to a checkpoint: whoever is of the older term, and late, is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import torch

from builders_checkpoint import make_progress
from heterotrain.tensor_messages import tensor_message
from heterotrain.tensors import byte_view
from heterotrain.transport.base import Part, PullStatus, PushKey, PushStatus, RefusedError, TransportError
from heterotrain.transport.tcp import Hello, TcpTensorClient
from heterotrain.transport.wire import split_address
from heterotrain_core.progress import to_document
from heterotrain_core.run_values import Manifest as Model
from heterotrain_rpc import shard_pb2
from heterotrain_rpc.session_pb2 import Manifest
from support.live_shards import LAYOUT, SECONDS, SPECS, ThreadShard, Worker, commit, order, start
from support.proxy import Fault, Proxy

GRADIENT = {"weight": torch.ones(3, 5), "count": torch.tensor(1)}
MODEL = Model(SPECS, "SGD", ('{"lr": 1.0}',), 20)


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[list[ThreadShard]]:
    with ThreadShard(0, tmp_path) as first, ThreadShard(1, tmp_path) as second:
        yield [first, second]


def configure(shards: list[ThreadShard], term: int) -> None:
    tensors = [tensor_message(spec) for spec in SPECS]
    for shard in shards:
        request = shard_pb2.ConfigureRequest(
            term=term,
            shard=shard.index,
            num_shards=len(shards),
            manifest=Manifest(tensors=tensors, optimizer="SGD", groups=['{"lr": 1.0}']),
            workers=["cpu-0", "cpu-1"],
            shards=[s.tensor for s in shards],
        )
        assert shard.stub().Configure(request, timeout=SECONDS).refusal == ""


def save(shards: list[ThreadShard], version: int) -> shard_pb2.SaveReply:
    capture = shard_pb2.CaptureRequest(term=1, version=version)
    sizes = [s.stub().Capture(capture, timeout=SECONDS).bytes for s in shards]
    progress = make_progress(version, manifest=MODEL, epoch=0, used=((0, 8),))
    request = shard_pb2.SaveRequest(
        term=1, version=version, folder="checkpoints", bytes=sizes, progress=json.dumps(to_document(progress)), keep=2
    )
    return shards[0].stub().Save(request, timeout=SECONDS)


def open_term(shards: list[ThreadShard], reached: int) -> shard_pb2.OpenTermReply:
    request = shard_pb2.OpenTermRequest(folder="checkpoints", above=1, reached=reached)
    return shards[0].stub().OpenTerm(request, timeout=SECONDS)


def test_what_is_late_of_the_older_term_is_refused_on_every_way(tmp_path: Path, shards: list[ThreadShard]) -> None:
    with Worker(0, shards, tmp_path) as worker:
        start(shards, worker)
        assert worker.push(0, GRADIENT) == [PushStatus.COMPLETE] * 2
        assert [commit(s.stub(), order(0, 0)).version for s in shards] == [1, 1]
        assert save(shards, 1).refusal == ""
        want = worker.pull(1)
        # Half of a push is there; its connection, a slow one, breaks and will be tried again. A pull waits.
        arena = byte_view(torch.zeros(LAYOUT.global_bytes, dtype=torch.uint8))
        key, hello = PushKey(1, 0, 1, 1), Hello("cpu-0", 0, 1, 1)
        parts = [Part(e.shard_offset, arena[: e.num_bytes]) for e in LAYOUT.extents_of(0, pushed=True)]
        late: list[str] = []
        with Proxy(split_address(shards[0].tensor), [(Fault.CUT, 3500)]) as link:
            slow = TcpTensorClient(link.address, "ps-0", tmp_path / "cpu-0", hello)
            with pytest.raises(TransportError):
                push_until_it_breaks(slow, key, parts[:1])
            pull = threading.Thread(target=lambda: late.append(waiting_pull(shards[1], tmp_path)))
            pull.start()
            opened = open_term(shards, reached=1)
            assert (opened.term, opened.restores, opened.rounds_lost, opened.own) == (2, 1, 0, True)
            configure(shards, 2)
            with pytest.raises(RefusedError, match="term 1 is over, the present one is 2"):
                slow.push(key, parts, timeout_seconds=SECONDS)
            slow.close()
            assert link.fired == [Fault.CUT]
        pull.join(SECONDS)
        assert late == ["ps-1 refused: term 1 is over, the present one is 2"]
        for shard in shards:
            with pytest.raises(grpc.RpcError) as refused:
                commit(shard.stub(), order(1, 0))
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION  # type: ignore[attr-defined]
    restore = shard_pb2.RestoreRequest(term=2, version=1, files=opened.files)
    calls = [s.stub().Restore.future(restore, timeout=SECONDS) for s in shards]
    assert [call.result().refusal for call in calls] == ["", ""]
    assert [s.stub().Standing(shard_pb2.StandingRequest(), timeout=SECONDS).version for s in shards] == [1, 1]
    assert torch.equal(pulled(shards, tmp_path), want["weight"].reshape(-1))


def push_until_it_breaks(client: TcpTensorClient, key: PushKey, parts: list[Part]) -> None:
    while True:
        client.push(key, parts, timeout_seconds=SECONDS)


def waiting_pull(shard: ThreadShard, folder: Path) -> str:
    memory = memoryview(bytearray(4))
    with TcpTensorClient(shard.tensor, shard.name, folder / "cpu-0", Hello("cpu-0", 0, 1, 1)) as client:
        try:
            client.pull(1, 2, [Part(0, memory)], wait_seconds=20.0, timeout_seconds=SECONDS)
        except RefusedError as error:
            return str(error)
    return "it was answered"


def pulled(shards: list[ThreadShard], folder: Path) -> torch.Tensor:
    """The weight at version 1, by a worker of term 2."""
    arena = torch.zeros(LAYOUT.global_bytes, dtype=torch.uint8)
    view = byte_view(arena)
    for index, shard in enumerate(shards):
        with TcpTensorClient(shard.tensor, shard.name, folder / "cpu-0", Hello("cpu-0", 0, 1, 2)) as client:
            parts = [
                Part(e.shard_offset, view[e.global_offset : e.global_offset + e.num_bytes])
                for e in LAYOUT.extents_of(index, pushed=False)
            ]
            status = client.pull(2, 1, parts, wait_seconds=5.0, timeout_seconds=SECONDS)
            assert status is PullStatus.DONE
    offset = LAYOUT.tensor_offsets[0]
    return arena[offset : offset + 60].view(torch.float32)


def test_only_shard_0_writes_and_only_inside_its_folder(tmp_path: Path, shards: list[ThreadShard]) -> None:
    first, second = shards
    request = shard_pb2.OpenTermRequest(folder="checkpoints")
    assert "only shard 0 opens terms" in second.stub().OpenTerm(request, timeout=SECONDS).refusal
    for folder, output in (("../elsewhere", ""), ("", ""), ("checkpoints", "/etc")):
        outside = shard_pb2.OpenTermRequest(folder=folder, output=output)
        assert " must " in first.stub().OpenTerm(outside, timeout=SECONDS).refusal
    assert not (tmp_path / "elsewhere").exists()
