"""Completed iterations of the workers that take part, with the least one always at hand. Pure."""

from __future__ import annotations

import heapq


class Clocks:
    """A worker's clock counts its completed iterations. Who enters starts at the least clock there is (section 2)."""

    def __init__(self) -> None:
        self._values: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        """One entry a worker, (clock, worker); the clock may lag behind, and the worker may be out."""
        self._lowest = 0
        self._highest = 0

    def __contains__(self, worker: int) -> bool:
        return worker in self._values

    def __getitem__(self, worker: int) -> int:
        return self._values[worker]

    def __len__(self) -> int:
        return len(self._values)

    @property
    def lowest(self) -> int:
        """Least clock; what it last was if nobody takes part."""
        if self.slowest is not None:
            self._lowest = self._heap[0][0]
        return self._lowest

    @property
    def slowest(self) -> int | None:
        """Worker with the least clock, the lower one of several."""
        heap, values = self._heap, self._values
        while heap:
            clock, worker = heap[0]
            now = values.get(worker)
            if now is None:
                heapq.heappop(heap)
            elif now != clock:
                heapq.heapreplace(heap, (now, worker))
            else:
                return worker
        return None

    @property
    def highest(self) -> int:
        """Largest clock."""
        return self._highest

    def enter(self, worker: int) -> None:
        """Take part from now on, at the least clock."""
        clock = self._values[worker] = self.lowest
        heapq.heappush(self._heap, (clock, worker))
        self._highest = max(self._highest, clock)

    def leave(self, worker: int) -> None:
        """Take no part any more: out of the minimum at once."""
        lowest = self.lowest
        clock = self._values.pop(worker)
        self._lowest = lowest
        if clock == self._highest:
            self._highest = max(self._values.values(), default=lowest)

    def tick(self, worker: int) -> None:
        """One more iteration is completed."""
        clock = self._values[worker] = self._values[worker] + 1
        self._highest = max(self._highest, clock)

    def catch_up(self, worker: int, most_ahead: int) -> None:
        """Skip iterations up to the largest clock, at most `most_ahead` beyond the least of the others. O(N)."""
        own = self._values[worker]
        least = min((clock for other, clock in self._values.items() if other != worker), default=own)
        self._values[worker] = max(own, min(self._highest, least + most_ahead))

    def align(self) -> None:
        """All clocks to the largest: everybody has been waited for, whoever skipped iterations skipped them."""
        self._values = dict.fromkeys(self._values, self._highest)
        self._heap = [(self._highest, worker) for worker in sorted(self._values)]
