"""JSON as the API writes and reads it.

JSON has no infinite numbers, but a robust z can be infinite: they are the texts ``+Inf`` and ``-Inf``, in answers and
in requests. There is no NaN: what is not known is absent. Everything else is strict RFC 8259.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from starlette.responses import Response

from heterotrain_core.info.values import Event, Sample, Value

INFINITE: Final[Mapping[str, float]] = {"+Inf": math.inf, "-Inf": -math.inf}
MAX_DIGITS: Final = 400
"""Of an integer in a request; the largest number has 309."""


class JsonResponse(Response):
    """A body of JSON types, as compact UTF-8; infinite numbers must have been encoded."""

    media_type = "application/json"

    def __init__(self, document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(encode(document), status, headers)


def encode(document: Any) -> bytes:
    """JSON of a document; raises `ValueError` for an infinite number that was not encoded."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def number(value: Value) -> float | str | None:
    """A value as JSON has it."""
    if isinstance(value, float) and math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return value


def value_of(given: float | str) -> float | str:
    """A value of a request: the texts of infinite numbers are numbers."""
    return INFINITE.get(given, given) if isinstance(given, str) else float(given)


def sample_document(sample: Sample) -> dict[str, Any]:
    """JSON object of a sample."""
    return {"entity": sample.entity, "metric": sample.metric, "time": sample.time, "value": number(sample.value)}


def event_document(event: Event) -> dict[str, Any]:
    """JSON object of an event."""
    document = event.to_document()
    return document | {"value": number(event.value), "previous": number(event.previous)}


class MalformedError(ValueError):
    """Not JSON; the message says where."""


def decode(body: bytes) -> Any:
    """The document of a request's body; raises `MalformedError`. Numbers are finite, texts are Unicode."""
    try:
        document = json.loads(
            body.decode("utf-8"),
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_integer,
            object_pairs_hook=_each_once,
        )
        if b"\\u" in body:
            json.dumps(document, ensure_ascii=False).encode()  # half of a pair of surrogates is no text
    except UnicodeError as error:
        raise MalformedError("the body is not UTF-8, or has half of a surrogate pair in a text") from error
    except RecursionError as error:
        raise MalformedError("the body is nested too deeply") from error
    except ValueError as error:
        raise MalformedError(f"the body is not JSON: {error}") from error
    return document


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has {twice[:40]!r} twice")
    return found


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"there is no {word}; write the text +Inf or -Inf, and leave out what is not known")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is too large a number")
    return value


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"{text[:40]}… is too large a number")
    value = int(text)
    try:
        float(value)
    except OverflowError:
        raise ValueError(f"{text[:40]}… is too large a number") from None
    return value
