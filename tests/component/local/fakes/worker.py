"""A worker without training: the first argument says what to do, the second which worker does it (the others work)."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

own = Path(os.environ["HETEROTRAIN_CERTIFICATES"])
what = sys.argv[1] if len(sys.argv) < 3 or sys.argv[2] == os.environ["HETEROTRAIN_NAME"] else "work"
print(f"{os.environ['HETEROTRAIN_NAME']} does {what}, stretch {os.environ.get('HETEROTRAIN_STRETCH')}", flush=True)
if what == "never-join":
    raise SystemExit(0)
if what == "hang-before":
    signal.pause()
(own / "joined").touch()
match what:
    case "work":
        time.sleep(0.6)
        # Waits for a failure elsewhere to be seen, as a real worker waits in its round.
        if len(sys.argv) > 2:
            signal.pause()
    case "wait":
        if len(sys.argv) > 3:
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            Path(sys.argv[3]).write_text(str(child.pid))
        signal.pause()
    case "ignore-sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()
    case "raise":
        time.sleep(0.3)
        raise ValueError("no such column: price")
    case "exit":
        time.sleep(0.3)
        print("giving up")
        raise SystemExit(1)
    case "die":
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    case "lost":
        time.sleep(0.3)
        for folder in own.parent.iterdir():
            (folder / "lost").touch()
        time.sleep(0.2)
        raise KeyError("after the coordinator noticed")
    case "grow":
        held = []
        while True:
            held.append(bytearray(b"x" * 2**24))
            time.sleep(0.02)
(own / "done").touch()
