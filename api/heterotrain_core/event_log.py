"""The last things worth telling a person, numbered so that a reader sees what it missed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

LIMIT = 100
MESSAGE_LIMIT = 1000
"""Characters of one message; the end is kept, since tracebacks end with their cause."""


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One event; `seconds` since the coordinator started."""

    sequence: int
    seconds: float
    warning: bool
    reason: str
    message: str


class EventLog:
    """Bounded: the oldest are dropped. An event that repeats the last one's reason and message is not added.

    Messages hold what scripts and peers say: each becomes one line without control characters, so that nobody can
    forge a line of a log or write to the terminal of whoever reads it.
    """

    def __init__(self, started: float, limit: int = LIMIT) -> None:
        self._started = started
        self._sequence = 0
        self._events: deque[LoggedEvent] = deque(maxlen=limit)

    def add(self, reason: str, message: str, now: float, *, warning: bool = False) -> None:
        """Note an event."""
        text = printable(message)
        text = text if len(text) <= MESSAGE_LIMIT else "…" + text[-(MESSAGE_LIMIT - 1) :]
        if self._events and (self._events[-1].reason, self._events[-1].message) == (reason, text):
            return
        self._sequence += 1
        self._events.append(LoggedEvent(self._sequence, now - self._started, warning, reason, text))

    @property
    def newest(self) -> int:
        """Sequence number of the newest event; 0: none yet."""
        return self._sequence

    def since(self, sequence: int) -> tuple[LoggedEvent, ...]:
        """Events newer than `sequence` that are still kept, oldest first."""
        missing = min(self._sequence - sequence, len(self._events))
        return tuple(self._events[-i] for i in range(missing, 0, -1))

    def latest(self) -> tuple[LoggedEvent, ...]:
        """Oldest first."""
        return tuple(self._events)


def printable(text: str) -> str:
    """`text` on one line: a blank for every line break and control character."""
    return "".join(c if c.isprintable() else " " for c in text)
