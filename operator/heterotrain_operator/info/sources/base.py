"""What every source gives: rows, or an error of a named kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from heterotrain_api.info_collection import CollectionRuleSpec

T = TypeVar("T")

LARGE_BYTES: Final = 2**14
"""Of a body that is not read on the event loop: others would wait meanwhile."""
MAX_ROWS: Final = 100_000
"""Series that one answer may give; reading more would take seconds."""


class Reason(StrEnum):
    """Why a run, or a part of it, gave nothing; the word that is counted."""

    TIMEOUT = "timeout"
    CONNECT = "connect"
    """No connection, or it broke."""
    TLS = "tls"
    REDIRECT = "redirect"
    """Redirects are not followed."""
    DENIED = "denied"
    """401 or 403: wrong credentials or rights."""
    HTTP_STATUS = "http_status"
    """Any other status than 200."""
    TOO_LARGE = "too_large"
    NOT_METRICS = "not_metrics"
    """HTML, or anything else that is not what the rule says."""
    MALFORMED = "malformed"
    QUERY = "query"
    """Prometheus does not take the query."""
    EMPTY = "empty"
    """A correct answer without a series: nothing is known, which is not 0."""
    FORBIDDEN = "forbidden"
    """The settings do not allow this source."""
    CREDENTIALS = "credentials"
    """The files with the credentials cannot be read."""
    BREAKER_OPEN = "breaker_open"
    """Not asked: the target failed several times, and is tried again later."""
    COMMAND = "command"
    """The program could not be run, or failed."""
    UNEXPECTED = "unexpected"
    """A mistake of ours; the log has it."""


class SourceError(Exception):
    """A source gave nothing usable."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Row(NamedTuple):
    """One series' value, as the source has it."""

    labels: Mapping[str, str]
    value: float | str
    timestamp: float | None = None
    """On the source's clock, seconds; `None`: now."""


@dataclass(slots=True)
class Reply:
    """What one run of a rule read."""

    rows: Mapping[str, Sequence[Row]]
    """By the name of the rule's metric."""
    source_time: float | None = None
    """The source's clock when it answered, whole seconds; `None`: it does not say."""
    errors: Mapping[str, SourceError] = field(default_factory=dict)
    """Metrics, or nodes, that could not be read while others could."""


class Source(Protocol):
    """One way to read."""

    async def read(self, spec: CollectionRuleSpec, now: float) -> Reply:
        """Everything that the rule wants; raises `SourceError`. The caller has a deadline."""


async def off_the_loop(size: int, function: Callable[..., T], *arguments: Any) -> T:
    """`function` of `arguments`, in a thread if what it reads is large (`size` in bytes)."""
    return function(*arguments) if size <= LARGE_BYTES else await asyncio.to_thread(function, *arguments)
