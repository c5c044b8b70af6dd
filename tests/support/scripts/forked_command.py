"""``forked_command.py FOLDER ARGUMENT…``: ``heterotrain ARGUMENT…`` in FOLDER, for a `support.zygote`."""

from __future__ import annotations

import os
import sys

from heterotrain_operator import cli

if __name__ == "__main__":
    os.chdir(sys.argv[1])
    cli.main(sys.argv[2:])
