"""The last events, each with a number that only grows, so that a reader can go on where it was.

A cursor is the number of the last event read. `first` tells whether one was missed: events are dropped once there are
more than `capacity`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple

from heterotrain_core.info.values import Event


class Numbered(NamedTuple):
    """An event with its place in the log."""

    sequence: int
    event: Event


class EventLog:
    """Used on one event loop."""

    def __init__(self, capacity: int = 4096, last: int = 0) -> None:
        """`last`: number of the last event before this log, as a history has it."""
        self.capacity: Final = capacity
        self._events: deque[Numbered] = deque(maxlen=capacity)
        self._last = last
        self._waiting: set[asyncio.Future[None]] = set()
        self._listeners: list[Callable[[Numbered], None]] = []

    @property
    def last(self) -> int:
        """Number of the newest event; 0: none yet."""
        return self._last

    @property
    def first(self) -> int:
        """Number of the oldest event still here; one past the newest if there is none."""
        return self._last - len(self._events) + 1

    def append(self, event: Event) -> Numbered:
        """Number an event and wake whoever waits."""
        self._last += 1
        numbered = Numbered(self._last, event)
        self._events.append(numbered)
        for listener in self._listeners:
            listener(numbered)
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()
        return numbered

    def restore(self, events: list[Numbered]) -> None:
        """Take up what a history kept, oldest first; before anything is appended."""
        for numbered in events:
            self._events.append(numbered)
            self._last = max(self._last, numbered.sequence)

    def on_append(self, listener: Callable[[Numbered], None]) -> None:
        """Have `listener` called with each new event."""
        self._listeners.append(listener)

    def since(self, cursor: int, limit: int = 1000) -> list[Numbered]:
        """At most `limit` events after number `cursor`, oldest first."""
        skip = max(0, cursor + 1 - self.first)
        return list(islice(self._events, skip, skip + limit))

    async def wait(self, cursor: int) -> None:
        """Return once there is an event after number `cursor`."""
        if self._last > cursor:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)
