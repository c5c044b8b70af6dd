"""How a script ended, told to its session: an uncaught exception or an exit code is a failure, anything else is not."""

from __future__ import annotations

import atexit
import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn


class ExitWatch:
    """Calls `on_failure` with the reason, or `on_end`, when the script ends; one of them, once.

    Watched are uncaught exceptions (`sys.excepthook`), `sys.exit` with a code, and the interpreter's end (`atexit`).
    `on_error`, if given, is asked first about an uncaught exception: true, and nothing is left to be told.

    Python tells nobody about a bare ``raise SystemExit(1)``, and nothing runs after `os._exit` or a signal: for these
    whoever started the process sees the exit code, and the coordinator the broken stream.
    """

    def __init__(
        self,
        on_end: Callable[[], None],
        on_failure: Callable[[str], None],
        on_error: Callable[[BaseException], bool] = lambda _: False,
    ) -> None:
        self._on_error = on_error
        self._on_end = on_end
        self._on_failure = on_failure
        self._excepthook = sys.excepthook
        self._exit = sys.exit
        self._exit_code: object = None
        self._over = False

    def install(self) -> None:
        """Begin to watch."""
        sys.excepthook = self._uncaught
        sys.exit = self._noting_exit
        atexit.register(self._ended)

    def remove(self) -> None:
        """Stop watching, for sessions that were closed by the script."""
        self._over = True
        sys.excepthook = self._excepthook
        sys.exit = self._exit
        atexit.unregister(self._ended)

    def _uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._excepthook(kind, error, trace)
        if not self._over:
            self._over = True
            if not self._on_error(error):
                self._on_failure(first_line(error))

    def _noting_exit(self, code: object = None) -> NoReturn:
        self._exit_code = code
        self._exit(code)  # type: ignore[arg-type]

    def _ended(self) -> None:
        if self._over:
            return
        self._over = True
        if self._exit_code in (None, 0):
            self._on_end()
        else:
            self._on_failure(f"the script called sys.exit({self._exit_code!r})")


def first_line(error: BaseException) -> str:
    """What Python prints first of an uncaught exception below its traceback: ``ValueError: no such column``.

    Further lines (CUDA's advice on debugging, notes that were added) are in the log.
    """
    lines = "".join(traceback.format_exception_only(error)).splitlines()
    # A SyntaxError shows the place before it, indented.
    return next((line for line in lines if line and not line.startswith(" ")), type(error).__name__)
