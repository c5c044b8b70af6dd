"""A worker's process that is told to end (SIGTERM): it hands in what it computes, then leaves its job without error."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

from heterotrain.errors import LeftJobError

LEAVE_SECONDS: Final = 10.0
"""For finishing what is computed; then it is dropped whole. Well within the 30 s that Kubernetes gives by default."""


class LeaveWatch:
    """Watches SIGTERM for one session. `leave` tells the job, and returns whether the process may end at once.

    At the first signal the process ends as soon as its work is handed in; at the second, or after `LEAVE_SECONDS`, at
    once: what it computes was not said to be done, so nothing of it counts.
    """

    def __init__(self, leave: Callable[[], bool], *, seconds: float = LEAVE_SECONDS) -> None:
        self._leave = leave
        self._seconds = seconds
        self._process = os.getpid()
        self._timer: threading.Timer | None = None
        self._installed = False

    def install(self) -> None:
        """Begin to watch, unless the script has a handler of its own or this is not its main thread."""
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._told)
            self._installed = True

    def remove(self) -> None:
        """The session is over: end as any process does."""
        if self._timer is not None:
            self._timer.cancel()
        ours = self._installed and threading.current_thread() is threading.main_thread()
        if ours and signal.getsignal(signal.SIGTERM) == self._told:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _told(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a loader process, which has inherited this handler
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if self._timer is not None:
            raise LeftJobError("told to end, this worker drops what it was computing")
        self._timer = threading.Timer(self._seconds, os.kill, (self._process, number))
        self._timer.daemon = True
        if self._leave():
            raise LeftJobError("told to end, this worker has left its job")
        self._timer.start()
