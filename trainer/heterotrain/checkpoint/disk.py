"""Durable file operations, one primitive step at a time, so that tests can let any of them be the last.

Whatever is written here is on the disk, not only in the system's memory, when the call returns.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PIECE_BYTES: Final = 1 << 24
"""Written at once; between two pieces others get the disk."""

Step = Callable[[str, Path], None]
"""Told of each primitive step before it is taken: its name and the path. May raise in its place."""


@dataclass(frozen=True, slots=True)
class Written:
    """A file as it was written."""

    num_bytes: int
    sha256: str


def _take(_step: str, _path: Path) -> None:
    """Take every step."""


class Disk:
    """Raises `OSError` for what the system refuses. Cleaning up after errors is the caller's."""

    def __init__(self, step: Step = _take) -> None:
        self._step = step

    def create_folder(self, path: Path) -> None:
        """Make a folder that is not there yet, and those above it."""
        self._step("mkdir", path)
        path.mkdir(parents=True)

    def write(self, path: Path, contents: Iterable[bytes | memoryview]) -> Written:
        """Write a file that is not there yet, and have it on the disk."""
        digest = hashlib.sha256()
        self._step("open", path)
        with path.open("xb", buffering=0) as file:
            for content in contents:
                view = memoryview(content)
                for start in range(0, len(view), PIECE_BYTES):
                    piece = view[start : start + PIECE_BYTES]
                    digest.update(piece)
                    self._step("write", path)
                    _write_all(file.fileno(), piece)
            self._step("fsync", path)
            os.fsync(file.fileno())
            return Written(file.tell(), digest.hexdigest())

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or folder another name in the same folder, at once; on the disk after `sync_folder`."""
        self._step("rename", target)
        source.rename(target)

    def replace(self, source: Path, target: Path) -> None:
        """As `rename`, for files; `target` may be there."""
        self._step("rename", target)
        source.replace(target)

    def sync_folder(self, path: Path) -> None:
        """Have the names in a folder on the disk."""
        self._step("fsync", path)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: Path) -> None:
        """Remove a file or a folder with all that is in it; nothing if it is not there."""
        self._step("remove", path)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def sha256_of(path: Path) -> Written:
    """Size and checksum of a file as it is now; raises `OSError`."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return Written(file.tell(), digest.hexdigest())


def _write_all(descriptor: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(descriptor, piece) :]
