"""Becomes a process of a local job: ``python -I -S launcher.py RUNNER_PID COMMAND ARGUMENT…``. Standard library only,
by path.

Between the runner's fork and the command, it asks the kernel to kill this process when the runner dies, be it by
SIGKILL. A program of its own, since code between fork and exec inside the runner could meet locks held by the runner's
threads (gRPC has many).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h
COMMAND_NOT_FOUND = 127


def main(arguments: list[str]) -> int:
    """Replace this process by the command; returns only if that fails."""
    runner, command = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            sys.stderr.write(f"heterotrain: prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}\n")
            return 1
    if os.getppid() != runner:  # It died before the request above: no signal will come.
        return 1
    try:
        os.execvp(command[0], command)  # noqa: S606  # the user's words, no shell
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
    return COMMAND_NOT_FOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
