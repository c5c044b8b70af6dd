"""The model file as it lies on disk: safetensors, every tensor under each of its names. Pure, but for `replacing`.

https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import IO, NamedTuple

from heterotrain.checkpoint.shard_file import encode_entries
from heterotrain_core.layout import DTYPE_BYTES, Layout, TensorKind


class Stretch(NamedTuple):
    """A range of the global arena that the file holds as a whole: a region, or a tensor again under another name."""

    what: tuple[TensorKind, str] | str
    """Kind and dtype of the region, or that name."""
    dtype: str
    offset: int
    num_bytes: int


def stretches(layout: Layout) -> list[Stretch]:
    """What the file holds, in its order.

    Tied tensors are written once for each of their names, as the state dict has them: the format lets no two entries
    share bytes, and whoever loads the file with ``load_state_dict`` expects every name. The format allows no gaps; with
    the widest types first, every tensor is aligned without any.
    """
    regions = [Stretch((r.kind, r.dtype), r.dtype, r.offset, r.num_bytes) for r in layout.regions]
    again = [
        Stretch(alias, tensor.dtype, offset, tensor.num_bytes)
        for tensor, offset in zip(layout.tensors, layout.tensor_offsets, strict=True)
        for alias in tensor.aliases
    ]
    return sorted((*regions, *again), key=lambda stretch: -DTYPE_BYTES[stretch.dtype])


def file_header(layout: Layout, metadata: dict[str, str]) -> bytes:
    """Return what precedes the tensors in a safetensors file: the length, then a JSON object padded to 8 bytes.

    Raises `ValueError` for a tensor with the format's own name ``__metadata__``.
    """
    held = stretches(layout)
    ends = accumulate(stretch.num_bytes for stretch in held)
    shifts = {s.what: end - s.num_bytes - s.offset for s, end in zip(held, ends, strict=True)}
    entries: dict[str, object] = {"__metadata__": metadata}
    for tensor, offset in zip(layout.tensors, layout.tensor_offsets, strict=True):
        names = {tensor.name: shifts[tensor.kind, tensor.dtype], **{a: shifts[a] for a in tensor.aliases}}
        for name, shift in names.items():
            if name in entries:
                raise ValueError(f"a tensor cannot be called `{name}` in a safetensors file")
            offsets = [offset + shift, offset + shift + tensor.num_bytes]
            entries[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": offsets}
    return encode_entries(entries)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file that takes the place of `path` when the block ends, durably and at once; never if it raises."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
