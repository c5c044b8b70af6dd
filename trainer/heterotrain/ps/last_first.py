"""A condition that wakes the last one who came first."""

from __future__ import annotations

import threading
from types import TracebackType


class LastFirst:
    """As `threading.Condition` with `lock`; of those who wait, the last one who came is woken first.

    Who asks for a version last has computed longest, and all others will wait for it again. The sooner it has the
    version, the sooner the next round is over, while whoever has waited is in no hurry: `threading.Condition` wakes in
    the order of coming, which is the opposite.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._waiting: list[threading.Condition] = []

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def wait(self, seconds: float) -> None:
        """With the lock held: let it go, and take it again when woken, or after `seconds`."""
        own = threading.Condition(self._lock)
        self._waiting.append(own)
        try:
            own.wait(seconds)
        finally:
            self._waiting.remove(own)

    def notify_all(self) -> None:
        """With the lock held: wake everybody."""
        for own in reversed(self._waiting):
            own.notify()
