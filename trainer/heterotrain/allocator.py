"""glibc's allocator, told to keep what a step frees for the next one.

By default it gives large blocks back to the kernel as soon as they are freed, and the next step has each of their pages
made and cleared again: with batches of some hundred images that was up to a third of a CPU worker's processor time, and
the more the larger the batch, so that a larger share made a worker slower per sample. The peak of its memory stays the
same but for some percent (6 for 546 images); between peaks memory is not given back, except by `give_back`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Any, Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Numbers of the parameters in ``malloc.h``."""
_NEVER: Final = -1
_LARGEST_BLOCK: Final = 2**31 - 1
"""Bytes; larger ones are the kernel's own as ever."""
_SETTINGS: Final = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
"""Beginnings of the environment variables by which users choose for themselves."""


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """From now on this process keeps the memory that it frees.

    False, and nothing done: its environment sets the allocator or takes another, or there is no glibc.
    """
    if any(name.startswith(_SETTINGS) for name in environ):
        return False
    set_parameter = _function("mallopt")
    if set_parameter is None:
        return False
    # The first of them also ends glibc's own moving of both thresholds.
    return bool(set_parameter(_MMAP_THRESHOLD, _LARGEST_BLOCK)) and bool(set_parameter(_TRIM_THRESHOLD, _NEVER))


def give_back() -> None:
    """Give what is free back to the kernel, once."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


def _function(name: str) -> Any:
    """A function of the C library; `None` if it has none of this name."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, TypeError, AttributeError):  # no such function, or no C library to ask
        return None
