"""The model alone, out of a checkpoint: one safetensors file that ``load_state_dict`` takes strictly. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final, NamedTuple

from heterotrain.checkpoint.folder import Checkpoint
from heterotrain.checkpoint.model_file import Stretch, file_header, replacing, stretches
from heterotrain.checkpoint.shard_file import LENGTH, Header, decode_header, header_bytes, value_name
from heterotrain_core.layout import DTYPE_BYTES, Layout, TensorSpec, make_layout

PIECE_BYTES: Final = 1 << 24


class _File(NamedTuple):
    file: IO[bytes]
    header: Header


def export_model(checkpoint: Checkpoint, path: Path) -> int:
    """Write the model of a verified checkpoint to `path`, whole or not at all; returns the file's bytes.

    Raises `OSError` if it cannot be read or written, `ValueError` for a checkpoint that does not hold its model.
    """
    progress = checkpoint.manifest.progress
    layout = make_layout(progress.manifest.tensors, 1)
    metadata = {"format": "pt", "job": checkpoint.manifest.job_name, "version": str(progress.version)}
    with ExitStack() as stack:
        files = [_open(stack, file) for file in checkpoint.files]
        with replacing(path) as target:
            target.write(file_header(layout, metadata))
            for stretch in stretches(layout):
                for tensor in _tensors(layout, stretch):
                    for piece in _contents(files, tensor):
                        target.write(piece)
            return target.tell()


def _open(stack: ExitStack, path: Path) -> _File:
    file = stack.enter_context(path.open("rb"))
    size = path.stat().st_size
    length = header_bytes(file.read(LENGTH.size), size)
    return _File(file, decode_header(file.read(length), size))


def _tensors(layout: Layout, stretch: Stretch) -> list[TensorSpec]:
    """Of one stretch of the file, in order: a region's, or the one that has a further name."""
    if isinstance(stretch.what, str):
        return [t for t in layout.tensors if stretch.what in t.aliases]
    return [t for t in layout.tensors if (t.kind, t.dtype) == stretch.what]


def _contents(files: Sequence[_File], tensor: TensorSpec) -> Iterator[bytes]:
    """A tensor's bytes, from the pieces that the shards wrote."""
    name = value_name(tensor.name)
    pieces = sorted((f.header.starts[tensor.name], f) for f in files if name in f.header.entries)
    done = 0
    for start, (file, header) in pieces:
        entry = header.entries[name]
        if start != done or entry.dtype != tensor.dtype:
            break
        file.seek(entry.begin)
        for offset in range(entry.begin, entry.end, PIECE_BYTES):
            yield file.read(min(PIECE_BYTES, entry.end - offset))
        done += (entry.end - entry.begin) // DTYPE_BYTES[tensor.dtype]
    if done != tensor.num_elements:
        raise ValueError(f"the checkpoint holds {done} of {tensor.num_elements} elements of `{tensor.name}`")
