"""How long a process that serves requests may stand still: Python's search for garbage, and other threads."""

from __future__ import annotations

import gc
import sys
from typing import Final

SWITCH_SECONDS: Final = 0.0005
"""Large JSON answers of sources are read in a thread; requests must not wait long for their turn meanwhile."""
YOUNG_OBJECTS: Final = 10_000
"""New ones that are looked through for garbage at a time, for a millisecond. With Python's 700 each run of a rule with
thousands of series would be followed by a look through all there is: 6 ms for 5,000 series, 60 ms for 50,000."""


def shorten_pauses() -> None:
    """To be called once, when a process has all that it keeps until it ends; that is never looked through again."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)
