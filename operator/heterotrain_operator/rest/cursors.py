"""Cursors: where a list or a stream of events goes on. Opaque to clients; checked when they come back."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from heterotrain_operator.info.events import EventLog, Numbered
from heterotrain_operator.rest.encoding import event_document
from heterotrain_operator.rest.errors import Code, RestError, invalid_field

BEGINNING: Final = "0"
"""The event cursor before all events."""
Key = tuple[str | float, ...]


def page_cursor(query: Mapping[str, Any], key: Sequence[str | float]) -> str:
    """The cursor after the entry `key` of the list that `query` asks for."""
    text = json.dumps([_fingerprint(query), *key], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def page_key(query: Mapping[str, Any], cursor: str | None, types: Sequence[type]) -> Key | None:
    """The key that a cursor of this list has, of these types; `None` without a cursor. Raises `RestError`."""
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        fingerprint, *key = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, TypeError):
        raise invalid_field("cursor", "is none that a list gave: leave it out to begin anew") from None
    if fingerprint != _fingerprint(query):
        raise invalid_field("cursor", "is of a list with other parameters: give the same ones, or leave it out")
    if len(key) != len(types) or not all(isinstance(part, kind) for part, kind in zip(key, types, strict=True)):
        raise invalid_field("cursor", "is none that a list gave: leave it out to begin anew")
    return tuple(key)


def _fingerprint(query: Mapping[str, Any]) -> str:
    meant = {name: value for name, value in query.items() if name not in ("cursor", "limit")}
    return sha256(json.dumps(meant, sort_keys=True, default=str).encode()).hexdigest()[:12]


def event_cursor(numbered: Numbered) -> str:
    """The cursor after an event: its number, and its time, by which another log's numbers are told apart.

    Without the ``+`` of exponents, so that it can be put into a URL as it is.
    """
    return f"{numbered.sequence}-{float(numbered.event.time).hex()}".replace("+", "")


def numbered_document(numbered: Numbered) -> dict[str, Any]:
    """JSON object of an event with its cursor."""
    return {**event_document(numbered.event), "cursor": event_cursor(numbered)}


def sequence_after(log: EventLog, cursor: str) -> int:
    """The number of the last event that the holder of a cursor has read.

    Raises `RestError`: 422 for what is no cursor, 410 where events in between are lost, or where the cursor is of
    another log: of a server that was started anew without a history.
    """
    if cursor == BEGINNING:
        return log.first - 1
    number, _, time = cursor.partition("-")
    try:
        sequence, moment = int(number), float.fromhex(time)
    except (ValueError, OverflowError):
        raise invalid_field(
            "since", "is no cursor that this server gave: give 0 for all events that are kept"
        ) from None
    if not number.isascii() or not number.isdecimal() or sequence < 1:
        raise invalid_field("since", "is no cursor that this server gave: give 0 for all events that are kept")
    if sequence < log.first - 1:
        raise gone("events after this cursor are kept no longer")
    found = log.since(sequence - 1, 1) if sequence <= log.last else []
    if sequence > log.last or (found and found[0].sequence == sequence and found[0].event.time != moment):
        raise gone("this cursor is of another time: the server was started anew without a history")
    return sequence


def gone(reason: str) -> RestError:
    """Events were missed."""
    return RestError(Code.CURSOR_GONE, f"{reason}; read /v1/latest for what holds now and go on with since=0")
