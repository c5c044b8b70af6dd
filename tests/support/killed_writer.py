"""A process that writes checkpoints one after another until it is killed, or until the disk is full."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from builders_checkpoint import UID, make_checkpoint
from heterotrain.checkpoint.folder import CheckpointFolder

KEEP: Final = 3
PIECES: Final = 8


@dataclass(frozen=True, slots=True)
class Killed:
    """What was there when the writer was dead."""

    announced: int
    """Version of the last checkpoint that it called written; 0: none."""
    newest: int
    """Version of the newest that loads, every byte verified; 0: none."""
    unfinished: tuple[str, ...]
    """What it left half written or half removed."""
    passed_over: tuple[str, ...]
    """Checkpoints that have their name and cannot be loaded."""

    @property
    def whole(self) -> bool:
        """Nothing that was called written is lost, and nothing that has its name is damaged."""
        return self.announced <= self.newest <= self.announced + 1 and not self.passed_over


def parts_of(version: int, num_bytes: int) -> list[list[bytes]]:
    """Two shards' files of together `num_bytes`, others for each version."""
    piece = bytes([version % 251]) * (num_bytes // (2 * PIECES))
    return [[piece] * PIECES] * 2


def write_on(folder: CheckpointFolder, first: int, num_bytes: int, announce: int) -> None:
    """Write for ever; raises `OSError` when the disk is full."""
    for version in range(first, 2**31):
        folder.write(make_checkpoint(version), parts_of(version, num_bytes))
        os.write(announce, b"%d\n" % version)
        folder.prune(UID, KEEP)


def kill_writer(path: Path, *, num_bytes: int, seconds: float) -> Killed:
    """Let a process go on writing in `path`, and kill it after so long."""
    before = look(path, 0).newest
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write_on(CheckpointFolder(path), before + 1, num_bytes, write)
        finally:
            os._exit(1)
    os.close(write)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(read) as announced:
        return look(path, max([before, *map(int, announced.read().split())]))


def fill_disk(path: Path, *, num_bytes: int) -> tuple[Killed, OSError]:
    """Write in `path` until the disk is full."""
    before = look(path, 0).newest
    read, write = os.pipe()
    try:
        write_on(CheckpointFolder(path), before + 1, num_bytes, write)
    except OSError as error:
        os.close(write)
        with os.fdopen(read) as announced:
            return look(path, max([before, *map(int, announced.read().split())])), error
    raise AssertionError("it writes for ever")


def look(path: Path, announced: int) -> Killed:
    """What is in `path`."""
    if not path.is_dir():
        return Killed(announced, 0, (), ())
    found = CheckpointFolder(path).newest(UID)
    newest = found.checkpoint.manifest.progress.version if found.checkpoint is not None else 0
    hidden = tuple(sorted(entry.suffix for entry in path.iterdir() if entry.suffix in {".part", ".old"}))
    return Killed(announced, newest, hidden, found.passed_over)


def seconds_of_a_write(path: Path, num_bytes: int) -> float:
    """How long a checkpoint takes here, with what is removed for it."""
    folder = CheckpointFolder(path)
    began = time.perf_counter()
    for version in range(1, KEEP + 3):
        folder.write(make_checkpoint(version), parts_of(version, num_bytes))
        folder.prune(UID, KEEP)
    return (time.perf_counter() - began) / (KEEP + 2)
