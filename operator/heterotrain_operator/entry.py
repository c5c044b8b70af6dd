"""Where the command ``heterotrain`` begins. Imports nothing itself: the command line takes a second to load, in which
Ctrl-C must end the program as it does later, not with a traceback.
"""

from __future__ import annotations

import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line and end the process; 130, as shells have it, if Ctrl-C came before a command took over."""
    try:
        from heterotrain_operator import cli

        cli.main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
