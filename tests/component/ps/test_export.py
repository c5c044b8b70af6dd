"""The model file: real files; other shards answer in this process."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from heterotrain.manifest import describe_model
from heterotrain.ps import export
from heterotrain.ps.export import Exporter, replacing
from heterotrain.ps.pulling import Connect
from heterotrain.transport.base import (
    Part,
    PullStatus,
    PushKey,
    PushStatus,
    RefusedError,
    TransportError,
)
from heterotrain_core.layout import TensorKind, TensorSpec
from shard_job import ShardJob, specs_of

MODEL = {
    "embedding": torch.arange(10, dtype=torch.bfloat16).reshape(5, 2),
    "weight": torch.arange(15, dtype=torch.float32).reshape(3, 5),
    "bias": torch.arange(3, dtype=torch.float64),
    "scale": torch.tensor(2.5),
    "nothing": torch.zeros(0, 4),
    "table": torch.arange(7, dtype=torch.float16),
    "mean": torch.arange(4, dtype=torch.float32),
    "num_batches_tracked": torch.tensor(12),
    "mask": torch.tensor([True, False, True]),
}
KINDS = {
    "table": TensorKind.FROZEN,
    "mean": TensorKind.FLOAT_BUFFER,
    "num_batches_tracked": TensorKind.INTEGER_BUFFER,
    "mask": TensorKind.INTEGER_BUFFER,
}


class StoreClient:
    """A `TensorClient` straight to a store; the first `breaks` pulls break."""

    def __init__(self, job: ShardJob, shard: int, breaks: int = 0) -> None:
        self._job, self._shard = job, shard
        self._breaks = breaks
        self.closed = False
        self.receive_seconds = 0.0

    def push(self, key: PushKey, parts: Sequence[Part], *, timeout_seconds: float) -> PushStatus:
        raise AssertionError("nothing is pushed")

    def pull(
        self, term: int, version: int, parts: Sequence[Part], *, wait_seconds: float, timeout_seconds: float
    ) -> PullStatus:
        if self._breaks:
            self._breaks -= 1
            raise TransportError("connection broke")
        with self._job.stores[self._shard].snapshot(term, version, 0.0) as held:
            if held is None:
                return PullStatus.NOT_YET
            for part in parts:
                part.buffer[:] = held.buffer[part.offset : part.offset + part.buffer.nbytes]
        return PullStatus.DONE

    def close(self) -> None:
        self.closed = True


class Export:
    def __init__(
        self,
        num_shards: int,
        breaks: int = 0,
        model: dict[str, torch.Tensor] = MODEL,
        specs: Sequence[TensorSpec] | None = None,
    ) -> None:
        self.job = ShardJob(specs or specs_of(model, KINDS), num_shards=num_shards).start(model)
        self.clients: list[StoreClient] = []
        self._breaks = breaks

    @property
    def connect(self) -> Connect:
        def connect(shard: int) -> StoreClient:
            self.clients.append(StoreClient(self.job, shard, self._breaks))
            return self.clients[-1]

        return connect

    def __call__(self, path: Path, version: int = 0) -> Any:
        exporter = Exporter(store=self.job.stores[0], job_name="fashion", job_uid="uid-1")
        return exporter.export(self.job.shard_specs[0], version, path, self.connect)


@pytest.mark.parametrize("num_shards", [1, 2, 7])
@pytest.mark.parametrize("piece_bytes", [5, 1 << 26], ids=["in small pieces", "in one piece"])
def test_the_file_holds_the_state_dict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_shards: int, piece_bytes: int
) -> None:
    monkeypatch.setattr(export, "PIECE_BYTES", piece_bytes)
    run = Export(num_shards)
    path = tmp_path / "new folder" / "model.safetensors"
    exported = run(path)
    loaded = load_file(path)
    assert set(loaded) == set(MODEL)
    for name, tensor in MODEL.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor), name
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt", "job": "fashion", "version": "0"}
    content = path.read_bytes()
    assert json.loads((path.parent / "model.json").read_text()) == {
        "formatVersion": 1,
        "job": {"name": "fashion", "uid": "uid-1"},
        "version": 0,
        "file": "model.safetensors",
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "optimizer": "SGD",
        "tensors": [
            {"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "kind": t.kind.name}
            for t in run.job.layout.tensors
        ],
    }
    assert (exported.path, exported.num_bytes) == (path, len(content))
    assert sorted(p.name for p in path.parent.iterdir()) == ["model.json", "model.safetensors"]
    assert all(client.closed for client in run.clients)


class Tied(nn.Module):
    """Weights under two names, a module in two places, and types of every width between them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(3, dtype=torch.float64)
        self.again = self.norm
        self.out = nn.Linear(3, 5, dtype=torch.float32)
        self.out.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        self.also_scale = self.scale


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_model_with_tied_weights_can_be_loaded_strictly(tmp_path: Path, num_shards: int) -> None:
    torch.manual_seed(3)
    model = Tied()
    specs = describe_model(model, [{"params": list(model.parameters())}]).specs
    assert sum(len(spec.aliases) for spec in specs) == 7
    path = tmp_path / "model.safetensors"
    Export(num_shards, model=model.state_dict(), specs=specs)(path)
    torch.manual_seed(4)
    loaded = Tied()
    loaded.load_state_dict(load_file(path), strict=True)
    assert loaded.out.weight is loaded.embedding.weight
    want = model.state_dict()
    assert all(torch.equal(value, want[name]) for name, value in loaded.state_dict().items())
    names = [tensor["name"] for tensor in json.loads((tmp_path / "model.json").read_text())["tensors"]]
    assert sorted(names) == sorted(want)
    # The format asks for whole elements at whole multiples of their size.
    header = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])
    starts = {n: (e["data_offsets"][0], want[n].element_size()) for n, e in header.items() if n != "__metadata__"}
    assert [n for n, (start, size) in starts.items() if start % size] == []


def test_an_export_replaces_the_one_before(tmp_path: Path) -> None:
    run, path = Export(2), tmp_path / "model.safetensors"
    run(path)
    run.job.push(0, 0, {n: torch.full_like(t, -1) for n, t in MODEL.items()})
    run.job.commit(0, {0: 1.0})
    run(path, version=1)
    assert torch.equal(load_file(path)["bias"], MODEL["bias"] + 1)
    assert json.loads((tmp_path / "model.json").read_text())["version"] == 1


def test_a_connection_that_breaks_is_made_again(tmp_path: Path) -> None:
    Export(2, breaks=2)(tmp_path / "model.safetensors")
    assert torch.equal(load_file(tmp_path / "model.safetensors")["weight"], MODEL["weight"])


def test_the_file_before_stays_when_a_shard_cannot_be_reached(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"before")
    with pytest.raises(TransportError, match="connection broke"):
        Export(2, breaks=3)(path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"model.safetensors": b"before"}


@pytest.mark.parametrize("version", [-1, 1])
def test_a_version_that_is_not_there_is_refused(tmp_path: Path, version: int) -> None:
    with pytest.raises(RefusedError):
        Export(2)(tmp_path / "model.safetensors", version)
    assert list(tmp_path.iterdir()) == []


def test_a_version_that_another_shard_has_not_got_is_refused(tmp_path: Path) -> None:
    run = Export(2)
    run.job.stores[0].commit(run.job.order(0, {}))
    with pytest.raises(RefusedError, match="not published on all shards"):
        run(tmp_path / "model.safetensors", version=1)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    def write() -> None:
        with replacing(tmp_path / "model.safetensors") as file:
            file.write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_a_tensor_with_the_formats_own_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be called `__metadata__`"):
        Export(1, model={"__metadata__": torch.zeros(1)})(tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []
