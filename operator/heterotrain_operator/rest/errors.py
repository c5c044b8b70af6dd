"""All errors of the API in one JSON shape: a word for programs, a sentence for people, and the fields it is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final

from heterotrain_api.validation import Fault
from heterotrain_operator.rest.encoding import JsonResponse


class Code(StrEnum):
    """What went wrong, for programs."""

    MALFORMED = "malformed"
    """The body is no JSON."""
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    TOO_SLOW = "too_slow"
    """The body did not come in time."""
    EXISTS = "exists"
    GENERATION_CONFLICT = "generation_conflict"
    CURSOR_GONE = "cursor_gone"
    TOO_LARGE = "too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    INVALID = "invalid"
    """The request is understood and cannot be obeyed; the fields say why."""
    TOO_MANY = "too_many"
    """Requests or watchers at a time; try again later."""
    INTERNAL = "internal"
    UNAVAILABLE = "unavailable"
    """Something that this server needs does not answer; try again later."""


STATUSES: Final[Mapping[Code, HTTPStatus]] = {
    Code.MALFORMED: HTTPStatus.BAD_REQUEST,
    Code.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    Code.FORBIDDEN: HTTPStatus.FORBIDDEN,
    Code.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Code.METHOD_NOT_ALLOWED: HTTPStatus.METHOD_NOT_ALLOWED,
    Code.TOO_SLOW: HTTPStatus.REQUEST_TIMEOUT,
    Code.EXISTS: HTTPStatus.CONFLICT,
    Code.GENERATION_CONFLICT: HTTPStatus.CONFLICT,
    Code.CURSOR_GONE: HTTPStatus.GONE,
    Code.TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Code.UNSUPPORTED_MEDIA_TYPE: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    Code.INVALID: HTTPStatus.UNPROCESSABLE_ENTITY,
    Code.TOO_MANY: HTTPStatus.TOO_MANY_REQUESTS,
    Code.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
    Code.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
}
_HEADERS: Final[Mapping[Code, Mapping[str, str]]] = {
    Code.UNAUTHENTICATED: {"WWW-Authenticate": "Bearer"},
    Code.TOO_MANY: {"Retry-After": "1"},
    Code.UNAVAILABLE: {"Retry-After": "5"},
}


class RestError(Exception):
    """Ends a request with an error of the one shape."""

    def __init__(
        self, code: Code, message: str, fields: Iterable[Fault] = (), headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.code: Final = code
        self.message: Final = message
        self.fields: Final = tuple(fields)
        self.headers: Final = {**_HEADERS.get(code, {}), **(headers or {})}

    @property
    def status(self) -> HTTPStatus:
        """The answer's status."""
        return STATUSES[self.code]

    def to_document(self) -> dict[str, Any]:
        """The one shape."""
        return {
            "code": self.code.value,
            "message": self.message,
            "fields": [{"field": fault.field, "message": fault.message} for fault in self.fields],
        }

    def response(self) -> JsonResponse:
        """The answer."""
        return JsonResponse(self.to_document(), self.status, self.headers)


def invalid(faults: Iterable[Fault]) -> RestError:
    """A request whose fields are wrong; at least one."""
    faults = tuple(faults)
    more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
    return RestError(Code.INVALID, f"{str(faults[0]).removeprefix('manifest: ')}{more}", faults)


def invalid_field(field: str, message: str) -> RestError:
    """A request with one field that is wrong."""
    return invalid([Fault(field, message)])
