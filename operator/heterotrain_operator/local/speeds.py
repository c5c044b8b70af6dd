"""Unequal workers on equal cores: ``--speeds 4:3:2:1`` turned into the stretch of each worker's compute time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

PACED_CORES: Final = 0.75
"""Part of the machine that paced compute may fill. The rest is for shards, coordinator and kernel: were the machine
full, the workers would slow each other down and the ratio of their speeds would no longer be the one asked for."""


class SpeedsError(ValueError):
    """``--speeds`` cannot be used; the text says why and what to write instead."""


def parse_speeds(text: str, workers: Sequence[str]) -> tuple[float, ...]:
    """Read ``4:3:2:1``, one positive number per worker in the order of the manifest; only the ratios count.

    Raises `SpeedsError`.
    """
    try:
        speeds = tuple(float(part) for part in text.split(":"))
    except ValueError:
        raise SpeedsError(f"--speeds {text}: must be numbers separated by colons, for example 4:3:2:1") from None
    if not all(0 < speed < float("inf") for speed in speeds):
        raise SpeedsError(f"--speeds {text}: every speed must be a number above 0")
    if len(speeds) != len(workers):
        raise SpeedsError(
            f"--speeds {text}: names {len(speeds)} speeds, but the job has {len(workers)} workers "
            f"({', '.join(workers)}); give one number per worker, in this order"
        )
    return speeds


def stretches(speeds: Sequence[float], cores: float) -> tuple[float, ...]:
    """Return each worker's stretch: its compute time becomes this multiple (>= 1) of the CPU time it took.

    ``stretch_i = base * fastest / speed_i`` with ``base = max(1, sum_j(speed_j / fastest) / (0.75 * cores))``. A
    worker stretched by s uses a core for 1/s of the time, so all together they use ``sum_j 1/stretch_j = sum_j(speed_j
    / fastest) / base <= 0.75 * cores``.
    """
    fastest = max(speeds)
    base = max(1.0, sum(speed / fastest for speed in speeds) / (PACED_CORES * cores))
    return tuple(base * fastest / speed for speed in speeds)
