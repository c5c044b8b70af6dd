"""A script that begins anew in its own process, after its job has gone back to a checkpoint.

Its variables, its place in its loops and what it counted belong to a timeline that is over; a checkpoint cannot know
them. From its first line on, it joins again, its model is that of the checkpoint, and its epochs go on where the data
does. The process keeps its id, so that nobody who watches it takes it for lost.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self

_CHILD_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Script:
    """How this process was started."""

    arguments: Sequence[str]
    folder: Path
    environment: Mapping[str, str]

    @classmethod
    def present(cls) -> Self:
        """As it is now; the script may change folder and environment later."""
        return cls(tuple(sys.orig_argv), Path.cwd(), dict(os.environ))

    def begin_anew(self) -> NoReturn:
        """Replace this process by one that runs the same script; loader processes that are left are ended.

        Call it when the script has ended. Raises `OSError` if the interpreter is gone.
        """
        for child in multiprocessing.active_children():
            child.terminate()
        for child in multiprocessing.active_children():
            child.join(_CHILD_SECONDS)
        sys.stdout.flush()
        sys.stderr.flush()
        os.chdir(self.folder)
        os.execve(sys.executable, [sys.executable, *self.arguments[1:]], dict(self.environment))  # noqa: S606
