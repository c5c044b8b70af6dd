"""When a target that keeps failing is asked again: soon at first, then at growing distances. No clock of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FAILURES: Final = 3
"""In a row that open the breaker."""
FIRST_SECONDS: Final = 5.0
LONGEST_SECONDS: Final = 60.0


@dataclass(slots=True)
class Breaker:
    """One target's; shared by the rules that ask it."""

    failures: int = 0
    open_until: float = float("-inf")
    why: str = ""
    """The last failure, in words."""

    def allows(self, now: float) -> bool:
        """Whether to ask now. When the time is up one asker gets through; the others wait for what it finds."""
        if now < self.open_until:
            return False
        if self.failures >= FAILURES:
            self.open_until = now + self._pause(1.0)
        return True

    def succeeded(self) -> None:
        """The target answered."""
        self.failures, self.open_until = 0, float("-inf")

    def failed(self, now: float, chance: float, why: str) -> None:
        """The target did not answer usefully; `chance`, evenly from 0 to 1, spreads the next attempts."""
        self.failures += 1
        self.why = why
        if self.failures >= FAILURES:
            self.open_until = now + self._pause(0.5 + chance / 2)

    def _pause(self, part: float) -> float:
        return part * min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(self.failures - FAILURES, 16))
