"""Where time and chance come from: given to whatever needs them, so that tests have their own."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Sources:
    """The real ones by default."""

    now: Callable[[], datetime] = _now
    random: Callable[[], float] = random.random
    """Evenly from 0 to 1; for jitter, not for secrets."""
