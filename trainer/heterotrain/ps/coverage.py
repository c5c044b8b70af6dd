"""Which byte ranges of a gradient are there."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Coverage:
    """A set of bytes, kept as sorted ranges that neither overlap nor touch."""

    __slots__ = ("_starts", "_stops", "num_bytes")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.num_bytes = 0
        """Bytes in the set."""

    def contains(self, start: int, stop: int) -> bool:
        """Whether all of ``start <= byte < stop`` is in the set."""
        i = bisect_right(self._starts, start) - 1
        return start >= stop or (i >= 0 and stop <= self._stops[i])

    def add(self, start: int, stop: int) -> None:
        """Add ``start <= byte < stop``; what was there stays."""
        if start >= stop:
            return
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        merged = slice(first, last)
        self.num_bytes -= sum(b - a for a, b in zip(self._starts[merged], self._stops[merged], strict=True))
        if first < last:
            start, stop = min(start, self._starts[first]), max(stop, self._stops[last - 1])
        self._starts[merged], self._stops[merged] = [start], [stop]
        self.num_bytes += stop - start
