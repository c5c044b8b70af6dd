"""Parameter servers that really listen: mutual TLS, gRPC and the tensor transport on loopback."""

from __future__ import annotations

import queue
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
import torch
from safetensors.torch import load_file

from heterotrain.ps.__main__ import main
from heterotrain.transport.base import PushStatus, RefusedError, TransportError
from heterotrain_api.contract import Env, ExitCode, Role
from heterotrain_rpc.shard_pb2 import CommitRequest, ExportRequest, ShutdownRequest
from support.live_shards import (
    ARGUMENTS,
    SECONDS,
    START,
    ProcessShard,
    ThreadShard,
    Worker,
    commit,
    configure,
    order,
    start,
)


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[list[ThreadShard]]:
    with ExitStack() as stack:
        yield [stack.enter_context(ThreadShard(index, tmp_path)) for index in range(2)]


def test_a_job_from_its_first_push_to_its_model_file(shards: list[ThreadShard], tmp_path: Path) -> None:
    with Worker(0, shards, tmp_path) as first, Worker(1, shards, tmp_path) as second:
        start(shards, first)
        assert first.pull(0)["weight"].tolist() == START["weight"].tolist()
        for worker, value in [(first, -1.0), (second, -3.0)]:
            gradient = {"weight": torch.full((3, 5), value), "count": torch.tensor(1)}
            assert worker.push(0, gradient) == [PushStatus.COMPLETE] * 2
        parts = [s.stub().Aggregate(order(0, 0, 1), timeout=SECONDS).norm_part for s in shards]
        assert sum(parts) == 15 * 2.0**2
        replies = [commit(s.stub(), order(0, 0, 1, clip_coefficient=0.5)) for s in shards]
        assert [r.version for r in replies] == [1, 1]
        pulled = second.pull(1)
        assert (pulled["weight"].tolist(), pulled["count"].item()) == ([[1.0] * 5] * 3, 1)

    request = ExportRequest(term=1, version=1, folder="", file="model.safetensors")
    reply = shards[0].stub().Export(request, timeout=SECONDS)
    path = tmp_path / "output" / "model.safetensors"
    assert (reply.refusal, reply.path, reply.bytes) == ("", str(path), path.stat().st_size)
    assert {n: t.tolist() for n, t in load_file(path).items()} == {"weight": [[1.0] * 5] * 3, "count": 1}
    assert "only shard 0 writes" in shards[1].stub().Export(request, timeout=SECONDS).refusal

    for shard in shards:
        shard.stub().Shutdown(ShutdownRequest(), timeout=SECONDS)
        shard.wait()
    assert [shard.running for shard in shards] == [False, False]


def test_what_cannot_be_is_answered_with_the_reason_and_the_shard_goes_on(
    shards: list[ThreadShard], tmp_path: Path
) -> None:
    assert all("optimizer `LBFGS` cannot run" in refusal for refusal in configure(shards, optimizer="LBFGS"))
    stub = shards[0].stub()
    with pytest.raises(grpc.RpcError) as error:
        commit(stub, order(0))
    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "no model yet" in (error.value.details() or "")
    with Worker(0, shards, tmp_path) as worker:
        with pytest.raises(RefusedError, match="cpu-0 is not among the workers"):
            worker.push(0, START)
        start(shards, worker)
        with pytest.raises(grpc.RpcError) as error:
            configure(shards, optimizer="Adam")
        assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "another model is here in term 1: optimizer" in (error.value.details() or "")
        with pytest.raises(grpc.RpcError) as error:
            commit(stub, order(0, 0, norm_type=-1.0))
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "norm_type must be above 0" in (error.value.details() or "")
        request = ExportRequest(term=1, folder="/etc", file="a.safetensors")
        assert "not be /etc" in stub.Export(request, timeout=SECONDS).refusal
        worker.push(0, {"weight": -torch.ones(3, 5), "count": torch.tensor(1)})
        for shard in shards:
            commit(shard.stub(), order(0, 0))
        assert worker.pull(1)["weight"].tolist() == [[1.0] * 5] * 3


def test_a_shard_that_ends_does_not_wait_for_the_next_commit(
    shards: list[ThreadShard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterotrain.ps.__main__._GRACE_SECONDS", 1000.0)
    orders: queue.SimpleQueue[CommitRequest | None] = queue.SimpleQueue()
    with Worker(0, shards, tmp_path) as worker:
        start(shards, worker)
        worker.push(0, START)
        orders.put(order(0, 0))
        replies = iter(shards[0].stub().Commit(iter(orders.get, None), timeout=SECONDS))
        assert next(replies).version == 1
        shards[0].stub().Shutdown(ShutdownRequest(), timeout=SECONDS)
        assert list(replies) == []
        shards[0].wait()
        assert not shards[0].running
        orders.put(None)


def test_a_commit_whose_call_broke_before_the_answer_is_carried_out_once(
    shards: list[ThreadShard], tmp_path: Path
) -> None:
    with Worker(0, shards, tmp_path) as worker:
        start(shards, worker)
        for version in range(4):  # the later ones are made ahead
            worker.push(version, {"weight": -torch.ones(3, 5), "count": torch.tensor(version)})
            for shard in shards:
                stub = shard.stub()
                assert commit(stub, order(version, 0)).version == version + 1
                assert commit(stub, order(version, 0)).version == version + 1
            assert worker.pull(version + 1)["weight"].tolist() == [[version + 1.0] * 5] * 3


def test_a_shard_without_memory_does_not_blame_the_model(
    shards: list[ThreadShard], monkeypatch: pytest.MonkeyPatch
) -> None:
    def allocate(num_bytes: int) -> torch.Tensor:
        raise MemoryError(f"{num_bytes} bytes of memory cannot be had")

    monkeypatch.setattr("heterotrain.ps.part.allocate", allocate)
    with pytest.raises(grpc.RpcError) as error:
        configure(shards)
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.value.details() == "64 bytes of memory cannot be had"


@pytest.mark.parametrize(("role", "name"), [(Role.WORKER, "cpu-0"), (Role.OPERATOR, "operator")])
def test_only_parameter_servers_may_command_a_shard(shards: list[ThreadShard], role: Role, name: str) -> None:
    with pytest.raises(grpc.RpcError) as error:
        shards[0].stub(role, name).Shutdown(ShutdownRequest(), timeout=SECONDS)
    assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert shards[0].running


@pytest.mark.timeout(120)  # two interpreters import torch
def test_processes_end_in_peace_on_request_and_on_a_signal(tmp_path: Path) -> None:
    with ExitStack() as stack:
        processes = [stack.enter_context(ProcessShard(index, tmp_path)) for index in range(2)]
        for shard in processes:
            shard.wait_until_ready()
        worker = stack.enter_context(Worker(0, processes, tmp_path))
        start(processes, worker)
        worker.push(0, {"weight": -torch.ones(3, 5), "count": torch.tensor(1)})
        for shard in processes:
            commit(shard.stub(), order(0, 0))
        assert worker.pull(1)["weight"].tolist() == [[1.0] * 5] * 3
        waiting = stack.enter_context(ThreadPoolExecutor(1)).submit(worker.pull, 2)
        processes[1].process.send_signal(signal.SIGTERM)
        processes[0].stub().Shutdown(ShutdownRequest(), timeout=SECONDS)
        assert [shard.process.wait(SECONDS) for shard in processes] == [ExitCode.SUCCEEDED] * 2
        assert isinstance(waiting.exception(SECONDS), RefusedError | TransportError)


def test_without_its_environment_a_process_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(Env.NAME, raising=False)
    monkeypatch.setattr("sys.argv", ["heterotrain.ps"])
    assert main() == ExitCode.INVALID
    assert capsys.readouterr().err == "HETEROTRAIN_NAME must be set to the process's name, such as ps-0\n"


def test_without_its_certificates_a_process_cannot_serve(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, value in ThreadShard(0, tmp_path).environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "ps-0" / "tls.key").unlink()
    monkeypatch.setattr("sys.argv", ["heterotrain.ps", *ARGUMENTS])
    assert main() == ExitCode.FAILED
    assert "ps-0 cannot serve" in capsys.readouterr().err
