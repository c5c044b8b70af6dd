"""One watch stream: events as they are told, newest values as they change, both as server-sent events.

What is waited for is bounded: a client that does not read, or whose token is no longer good, loses the stream, never
the server its memory.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from itertools import chain, islice
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from heterotrain_core.info.selectors import labels_match, matches
from heterotrain_core.info.values import ABSENT, Entity
from heterotrain_operator.info.store import Reading
from heterotrain_operator.rest.access import AccessUnavailableError, UnauthenticatedError
from heterotrain_operator.rest.context import Context, Sees
from heterotrain_operator.rest.cursors import event_cursor, gone, numbered_document
from heterotrain_operator.rest.encoding import encode
from heterotrain_operator.rest.errors import Code, RestError
from heterotrain_operator.rest.models import WatchParameters, What
from heterotrain_operator.rest.reading import latest_document

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS: Final = 15.0
RECHECK_SECONDS: Final = 10.0
"""Between looks whether the caller may still see what they see."""
SEND_SECONDS: Final = 20.0
"""That a client may take to read what was sent."""
HANG_UP_SECONDS: Final = 60.0
"""After that, in which the connection of a client that does not read ends (`server.UNREAD_SECONDS`)."""
EVENTS_AT_A_TIME: Final = 200
FRAMES_AT_A_TIME: Final = 100
"""In one chunk, made in a millisecond; between two of them others have the event loop."""
RETRY: Final = b"retry: 2000\n\n"
KEEP_ALIVE: Final = b": still here\n\n"


def frame(event: str, document: Mapping[str, Any], cursor: str | None = None) -> bytes:
    """One server-sent event."""
    head = f"id: {cursor}\n" if cursor is not None else ""
    return f"{head}event: {event}\ndata: ".encode() + encode(document) + b"\n\n"


class Watch:
    """What one client is told."""

    def __init__(
        self, here: Context, query: WatchParameters, labels: Mapping[str, str], sees: Sees, after: int
    ) -> None:
        """`after`: number of the last event that the client has."""
        self._here = here
        self._query = query
        self._labels = labels
        self._sees = sees
        self._after = after
        self._revision = 0
        self._expiring: list[tuple[float, Entity, str]] = []
        self._until: dict[tuple[Entity, str], float] = {}
        """When each value that the client has will be absent."""
        self._queued: dict[tuple[Entity, str], float] = {}

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """What to send, in chunks; ends when the server does. Raises `RestError` when it cannot go on."""
        world = self._here.world
        clock = asyncio.get_running_loop().time
        yield RETRY
        if What.SAMPLES in self._query.what:
            for chunk in _chunks(self._changes()):
                yield chunk
                await asyncio.sleep(0)
            yield frame("synced", {})
        checked = told = clock()
        while not world.closing.is_set():
            if clock() - checked >= RECHECK_SECONDS:
                await self._check()
                checked = clock()
            for chunk in _chunks(chain(self._events(), self._changes())):
                yield chunk
                await asyncio.sleep(0)
                told = clock()
            due = clock() + (self._query.interval if What.SAMPLES in self._query.what else RECHECK_SECONDS)
            while not await self._woken(min(due, told + KEEP_ALIVE_SECONDS) - clock()) and clock() < due:
                if clock() - told >= KEEP_ALIVE_SECONDS:
                    yield KEEP_ALIVE
                    told = clock()

    async def _check(self) -> None:
        try:
            await self._here.world.access.identify(self._here.token)
        except UnauthenticatedError as error:
            raise RestError(Code.UNAUTHENTICATED, str(error)) from error
        except AccessUnavailableError as error:
            raise RestError(Code.UNAVAILABLE, str(error)) from error
        self._sees = await self._here.sees()

    async def _woken(self, seconds: float) -> bool:
        """Wait so long at most; whether there is an event, or the server ends."""
        world = self._here.world
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(world.closing.wait())]
        if What.EVENTS in self._query.what:
            waits.append(asyncio.ensure_future(world.service.engine.events.wait(self._after)))
        try:
            done, _ = await asyncio.wait(waits, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
            return bool(done)
        finally:
            for wait in waits:
                wait.cancel()

    def _events(self) -> Iterator[bytes]:
        if What.EVENTS not in self._query.what:
            return
        log = self._here.world.service.engine.events
        if self._after < log.first - 1:
            raise gone("this stream was read too slowly: events were lost")
        for numbered in log.since(self._after, EVENTS_AT_A_TIME):
            self._after = numbered.sequence
            event = numbered.event
            named = not self._query.metric or event.metric in self._query.metric
            if named and self._means(event.entity):
                yield frame("event", numbered_document(numbered), event_cursor(numbered))

    def _changes(self) -> Iterator[bytes]:
        if What.SAMPLES not in self._query.what:
            return
        store, now = self._here.world.store, self._here.world.now()
        for reading in store.changes(self._revision, now):
            self._revision = max(self._revision, reading.revision)
            named = not self._query.metric or reading.metric in self._query.metric
            if named and self._means(reading.entity) and self._is_news(reading):
                yield frame("sample", latest_document(reading))
        yield from self._expired(now)

    def _is_news(self, reading: Reading) -> bool:
        """Note what the client is told; that a value is absent is no news to one who never had it."""
        key = (reading.entity, reading.metric)
        if reading.value is ABSENT:
            return self._until.pop(key, None) is not None
        self._until[key] = reading.expires
        self._look_at(key, reading.expires)
        return True

    def _look_at(self, key: tuple[Entity, str], time: float) -> None:
        """Have a value looked at once it may be absent; one entry for each, unless an earlier one is needed."""
        if time < self._queued.get(key, math.inf):
            self._queued[key] = time
            heapq.heappush(self._expiring, (time, *key))

    def _expired(self, now: float) -> Iterator[bytes]:
        """Values that nothing has changed but time."""
        while self._expiring and self._expiring[0][0] < now:
            queued, entity, metric = heapq.heappop(self._expiring)
            key = (entity, metric)
            if self._queued.get(key) != queued:
                continue
            del self._queued[key]
            until = self._until.get(key)
            if until is None:
                continue  # the client knows
            if until >= now:
                self._look_at(key, until)  # another value has come meanwhile
                continue
            del self._until[key]
            reading = self._here.world.store.get(entity, metric, now)
            time = None if reading is None else reading.time
            absent = {"entity": entity, "metric": metric, "time": time, "value": None, "expires": None}
            yield frame("sample", absent)

    def _means(self, entity: Entity) -> bool:
        if not matches(self._query.entity, entity) or not self._sees(entity):
            return False
        return not self._labels or labels_match(self._labels, self._here.world.store.labels(entity))


def _chunks(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Some frames together."""
    rest = iter(frames)
    while chunk := b"".join(islice(rest, FRAMES_AT_A_TIME)):
        yield chunk


class WatchResponse(Response):
    """Sends a stream; each piece must be read in time. Ends with the client, the server, or a reason that is told."""

    def __init__(self, watch: Watch, slots: asyncio.Semaphore) -> None:
        """`slots`: of streams; one is taken while this one is sent."""
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._watch = watch
        self._slots = slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        async with asyncio.TaskGroup() as group:
            hanging_up = group.create_task(_hang_up(receive))
            async with self._slots:
                sending = group.create_task(self._send_all(send))
                await asyncio.wait([hanging_up, sending], return_when=asyncio.FIRST_COMPLETED)
                sending.cancel()
                await asyncio.wait([sending])
            if not sending.cancelled() and sending.exception() is None and not sending.result():
                # There is no way to end a response that is not read but to wait for its connection to end.
                await asyncio.wait([hanging_up], timeout=HANG_UP_SECONDS)
            hanging_up.cancel()

    async def _send_all(self, send: Send) -> bool:
        """Whether the client was there to the end."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async with aclosing(self._watch.frames()) as frames:
                try:
                    async for chunk in frames:
                        await _send(send, chunk, more=True)
                except RestError as error:
                    await _send(send, frame("error", error.to_document()), more=True)
            await _send(send, b"", more=False)
        except TimeoutError:
            logger.info("A watch stream ends: its client has not read for %g s.", SEND_SECONDS)
            return False
        return True


async def _send(send: Send, chunk: bytes, *, more: bool) -> None:
    async with asyncio.timeout(SEND_SECONDS):
        await send({"type": "http.response.body", "body": chunk, "more_body": more})


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
