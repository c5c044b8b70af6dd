"""Writes what the synchronisation policy is told to a file, a line each (`heterotrain_core.recording`)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TextIO

_log = logging.getLogger("heterotrain.coordinator")


class Recorder:
    """Goes on in a file that is there: an earlier term is in it. A file that cannot be written costs the recording,
    not the job.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None
        self._ended = False

    def __call__(self, line: str) -> None:
        """Add a line; it is the system's when this returns."""
        if self._ended:
            return
        try:
            if self._file is None:
                self._file = self._path.open("a", encoding="ascii", buffering=1)
            self._file.write(line + "\n")
        except OSError as error:
            self._ended = True
            _log.warning("the recording %s cannot be written, and ends here: %s", self._path, error.strerror)

    def close(self) -> None:
        """No more lines."""
        self._ended = True
        if self._file is not None:
            self._file.close()
