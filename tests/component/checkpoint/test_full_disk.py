"""A disk that is really full: a small tmpfs (skipped where this user may not mount one)."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders_checkpoint import UID, make_checkpoint
from heterotrain.checkpoint.folder import CheckpointFolder

SMALL, LARGE = [b"x" * 20_000] * 2, [b"x" * 200_000]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """150 KB."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=150k", "tmpfs", str(tmp_path)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk_costs_the_new_checkpoint_and_no_other(small_disk: Path) -> None:
    folder = CheckpointFolder(small_disk / "checkpoints")
    folder.write(make_checkpoint(1), [SMALL])
    with pytest.raises(OSError, match="No space left") as raised:
        folder.write(make_checkpoint(2), [SMALL, LARGE])
    assert raised.value.errno == errno.ENOSPC
    found = folder.newest(UID)
    assert found.checkpoint is not None
    assert (found.checkpoint.manifest.progress.version, found.passed_over) == (1, ())
    # What was begun has left no trace, so that there is room for the next one.
    assert [entry.name for entry in folder.path.iterdir()] == [str(make_checkpoint(1).name)]
    folder.write(make_checkpoint(3), [SMALL])
    folder.prune(UID, keep=1)
    newest = folder.newest(UID).checkpoint
    assert newest is not None
    assert newest.manifest.progress.version == 3
