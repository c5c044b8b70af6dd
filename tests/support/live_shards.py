"""Parameter servers that really listen, in this process or their own, and workers' connections to them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch

from heterotrain.ps.__main__ import serve
from heterotrain.ps.settings import read_settings
from heterotrain.tensor_messages import tensor_message
from heterotrain.tensors import byte_view
from heterotrain.transport.base import INITIAL_ITERATION, Part, PullStatus, PushKey, PushStatus
from heterotrain.transport.tcp import Hello, TcpTensorClient
from heterotrain_api.contract import Env, Role
from heterotrain_core.layout import TensorKind, TensorSpec, make_layout
from heterotrain_rpc.channels import make_sync_channel
from heterotrain_rpc.session_pb2 import Manifest
from heterotrain_rpc.shard_pb2 import CommitContribution, CommitReply, CommitRequest, ConfigureRequest, PublishRequest
from heterotrain_rpc.shard_pb2_grpc import ShardStub
from shard_job import global_arena, tensors_of
from support.credentials import JOB_UID, credentials

SECONDS = 30.0
SPECS = (
    TensorSpec("weight", (3, 5), "F32", TensorKind.PARAMETER, 0),
    TensorSpec("count", (), "I64", TensorKind.INTEGER_BUFFER),
)
LAYOUT = make_layout(SPECS, 2)
START = {"weight": torch.zeros(3, 5), "count": torch.tensor(0)}
ARGUMENTS = ("--host", "127.0.0.1", "--control-port", "0", "--tensor-port", "0")


class Shard:
    """A shard's addresses; `start` says how it runs."""

    control = ""
    tensor = ""

    def __init__(self, index: int, folder: Path) -> None:
        self.name = f"ps-{index}"
        self.index = index
        credentials(Role.PS, self.name).write(folder / self.name)
        self.environment = {
            Env.JOB_NAME: "fashion",
            Env.JOB_UID: JOB_UID,
            Env.NAME: self.name,
            Env.CERTIFICATES: str(folder / self.name),
            Env.OUTPUT: str(folder / "output"),
        }

    def stub(self, role: Role = Role.PS, name: str = "ps-0") -> ShardStub:
        return ShardStub(make_sync_channel(self.control, self.name, credentials(role, name)))

    def _at(self, control: int, tensor: int) -> None:
        self.control, self.tensor = f"127.0.0.1:{control}", f"127.0.0.1:{tensor}"


class ThreadShard(Shard):
    """A shard whose event loop runs in a thread of this process."""

    def __enter__(self) -> Self:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(SECONDS)
        return self

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        await serve(read_settings(self.environment, ARGUMENTS), self._announce, self._ended)

    def _announce(self, control: int, tensor: int) -> None:
        self._at(control, tensor)
        self._ready.set()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join(SECONDS)

    def __exit__(self, *_: object) -> None:
        if self.running:
            self._loop.call_soon_threadsafe(self._ended.set)
        self.wait()


class ProcessShard(Shard):
    """A shard as it is run: ``python -m heterotrain.ps``."""

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "heterotrain.ps", *ARGUMENTS],
            env={**os.environ, **self.environment, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return self

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        word, *pairs = line.split()
        assert word == "ready", line
        ports = dict(pair.split("=") for pair in pairs)
        self._at(int(ports["control"]), int(ports["tensor"]))

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()


def configure(shards: Sequence[Shard], **manifest: object) -> list[str]:
    """Configure all shards; returns their refusals."""
    fields: dict[str, Any] = {"optimizer": "SGD", "groups": ['{"lr": 1.0}'], **manifest}
    tensors = [tensor_message(spec) for spec in SPECS]
    return [
        shard.stub()
        .Configure(
            ConfigureRequest(
                term=1,
                shard=shard.index,
                num_shards=len(shards),
                manifest=Manifest(tensors=tensors, **fields),
                workers=["cpu-0", "cpu-1"],
                shards=[s.tensor for s in shards],
            ),
            timeout=SECONDS,
        )
        .refusal
        for shard in shards
    ]


class Worker:
    """Connections of one worker to all shards."""

    def __init__(self, ordinal: int, shards: Sequence[Shard], folder: Path) -> None:
        name = f"cpu-{ordinal}"
        self.ordinal = ordinal
        credentials(Role.WORKER, name).write(folder / name)
        hello = Hello(name, ordinal, 1, 1)
        self.clients = [TcpTensorClient(s.tensor, s.name, folder / name, hello) for s in shards]

    def push(self, iteration: int, tensors: dict[str, torch.Tensor]) -> list[PushStatus]:
        arena = byte_view(global_arena(LAYOUT, tensors))
        key = PushKey(1, self.ordinal, 1, iteration)
        return [
            client.push(
                key,
                [
                    Part(e.shard_offset, arena[e.global_offset : e.global_offset + e.num_bytes])
                    for e in LAYOUT.extents_of(shard, pushed=iteration != INITIAL_ITERATION)
                ],
                timeout_seconds=SECONDS,
            )
            for shard, client in enumerate(self.clients)
        ]

    def pull(self, version: int, wait_seconds: float = 10.0) -> dict[str, torch.Tensor]:
        arena = torch.zeros(LAYOUT.global_bytes, dtype=torch.uint8)
        view = byte_view(arena)
        for shard, client in enumerate(self.clients):
            parts = [
                Part(e.shard_offset, view[e.global_offset : e.global_offset + e.num_bytes])
                for e in LAYOUT.extents_of(shard, pushed=False)
            ]
            status = client.pull(1, version, parts, wait_seconds=wait_seconds, timeout_seconds=SECONDS)
            assert status is PullStatus.DONE
        return tensors_of(LAYOUT, arena)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            client.close()


def start(shards: Sequence[Shard], first: Worker) -> None:
    assert configure(shards) == ["", ""]
    assert first.push(INITIAL_ITERATION, START) == [PushStatus.COMPLETE] * 2
    assert [s.stub().Publish(PublishRequest(term=1), timeout=SECONDS).refusal for s in shards] == ["", ""]


def commit(stub: ShardStub, request: CommitRequest) -> CommitReply:
    return next(iter(stub.Commit(iter([request]), timeout=SECONDS)))


def order(version: int, *workers: int, **fields: Any) -> CommitRequest:
    contributions = [
        CommitContribution(worker=w, incarnation=1, iteration=version, weight=1 / len(workers)) for w in workers
    ]
    return CommitRequest(term=1, version=version, contributions=contributions, scale=1.0, **fields)
