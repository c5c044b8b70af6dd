"""The model file: shard 0 collects all parts of a version and writes them as ``model.safetensors`` with a manifest.

Parts are written in the order of the file as they come, in pieces of bounded size: no second copy of the model is held.
The file appears whole or not at all. https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from heterotrain.checkpoint.model_file import Stretch, file_header, replacing, stretches
from heterotrain.ps.pulling import PIECE_BYTES, PIECE_SECONDS, Connect, pull
from heterotrain.ps.store import ShardStore
from heterotrain.ps.values import ShardSpec
from heterotrain.transport.base import Part, RefusedError, TensorClient
from heterotrain_core.layout import Layout, make_layout

FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Exported:
    """A model file that is there."""

    path: Path
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """Writes versions of the model that `store` (shard 0) holds a part of."""

    store: ShardStore
    job_name: str
    job_uid: str
    timeout_seconds: float = PIECE_SECONDS
    """For one piece from another shard."""

    def export(self, spec: ShardSpec, version: int, path: Path, connect: Connect) -> Exported:
        """Write `version` to `path` and the manifest beside it (``model.json``); replaces what is there.

        Raises `RefusedError` if a shard does not hold the version, `TransportError` if a shard cannot be reached,
        `OSError` if the file cannot be written, `ValueError` for names that the format does not allow.
        """
        layout = make_layout(spec.tensors, spec.num_shards)
        header = file_header(layout, {"format": "pt", "job": self.job_name, "version": str(version)})
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with replacing(path) as file:
            for content in self._contents(spec, layout, header, version, connect):
                digest.update(content)
                file.write(content)
            num_bytes = file.tell()
        exported = Exported(path, num_bytes, digest.hexdigest())
        with replacing(path.with_suffix(".json")) as file:
            file.write(json.dumps(self._manifest(spec, version, exported), indent=2).encode() + b"\n")
        return exported

    def _contents(
        self, spec: ShardSpec, layout: Layout, header: bytes, version: int, connect: Connect
    ) -> Iterator[bytes | memoryview]:
        yield header
        scratch = memoryview(bytearray(min(PIECE_BYTES, max((e.num_bytes for e in layout.extents), default=0))))
        with ExitStack() as stack:
            own = stack.enter_context(self.store.snapshot(spec.term, version, 0.0))
            if own is None:
                raise RefusedError(f"version {version} is not published on shard {spec.shard} yet")
            clients: dict[int, TensorClient] = {}
            for span in (span for stretch in stretches(layout) for span in cut(layout, stretch)):
                if span.shard == spec.shard:
                    yield own.buffer[span.offset : span.offset + span.num_bytes]
                    continue
                if span.shard not in clients:
                    clients[span.shard] = connect(span.shard)
                    stack.callback(clients[span.shard].close)
                for start in range(0, span.num_bytes, PIECE_BYTES):
                    piece = scratch[: min(PIECE_BYTES, span.num_bytes - start)]
                    pull(
                        clients[span.shard],
                        spec.term,
                        version,
                        Part(span.offset + start, piece),
                        missing=f"version {version} is not published on all shards",
                        timeout_seconds=self.timeout_seconds,
                    )
                    yield piece

    def _manifest(self, spec: ShardSpec, version: int, exported: Exported) -> dict[str, object]:
        return {
            "formatVersion": FORMAT_VERSION,
            "job": {"name": self.job_name, "uid": self.job_uid},
            "version": version,
            "file": exported.path.name,
            "bytes": exported.num_bytes,
            "sha256": exported.sha256,
            "optimizer": spec.optimizer,
            "tensors": [
                {"name": name, "shape": list(t.shape), "dtype": t.dtype, "kind": t.kind.name}
                for t in spec.tensors
                for name in (t.name, *t.aliases)
            ],
        }


class Span(NamedTuple):
    """A range of one shard's arena."""

    shard: int
    offset: int
    num_bytes: int


def cut(layout: Layout, stretch: Stretch) -> Iterator[Span]:
    """Where the shards hold a stretch, in order."""
    end = stretch.offset + stretch.num_bytes
    for extent in layout.extents:
        low, high = max(extent.global_offset, stretch.offset), min(extent.global_offset + extent.num_bytes, end)
        if low < high:
            yield Span(extent.shard, extent.shard_offset + low - extent.global_offset, high - low)
