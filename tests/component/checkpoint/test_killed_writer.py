"""A writer of checkpoints that is killed at random times; ``bench/checkpoints.py`` does it fifty times, and to jobs."""

from __future__ import annotations

from pathlib import Path
from random import Random

from support.killed_writer import kill_writer, seconds_of_a_write

BYTES = 4_000_000


def test_whatever_a_killed_writer_called_written_loads(tmp_path: Path) -> None:
    random, path = Random(7), tmp_path / "checkpoints"
    seconds = seconds_of_a_write(path, BYTES)
    for _ in range(8):
        killed = kill_writer(path, num_bytes=BYTES, seconds=random.uniform(0.0, 3.0 * seconds))
        assert killed.whole, killed
        assert killed.newest >= 5
