"""What all operations share in the OpenAPI document: which errors they answer with."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from heterotrain_operator.info.rule_state import RuleKind
from heterotrain_operator.rest.errors import STATUSES, Code
from heterotrain_operator.rest.models import Error

Responses = dict[int | str, dict[str, Any]]

_WORDS: Final[Mapping[HTTPStatus, str]] = {
    HTTPStatus.BAD_REQUEST: "The body is no JSON.",
    HTTPStatus.UNAUTHORIZED: "No token, or one that nobody knows.",
    HTTPStatus.FORBIDDEN: "The caller may not do this.",
    HTTPStatus.NOT_FOUND: "There is no such thing.",
    HTTPStatus.REQUEST_TIMEOUT: "The body did not come in time.",
    HTTPStatus.CONFLICT: "Something else is there: read it again.",
    HTTPStatus.GONE: "Events after this cursor are kept no longer.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too large.",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "The body is not said to be JSON.",
    HTTPStatus.UNPROCESSABLE_ENTITY: "The request cannot be obeyed; its fields say why.",
    HTTPStatus.TOO_MANY_REQUESTS: "Too many at a time: try again after the seconds of Retry-After.",
    HTTPStatus.INTERNAL_SERVER_ERROR: "A defect of the server.",
    HTTPStatus.SERVICE_UNAVAILABLE: "Something that is needed does not answer: try again later.",
}
_ALWAYS: Final = (
    Code.UNAUTHENTICATED,
    Code.FORBIDDEN,
    Code.INVALID,
    Code.TOO_MANY,
    Code.INTERNAL,
    Code.UNAVAILABLE,
)
_WITH_BODY: Final = (Code.MALFORMED, Code.TOO_SLOW, Code.TOO_LARGE, Code.UNSUPPORTED_MEDIA_TYPE)


def errors(*codes: Code, body: bool = False) -> Responses:
    """The errors of an operation: those of all, of those with a body, and `codes`."""
    found: Responses = {}
    for code in (*_ALWAYS, *(_WITH_BODY if body else ()), *codes):
        status = STATUSES[code]
        found[status.value] = {"model": Error, "description": _WORDS[status]}
    return dict(sorted(found.items(), key=lambda item: int(item[0])))


def json_body(reference: str) -> dict[str, Any]:
    """The request body of an operation that reads it by itself; `reference`: name of its schema."""
    schema = {"$ref": f"#/components/schemas/{reference}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def rule_body(kind: RuleKind) -> dict[str, Any]:
    """The request body of an operation that writes a rule."""
    return json_body("GivenCollectionRule" if kind is RuleKind.COLLECT else "GivenProcessingRule")
