"""What users ask of a running job: two annotations, one JSON object each, answered in the status. Pure.

``heterotrain.io/plan-request``: ``{"id": "…", "shares": {"cpu-0": 96}, "microBatches": {"cpu-0": 32}, "reason": "…"}``,
or ``"synchronization": {"mode": "SSP", "stalenessBound": 8}`` in place of shares or beside them.
``heterotrain.io/command``: ``{"id": "…", "command": "stop | checkpoint | drain", "worker": "cpu-0", "reason": "…"}``.

The id is the user's, new for each request: an id that is answered is never looked at again. The operator does not
change the annotations.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from heterotrain_api.conditions import one_line
from heterotrain_api.contract import Annotation
from heterotrain_api.status import MAX_REQUESTS, RequestAnswer
from heterotrain_core.sync_settings import SyncSettings, from_fields
from heterotrain_operator.job.decision import ApplyPlan, SendCommand
from heterotrain_operator.job.judge import End
from heterotrain_operator.job.outcome import State
from heterotrain_operator.job.sync_change import changed, manifest_settings, read_change
from heterotrain_operator.job.view import View
from heterotrain_rpc.fields import given_fields

Request: TypeAlias = ApplyPlan | SendCommand

COMMANDS: Final = ("stop", "checkpoint", "drain")
MAX_ID: Final = 63
_MAX_SAMPLES: Final = 2**31 - 1


class MalformedRequestError(ValueError):
    """A request that cannot be read. `request_id` is the one to answer: derived from the text if it has none."""

    def __init__(self, request_id: str, message: str) -> None:
        super().__init__(message)
        self.request_id: Final = request_id


@dataclass(frozen=True, slots=True)
class Desk:
    """Requests after a pass."""

    send: tuple[Request, ...]
    """Not answered yet, for the coordinator."""
    answers: tuple[RequestAnswer, ...]
    """All that the status shows, oldest first."""

    @property
    def stop(self) -> SendCommand | None:
        """The wish to stop, if it is not answered yet."""
        return next((r for r in self.send if isinstance(r, SendCommand) and r.command == "stop"), None)


def plan_request(
    request_id: str,
    shares: Mapping[str, int] | None = None,
    *,
    reason: str,
    micro_batches: Mapping[str, int] | None = None,
    synchronization: Mapping[str, Any] | None = None,
) -> str:
    """The annotation's value that asks for new shares, or for a change of mode or bounds."""
    parts = {"shares": shares, "microBatches": micro_batches, "synchronization": synchronization}
    given = {name: dict(part) for name, part in parts.items() if part}
    return json.dumps({"id": request_id, **given, "reason": reason})


def command_request(request_id: str, command: str, *, worker: str = "", reason: str = "") -> str:
    """The annotation's value that asks for a command."""
    value = {"id": request_id, "command": command, "worker": worker, "reason": reason}
    return json.dumps({name: text for name, text in value.items() if text})


def desk(view: View) -> Desk:
    """Take in what was answered, and find what was not."""
    answers = list(view.status.requests)
    known = {answer.id for answer in answers}
    for answer in view.observed.answers:
        if answer.request_id not in known and 0 < len(answer.request_id) <= MAX_ID:
            known.add(answer.request_id)
            answers.append(_answer(answer.request_id, accepted=answer.accepted, message=answer.message))
    send: list[Request] = []
    for parsed in _asked(view.annotations):
        request_id = parsed.request_id
        if request_id in known:
            continue
        known.add(request_id)
        try:
            if isinstance(parsed, MalformedRequestError):
                raise parsed
            send.append(_resolved(view, parsed))
        except MalformedRequestError as error:
            answers.append(_answer(request_id, accepted=False, message=str(error)))
    return Desk(tuple(send), _newest(answers, view))


def _resolved(view: View, request: Request) -> Request:
    """The request with what a change of synchronisation comes to now; raises `MalformedRequestError`."""
    if not isinstance(request, ApplyPlan) or not request.change:
        return request
    try:
        return replace(request, synchronization=changed(_in_force(view), request.change))
    except ValueError as error:
        raise MalformedRequestError(request.request_id, str(error)) from None


def _in_force(view: View) -> SyncSettings:
    """Mode and bounds as last asked for; before the coordinator says so, those of the manifest."""
    told = None if view.state is None else view.state.synchronization.wanted
    if told is not None and told.mode:
        return from_fields(given_fields(told))
    return SyncSettings() if view.job is None else manifest_settings(view.job.spec.synchronization)


def closed(found: Desk, view: View, end: End | None) -> Desk:
    """Answer what is open when the job is over; `end`: how, if that is news."""
    stopped = end is not None and end.outcome is not None and end.outcome.state is State.STOPPED
    answers = list(found.answers)
    for request in found.send:
        done = stopped and isinstance(request, SendCommand) and request.command == "stop"
        message = "the job was stopped" if done else "the job is over"
        answers.append(_answer(request.request_id, accepted=done, message=message))
    return replace(found, send=(), answers=_newest(answers, view))


def accepted(found: Desk, view: View, request: Request, message: str) -> Desk:
    """Answer a request that the operator itself has carried out."""
    rest = tuple(other for other in found.send if other is not request)
    answers = [*found.answers, _answer(request.request_id, accepted=True, message=message)]
    return Desk(rest, _newest(answers, view))


def _newest(answers: list[RequestAnswer], view: View) -> tuple[RequestAnswer, ...]:
    """The last ones; those that still stand in an annotation are kept, or they would be carried out again."""
    standing = {parsed.request_id for parsed in _asked(view.annotations)}
    spare = max(0, len(answers) - MAX_REQUESTS)
    drop = [answer for answer in answers if answer.id not in standing][:spare]
    return tuple(answer for answer in answers if answer not in drop)


def _answer(request_id: str, *, accepted: bool, message: str) -> RequestAnswer:
    return RequestAnswer(id=request_id, accepted=accepted, message=one_line(message))


def _asked(annotations: Mapping[str, str]) -> Iterator[Request | MalformedRequestError]:
    for key, parse in ((Annotation.PLAN_REQUEST, parse_plan), (Annotation.COMMAND, parse_command)):
        text = annotations.get(key)
        if not text:
            continue
        try:
            yield parse(text)
        except MalformedRequestError as error:
            yield error


def parse_plan(text: str) -> ApplyPlan:
    """Read a plan request; raises `MalformedRequestError`."""
    value, request_id = _object(text)
    shares = _amounts(value, "shares", request_id)
    change = _change(value, request_id)
    if not shares and not change:
        raise MalformedRequestError(request_id, 'shares must name at least one worker, as {"cpu-0": 96}')
    micro_batches = _amounts(value, "microBatches", request_id)
    strangers = sorted(set(micro_batches) - set(shares))
    if strangers:
        message = f"microBatches: {', '.join(strangers)} must be in shares too"
        raise MalformedRequestError(request_id, message)
    reason = _text(value, "reason", request_id) or "asked for by a user"
    return ApplyPlan(request_id, shares, reason, micro_batches, change)


def parse_command(text: str) -> SendCommand:
    """Read a command; raises `MalformedRequestError`."""
    value, request_id = _object(text)
    command = _text(value, "command", request_id)
    if command not in COMMANDS:
        raise MalformedRequestError(request_id, f"command must be one of {', '.join(COMMANDS)}, not {command!r}")
    worker = _text(value, "worker", request_id)
    if (command == "drain") != bool(worker):
        raise MalformedRequestError(request_id, "worker must be given with the command drain, and with no other")
    return SendCommand(request_id, command, worker, _text(value, "reason", request_id))


def _change(value: Mapping[str, Any], request_id: str) -> Mapping[str, Any]:
    if value.get("synchronization") is None:
        return {}
    try:
        return read_change(value["synchronization"])
    except ValueError as error:
        raise MalformedRequestError(request_id, str(error)) from None


def _object(text: str) -> tuple[Mapping[str, Any], str]:
    derived = f"unreadable-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:12]}"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedRequestError(derived, f"the annotation must be a JSON object: {error}") from None
    if not isinstance(value, dict):
        raise MalformedRequestError(derived, "the annotation must be a JSON object")
    request_id = value.get("id")
    if not isinstance(request_id, str) or not 0 < len(request_id) <= MAX_ID:
        raise MalformedRequestError(derived, f"id must be a string of 1 to {MAX_ID} characters, new for each request")
    return value, request_id


def _text(value: Mapping[str, Any], field: str, request_id: str) -> str:
    text = value.get(field) or ""
    if not isinstance(text, str):
        raise MalformedRequestError(request_id, f"{field} must be a string")
    return one_line(text)


def _amounts(value: Mapping[str, Any], field: str, request_id: str) -> dict[str, int]:
    amounts = value.get(field) or {}
    if not isinstance(amounts, dict):
        raise MalformedRequestError(request_id, f'{field} must be an object, as {{"cpu-0": 96}}')
    for worker, samples in amounts.items():
        if type(samples) is not int or not 0 < samples <= _MAX_SAMPLES:
            message = f"{field}.{worker} must be a whole number of samples, at least 1, not {samples!r}"
            raise MalformedRequestError(request_id, message)
    return amounts
