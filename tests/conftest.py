"""What holds for tests of every kind."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# A shell starts what it puts into the background with SIGINT ignored, and that is handed on: a runner that a test
# interrupts would go on, as it must when its user wants it so.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Some tests fork the processes of a `DataLoader` from this one, in which others have used gRPC. Its handlers of forks
# have ended such a process with a segmentation fault; a job's script does without them too (`heterotrain.joining`).
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

# How long an example takes is the machine's business.
settings.register_profile("tests", settings(), deadline=None)
settings.load_profile("tests")
