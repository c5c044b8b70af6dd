"""Sets of integers that come in ranges: positions of samples, bytes of a gradient. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence


class Intervals:
    """A set of integers as sorted, disjoint, never touching half-open intervals."""

    def __init__(self, intervals: Sequence[tuple[int, int]] = ()) -> None:
        self._starts = [start for start, _ in intervals]
        self._stops = [stop for _, stop in intervals]
        self.total = sum(stop - start for start, stop in intervals)
        """Integers in the set."""

    def add(self, start: int, stop: int) -> None:
        """Add an interval; what of it was there stays."""
        if start >= stop:
            return
        # Intervals that the new one overlaps or touches are swallowed by it.
        low, high = bisect_left(self._stops, start), bisect_right(self._starts, stop)
        if low < high:
            self.total -= sum(self._stops[low:high]) - sum(self._starts[low:high])
            start, stop = min(start, self._starts[low]), max(stop, self._stops[high - 1])
        self.total += stop - start
        self._starts[low:high] = [start]
        self._stops[low:high] = [stop]

    def pairs(self) -> list[tuple[int, int]]:
        """The intervals, ascending."""
        return list(zip(self._starts, self._stops, strict=True))

    def covers(self, start: int, stop: int) -> bool:
        """Whether all of an interval is in the set."""
        i = bisect_right(self._starts, start) - 1
        return start >= stop or (i >= 0 and stop <= self._stops[i])

    def remove(self, start: int, stop: int) -> None:
        """Remove a non-empty interval that the set covers."""
        starts, stops = self._starts, self._stops
        i = bisect_right(starts, start) - 1
        # Cut at an end in place: lists of many intervals are moved only where one vanishes or is split.
        match starts[i] == start, stops[i] == stop:
            case True, True:
                del starts[i], stops[i]
            case True, False:
                starts[i] = stop
            case False, True:
                stops[i] = start
            case _:
                starts.insert(i + 1, stop)
                stops.insert(i, start)
        self.total -= stop - start

    def pop_lowest(self, count: int) -> list[tuple[int, int]]:
        """Remove the `count` lowest integers and return them as intervals."""
        popped: list[tuple[int, int]] = []
        while count > 0:
            start = self._starts[0]
            stop = min(self._stops[0], start + count)
            self.remove(start, stop)
            popped.append((start, stop))
            count -= stop - start
        return popped
