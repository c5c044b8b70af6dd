"""A condition that wakes the last one who came first."""

from __future__ import annotations

import threading
from types import TracebackType


class LastFirst:
    """As `threading.Condition` with `lock`; of those who wait, the last one who came is woken first.

    Who asks for a version last has computed longest, and all others will wait for it again. The sooner it has the
    version, the sooner the next round is over, while whoever has waited is in no hurry: `threading.Condition` wakes in
    the order of coming, which is the opposite. Whoever is woken wakes the next one: all at once would be in each
    other's way, and the last one to come no longer the first to go.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._waiting: dict[threading.Condition, None] = {}
        """In the order of coming."""
        self._to_wake: list[threading.Condition] = []
        """Of those who waited at the last `notify_all`; the next one is the last."""
        self._turn: threading.Condition | None = None
        """Whose turn it is to go, and to wake the next one."""

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def wait(self, seconds: float) -> None:
        """With the lock held: let it go, and take it again when woken, or after `seconds`."""
        own = threading.Condition(self._lock)
        self._waiting[own] = None
        try:
            own.wait(seconds)
        finally:
            del self._waiting[own]
            if self._turn is own:  # woken, or its time was up just then
                self._wake_next()

    def notify_all(self) -> None:
        """With the lock held: wake everybody who waits now."""
        self._to_wake = [*self._waiting]
        self._wake_next()

    def _wake_next(self) -> None:
        self._turn = None
        while self._to_wake and self._turn is None:
            own = self._to_wake.pop()
            if own in self._waiting:
                self._turn = own
                own.notify()
