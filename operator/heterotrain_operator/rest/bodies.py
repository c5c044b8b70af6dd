"""Reads the body of a request: within its size and time, as strict JSON, and as the model that it must be."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from heterotrain_api.validation import Fault
from heterotrain_operator.rest.encoding import MalformedError, decode
from heterotrain_operator.rest.errors import Code, RestError, invalid
from heterotrain_operator.rest.models import MAX_VALUE_LENGTH, PATTERN_WORDS

MAX_BYTES: Final = 4 * 2**20
READ_SECONDS: Final = 20.0
_LARGE_BYTES: Final = 65_536
"""From here on a body is parsed beside the event loop."""
_JSON: Final = re.compile(r"application/([a-z0-9.+-]+\+)?json\s*(;.*)?", re.IGNORECASE)

M = TypeVar("M", bound=BaseModel)


async def read_json(request: Request, max_bytes: int = MAX_BYTES) -> Any:
    """The document of a request; raises `RestError`: 400, 408, 413 or 415."""
    if not _JSON.fullmatch(request.headers.get("content-type", "")):
        raise RestError(Code.UNSUPPORTED_MEDIA_TYPE, "send JSON, and the header Content-Type: application/json")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise RestError(Code.UNSUPPORTED_MEDIA_TYPE, "send the body as it is, without Content-Encoding")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(READ_SECONDS):
            body = await _read(request, max_bytes)
    except TimeoutError as error:
        raise RestError(Code.TOO_SLOW, f"the body must come within {READ_SECONDS:g} s") from error
    try:
        return decode(body) if len(body) < _LARGE_BYTES else await asyncio.to_thread(decode, body)
    except MalformedError as error:
        raise RestError(Code.MALFORMED, str(error)) from error


async def _read(request: Request, max_bytes: int) -> bytes:
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > max_bytes:
                raise _too_large(max_bytes)
            chunks.append(chunk)
    except ClientDisconnect as error:
        raise RestError(Code.MALFORMED, "the body ended early") from error
    return b"".join(chunks)


def _too_large(max_bytes: int) -> RestError:
    return RestError(Code.TOO_LARGE, f"the body must have at most {max_bytes} bytes: send less at a time")


def as_model(model: type[M], document: object) -> M:
    """The document as a model; raises `RestError` with all that is wrong."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise invalid(faults_of(error.errors(include_url=False))) from error


def faults_of(errors: Sequence[Any], skip: int = 0) -> Iterator[Fault]:
    """Pydantic's errors in our words; `skip` parts of each place are left out. A place is named once."""
    seen = set()
    for error in errors:
        place = _place(error["loc"][skip:])
        if place not in seen:
            seen.add(place)
            yield Fault(place, _message(error))


def _place(parts: Sequence[str | int]) -> str:
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier() and part not in _BRANCHES:
            text += f".{part}" if text else part
    return text


_BRANCHES: Final = frozenset(["float", "str", "constrained"])
"""Of a value that is a number or a text: no part of the document."""


_WORDS: Final = {
    "missing": "is required",
    "extra_forbidden": "does not exist here: leave it out",
    "float_type": "must be a number",
    "model_type": "must be a JSON object",
}
"""By the type of the error."""


def _message(error: Any) -> str:
    kind = error["type"]
    if kind == "float_type" and error["loc"][-1] == "float":  # a branch of a value's
        return f"must be a number, or a text of at most {MAX_VALUE_LENGTH} characters"
    if kind == "string_pattern_mismatch" and error["ctx"]["pattern"] in PATTERN_WORDS:
        return PATTERN_WORDS[error["ctx"]["pattern"]]
    message = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return _WORDS.get(kind) or (message if message.startswith("not ") else f"{message[:1].lower()}{message[1:]}")
