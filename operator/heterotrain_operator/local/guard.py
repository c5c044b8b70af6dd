"""Ends the process groups of a local job when its runner is gone: ``python -I -S guard.py``. Standard library only, by
path.

The kernel's death signal (`launcher`) reaches the processes that the runner started, not what those started in turn (a
script in a shell, the workers of a DataLoader). The runner holds the other end of standard input and names the groups:
``+PGID``, ``-PGID``, a line each. End of file means that it is gone, however it went: what is left is killed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable


def groups_left(lines: Iterable[str]) -> set[int]:
    """Return the groups named by ``+`` and not taken back by ``-`` when the lines end."""
    groups: set[int] = set()
    for line in lines:
        sign, group = line[0], int(line[1:])
        if sign == "+":
            groups.add(group)
        else:
            groups.discard(group)
    return groups


def main() -> None:
    """Wait for the end of file, then kill."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # The runner decides; this process only outlives it.
    for group in groups_left(iter(sys.stdin.readline, "")):
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


if __name__ == "__main__":
    main()
