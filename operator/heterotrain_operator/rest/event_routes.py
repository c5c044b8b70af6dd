"""Routes for what happens: the list of events with a resumable cursor, and the watch stream."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Header, Query, Response

from heterotrain_core.info.selectors import matches
from heterotrain_operator.info.events import Numbered
from heterotrain_operator.rest.context import Here
from heterotrain_operator.rest.cursors import event_cursor, numbered_document, sequence_after
from heterotrain_operator.rest.encoding import JsonResponse
from heterotrain_operator.rest.errors import Code, RestError
from heterotrain_operator.rest.models import EventParameters, Events, WatchParameters
from heterotrain_operator.rest.operations import errors
from heterotrain_operator.rest.reading import wanted_labels
from heterotrain_operator.rest.watch import Watch, WatchResponse

router: Final = APIRouter(prefix="/v1", tags=["events"])


@router.get("/events", response_model=Events, responses=errors(Code.CURSOR_GONE))
async def list_events(query: Annotated[EventParameters, Query()], here: Here) -> JsonResponse:
    """List events after a cursor, the oldest first. The cursor of the answer goes on after them."""
    sees = await here.sees()
    log = here.world.service.engine.events
    after = sequence_after(log, query.since)
    found: list[Numbered] = []
    cursor = query.since
    for numbered in log.since(after, log.capacity):
        if len(found) == query.limit:
            break
        cursor = event_cursor(numbered)
        if matches(query.entity, numbered.event.entity) and sees(numbered.event.entity):
            found.append(numbered)
    documents = [numbered_document(numbered) for numbered in found]
    return JsonResponse({"events": documents, "cursor": cursor})


_WATCH_HELP: Final = """Server-sent events, until the client or the server ends the stream:

- `event: event`, with the cursor as id: something that a processing rule told;
- `event: sample`: the newest value of a series, or null once it has none. The present values come first, then
  `event: synced`, then changes;
- `event: error`: why the stream ends, in the shape of all errors. Comments keep the connection alive.
"""


@router.get(
    "/watch",
    response_class=Response,
    responses=errors(Code.CURSOR_GONE)
    | {
        200: {
            "description": _WATCH_HELP,
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    },
)
async def watch(
    query: Annotated[WatchParameters, Query()],
    here: Here,
    last_event_id: Annotated[str | None, Header(max_length=64)] = None,
) -> Response:
    """Watch events and newest values as they come. Goes on after since, or after the header Last-Event-ID."""
    world = here.world
    sees = await here.sees()
    labels = wanted_labels(query.label)
    log = world.service.engine.events
    since = last_event_id or query.since
    after = log.last if since is None else sequence_after(log, since)
    if world.watchers.locked():
        raise RestError(Code.TOO_MANY, "as many streams are open as there may be: close one, or try again later")
    return WatchResponse(Watch(here, query, labels, sees, after), world.watchers)
