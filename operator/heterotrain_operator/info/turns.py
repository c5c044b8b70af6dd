"""Long work shares the event loop: a slice at a time, and a rest as long as the slice before the next one.

A thread would not do: Python runs one at a time, and each request would wait for its turn several times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Final

SLICE_SECONDS: Final = 0.001
"""Of work without a rest; requests that come meanwhile wait as long."""
LONGEST_REST_SECONDS: Final = 0.02
"""After a step that took far longer than a slice."""


class Turns:
    """All long work of one event loop, so that together it has half of the loop's time at most."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        """`clock` measures slices; one that stands still makes all work one slice."""
        self._clock = clock
        self._turn = asyncio.Lock()
        self._worked = 0.0
        """Seconds since the last rest."""

    async def work(self, steps: Iterator[object]) -> None:
        """Go through `steps`, each of a fraction of a slice. What they raise is raised."""
        ended = False
        while not ended:
            async with self._turn:
                began = self._clock()
                ended = self._slice(steps, began)
                self._worked += self._clock() - began
                await asyncio.sleep(self._rest())

    def _slice(self, steps: Iterator[object], began: float) -> bool:
        """Whether there are no more steps."""
        return all(self._clock() - began < SLICE_SECONDS for _ in steps)

    def _rest(self) -> float:
        """Seconds; after little work only the turn goes on to others."""
        if self._worked < SLICE_SECONDS:
            return 0.0
        rest, self._worked = min(self._worked, LONGEST_REST_SECONDS), 0.0
        return rest
