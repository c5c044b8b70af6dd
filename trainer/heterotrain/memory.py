"""A batch that does not fit the memory: which errors say so, and what becomes of the script."""

from __future__ import annotations

from typing import Final

import torch

_WORDS: Final = ("out of memory", "can't allocate memory", "cannot allocate memory")
"""Of PyTorch's RuntimeErrors: of its CPU allocator, and of libraries below it."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that an allocation failed. A process that its kernel kills for its memory raises nothing."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _WORDS)
