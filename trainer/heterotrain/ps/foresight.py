"""Which commit is ordered next: where rounds are alike, each order is to the one before as that one was to its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from heterotrain.ps.values import CommitOrder, GradientName


class Foresight:
    """The order that is expected, if one can be.

    `foresee` is for one commit at a time; the rest is not thread-safe, the store calls it with its lock held.
    """

    def __init__(self) -> None:
        self.expected: CommitOrder | None = None
        """Its `result`; `None`: rounds are not alike, or take more than a sum and a step."""
        self._following: CommitOrder | None = None
        """What would follow the newest order."""
        self._missing: set[GradientName] = set()
        self._arrived = 0

    def foresee(self, order: CommitOrder) -> CommitOrder | None:
        """An order was carried out: what to `expect` next. Takes milliseconds with a thousand workers."""
        before, self._following = self._following, None
        if order.clip_coefficient is not None or order.compensation > 0.0 or not order.contributions:
            return None
        now = result(order)
        self._following = following(now)
        return self._following if before == now else None

    def expect(self, order: CommitOrder | None, is_here: Callable[[GradientName], bool]) -> None:
        """Expect this one. `is_here`: whether a gradient is complete already."""
        self.expected = order
        names = [name for name, _ in order.contributions] if order is not None else []
        self._missing = {name for name in names if not is_here(name)}
        self._arrived = len(names) - len(self._missing)

    def arrived(self, name: GradientName) -> bool:
        """A gradient is complete. Whether there is something to do: it is the first of the expected ones, or the last.

        Not for each of them: a round may have a thousand.
        """
        if name not in self._missing:
            return False
        self._missing.discard(name)
        self._arrived += 1
        return self._arrived == 1 or not self._missing

    @property
    def is_complete(self) -> bool:
        """All gradients of the expected order are here."""
        return self.expected is not None and not self._missing


def result(order: CommitOrder) -> CommitOrder:
    """An order without what does not change the version that it makes: which others stay, what is let go."""
    return replace(order, retain=frozenset(), discard=())


def following(order: CommitOrder) -> CommitOrder:
    """The same for the next version, of the next iteration of everybody."""
    later = tuple((replace(name, iteration=name.iteration + 1), weight) for name, weight in order.contributions)
    return replace(order, version=order.version + 1, contributions=later)
