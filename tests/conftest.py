"""What holds for tests of every kind."""

from __future__ import annotations

import signal

# A shell starts what it puts into the background with SIGINT ignored, and that is handed on: a runner that a test
# interrupts would go on, as it must when its user wants it so.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
