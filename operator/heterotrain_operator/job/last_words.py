"""What a process said last: the line of a log that tells why it ended. Pure."""

from __future__ import annotations

from typing import Final

_LINES_AFTER_TRACEBACK: Final = 12

_OUT_OF_DEVICE_MEMORY: Final = ("torch.OutOfMemoryError:", "torch.cuda.OutOfMemoryError:")
"""PyTorch's own word when a GPU has no memory left; the container's limit has no part in it."""


def remedy(words: str, group: str = "") -> str:
    """What to change about a worker of `group` that said `words`; empty: its script knows better."""
    if words.startswith(_OUT_OF_DEVICE_MEMORY):
        return f"lower batch.max of {f'group {group}' if group else 'its group'}, or use a GPU with more memory"
    return ""


def last_words(log: str, *, longest: int = 300) -> str:
    """Return the line of a log that says why its process ended: that of the last traceback, else the last one not
    empty.

    What follows a traceback (warnings at the interpreter's end, usually) is passed over, unless it is more than a few
    lines.
    """
    lines = [line.rstrip() for line in log.splitlines() if line.strip()]
    starts = [index for index, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    if starts:
        after = [index for index in range(starts[-1] + 1, len(lines)) if not lines[index].startswith(" ")]
        if after and len(lines) - after[0] <= _LINES_AFTER_TRACEBACK:
            return _shortened(lines[after[0]], longest)
    return _shortened(lines[-1].strip(), longest) if lines else ""


def _shortened(line: str, longest: int) -> str:
    return line if len(line) <= longest else line[: longest - 1] + "…"
