"""The last samples of one series, bounded in time and in number."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final


class Window:
    """Samples of the last `seconds` (both ends included; `None`: any age), at most `most` of them.

    A sample costs O(log n) comparisons and a move of at most n numbers; order statistics are then at hand.
    """

    def __init__(self, seconds: float | None, most: int) -> None:
        self.seconds: Final = seconds
        self.most: Final = most
        self._samples: deque[tuple[float, float]] = deque()
        self._ordered: list[float] = []

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[tuple[float, float]]:
        return iter(self._samples)

    @property
    def ordered(self) -> Sequence[float]:
        """The values from the smallest on; not to be changed."""
        return self._ordered

    def add(self, time: float, value: float) -> None:
        """Add the newest sample, forget what is now outside."""
        self._samples.append((time, value))
        insort(self._ordered, value)
        while len(self._samples) > self.most or (
            self.seconds is not None and self._samples[0][0] < time - self.seconds
        ):
            _, old = self._samples.popleft()
            del self._ordered[bisect_left(self._ordered, old)]
