"""How a command says that it cannot do what it was asked."""

from __future__ import annotations

from heterotrain_api.contract import ExitCode


class CommandError(Exception):
    """Shown to the user as it is, without a traceback; the process ends with `code`."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.code = code
