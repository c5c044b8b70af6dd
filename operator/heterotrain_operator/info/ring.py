"""One series' samples in a ring of fixed greatest size, 16 bytes a number."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, MutableSequence
from typing import TypeVar, cast

T = TypeVar("T")


class Ring:
    """Times that only grow, each with a value; at `capacity` the oldest makes room for the newest."""

    __slots__ = ("_size", "_start", "_times", "_values", "capacity")

    def __init__(self, capacity: int, *, numeric: bool) -> None:
        self.capacity = capacity
        self._times: MutableSequence[float] = array("d")
        self._values = cast("MutableSequence[float | str]", array("d") if numeric else [])
        self._start = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def allocated(self) -> int:
        """Slots in memory, used or not."""
        return len(self._times)

    @property
    def full(self) -> bool:
        """Whether another sample needs another slot, or the oldest one's."""
        return self._size == len(self._times)

    def append(self, time: float, value: float | str, *, may_grow: bool = True) -> None:
        """Add the newest sample; `may_grow` false: no further slot, if there is one at all."""
        if not self.full:
            self._put((self._start + self._size) % len(self._times), time, value)
            self._size += 1
        elif self._size < self.capacity and (may_grow or not self._size):
            self._straighten()
            self._times.append(time)
            self._values.append(value)
            self._size += 1
        else:
            self._put(self._start, time, value)
            self._start = (self._start + 1) % self._size

    def drop_before(self, time: float) -> None:
        """Forget samples older than `time`; their slots stay for newer ones."""
        while self._size and self._times[self._start] < time:
            self._start = (self._start + 1) % len(self._times)
            self._size -= 1

    def last(self) -> tuple[float, float | str]:
        """The newest sample; there must be one."""
        return self._at(self._size - 1)

    def between(self, begin: float, end: float) -> Iterator[tuple[float, float | str]]:
        """Samples with `begin` <= time <= `end`, oldest first."""
        indices = range(self._size)
        first = bisect_left(indices, begin, key=self._time_at)
        past = bisect_right(indices, end, key=self._time_at)
        return map(self._at, range(first, past))

    def _put(self, slot: int, time: float, value: float | str) -> None:
        self._times[slot] = time
        self._values[slot] = value

    def _at(self, index: int) -> tuple[float, float | str]:
        slot = (self._start + index) % len(self._times)
        return self._times[slot], self._values[slot]

    def _time_at(self, index: int) -> float:
        return self._times[(self._start + index) % len(self._times)]

    def _straighten(self) -> None:
        if self._start:
            self._times = _rotated(self._times, self._start)
            self._values = _rotated(self._values, self._start)
            self._start = 0


def _rotated(items: MutableSequence[T], start: int) -> MutableSequence[T]:
    tail = items[start:]
    tail.extend(items[:start])
    return tail
