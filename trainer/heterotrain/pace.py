"""How long compute phases last, and paced emulation: stretching them, so that equal machines act unequal."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clocks:
    """Sources of time, in seconds."""

    wall: Callable[[], float] = time.perf_counter
    cpu: Callable[[], float] = time.process_time
    """CPU time of all threads of this process."""
    sleep: Callable[[float], None] = time.sleep


class Pace:
    """Measures compute phases; with a `stretch` above 1 each lasts at least `stretch` x the CPU time it took.

    CPU time and not wall time is stretched, so that workers which share a processor do not slow each other down
    twice. On a machine with idle processors the emulated speeds are thus in the ratio of the stretches. `settle` waits
    for work that was handed to a device.
    """

    def __init__(self, stretch: float, clocks: Clocks, settle: Callable[[], None] = lambda: None) -> None:
        self._stretch = stretch
        self._settle = settle
        self._clocks = clocks
        self._wall = 0.0
        self._cpu = 0.0

    def start(self) -> None:
        """A compute phase begins."""
        self._wall, self._cpu = self._clocks.wall(), self._clocks.cpu()

    def stop(self) -> tuple[float, float]:
        """A compute phase ends: sleep for what is missing, return how long it lasted and the CPU time that it took."""
        self._settle()
        lasted, cpu = self._clocks.wall() - self._wall, self._clocks.cpu() - self._cpu
        missing = self._stretch * cpu - lasted
        if self._stretch <= 1.0 or missing <= 0:
            return lasted, cpu
        self._clocks.sleep(missing)
        return self._clocks.wall() - self._wall, cpu
