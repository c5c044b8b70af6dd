"""What may go wrong outside, and what follows: try again at t, never again, or unknown. Decided here and nowhere else.

Pure; the jitter is an argument. The supervisor asks `verdict` for whatever a pass raised.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import Final

FIRST_RETRY_SECONDS: Final = 0.5


class ApiError(Exception):
    """The API server answered, with a status of 300 or above."""

    def __init__(self, status: int, reason: str, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(f"{message} ({status} {reason})")
        self.status: Final = status
        self.reason: Final = reason
        """One word, as in the API's ``Status`` object: ``AlreadyExists``, ``Conflict``, ``Forbidden``, …"""
        self.message: Final = message
        """The API server's own words."""
        self.retry_after_seconds: Final = retry_after_seconds

    @property
    def is_refusal(self) -> bool:
        """Whether the same request will be answered in the same way until somebody changes something.

        A conflict is none: it says that the request was built on something old.
        """
        return 400 <= self.status < 500 and self.status not in _WORTH_A_RETRY


class ApiUnreachableError(Exception):
    """No (whole) answer: refused, broken or timed out. What was asked may have been done."""


_WORTH_A_RETRY: Final = frozenset(
    {
        HTTPStatus.UNAUTHORIZED,  # the token is read again meanwhile
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.CONFLICT,
        HTTPStatus.GONE,
        HTTPStatus.TOO_MANY_REQUESTS,
    }
)


class Kind(Enum):
    """What kind of trouble it was."""

    AGAIN = "try again"
    NEVER = "the same request would be refused again: wait for a change, or the periodic pass"
    UNKNOWN = "a defect of ours, most likely: the log has the traceback; tried again as if it could pass"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows from a failed pass."""

    kind: Kind
    reason: str
    """For the metric's label: few values."""
    delay_seconds: float
    """Until the next pass at the earliest."""


def verdict(error: Exception, failures: int, jitter: float, longest_seconds: float) -> Verdict:
    """Judge what a pass raised.

    `failures`: how many passes in a row have failed, this one included. `jitter`: evenly drawn from 0 to 1. Delays
    double from half a second up to `longest_seconds`, then spread over 0.5 to 1.5 times of that: after an outage the
    jobs do not all come back in the same moment.
    """
    wait = min(longest_seconds, FIRST_RETRY_SECONDS * 2 ** min(failures - 1, 16)) * (0.5 + jitter)
    match error:
        case ApiError() if error.is_refusal:
            return Verdict(Kind.NEVER, error.reason, longest_seconds * (0.5 + jitter))
        case ApiError():
            return Verdict(Kind.AGAIN, error.reason, max(wait, min(error.retry_after_seconds or 0.0, longest_seconds)))
        case ApiUnreachableError():
            return Verdict(Kind.AGAIN, "Unreachable", wait)
        case TimeoutError():
            return Verdict(Kind.AGAIN, "PassTimeout", wait)
        case _:
            return Verdict(Kind.UNKNOWN, type(error).__name__, wait)
