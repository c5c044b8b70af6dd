"""An HTTP proxy between the operator and the API server, for faults on schedule.

It speaks plain HTTP to the operator, so that requests can be counted, answers lost and watches frozen one by one. Runs
in a thread with an event loop of its own.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

HOP_BY_HOP = {"transfer-encoding", "content-length", "connection", "host"}
WRITES = ("POST", "PUT", "PATCH", "DELETE")


@dataclass(slots=True)
class Seen:
    """A request that came through."""

    method: str
    path: str
    watch: bool
    status: int = 0

    @property
    def resource(self) -> str:
        """``pods``, ``heterotrainjobs/status``, …"""
        parts = self.path.strip("/").split("/")
        rest = parts[parts.index("namespaces") + 2 :] if "namespaces" in parts else parts[-1:]
        return "/".join([rest[0], *rest[2:]])


@dataclass(frozen=True, slots=True)
class Fault:
    """An answer that does not come from the API server."""

    status: int
    text: str = ""
    """Of a server in between; empty: a `Status` with `reason`, as the API server answers."""
    reason: str = ""

    def answer(self) -> web.Response:
        """As it goes over the wire."""
        if self.text:
            return web.Response(status=self.status, text=self.text)
        body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": f"fault: {self.reason}"}
        return web.json_response(body | {"reason": self.reason, "code": self.status}, status=self.status)


@dataclass(slots=True)
class ApiProxy:
    """Forwards to the API server; what is set here holds for requests from then on."""

    target: str
    ca: Path
    seen: list[Seen] = field(default_factory=list)
    after_write: Callable[[Seen, int], bool] | None = None
    """Called after the API server has done a write, with the number of writes of its method and resource, counted from
    1; true: the answer is lost."""
    instead: Callable[[Seen], Fault | None] | None = None
    """Asked before a request is passed on: a fault is answered in its place."""
    withhold_watches: bool = False
    """Watches that are open pass nothing any more, other requests are answered."""
    port: int = 0
    _loop: asyncio.AbstractEventLoop | None = None
    _flow: asyncio.Event | None = None
    _open: set[asyncio.Transport] = field(default_factory=set)
    """Also connections that wait for their next request."""
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _session: aiohttp.ClientSession | None = None
    _writing: int = 0
    """Writes that the API server may have done and that are not in `seen` yet."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def writes(self) -> list[Seen]:
        """What the API server was asked to write and did write or refuse; reviews ask, and write nothing.

        What a test has already read from the API server is among them: its answer may still be on the way here."""
        deadline = time.monotonic() + 10
        while self._writing and time.monotonic() < deadline:
            time.sleep(0.005)
        return [seen for seen in list(self.seen) if seen.method in WRITES and not seen.resource.endswith("reviews")]

    def stall(self) -> None:
        """Pass nothing more in either direction, close nothing."""
        self._call(lambda: self._must(self._flow).clear())

    def heal(self) -> None:
        """Pass everything again."""
        self._call(lambda: self._must(self._flow).set())

    def cut(self) -> None:
        """Reset all connections; new ones are taken."""
        self._call(self._abort)

    def _abort(self) -> None:
        for transport in self._open:
            transport.abort()
        self._open.clear()

    def _call(self, action: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            action()
            done.set()

        self._must(self._loop).call_soon_threadsafe(run)
        assert done.wait(10)

    @staticmethod
    def _must(value: Any) -> Any:
        assert value is not None, "the proxy does not run"
        return value

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        seen = Seen(request.method, request.path, request.query.get("watch") == "true")
        if isinstance(request.transport, asyncio.Transport):
            self._open.add(request.transport)
        try:
            await self._must(self._flow).wait()
            return await self._forward(request, seen)
        except aiohttp.ClientError:
            return self._lose(request)

    async def _forward(self, request: web.Request, seen: Seen) -> web.StreamResponse:
        if self.instead is not None and (fault := self.instead(seen)) is not None:
            seen.status = fault.status
            self.seen.append(seen)
            return fault.answer()
        headers = {key: value for key, value in request.headers.items() if key.lower() not in HOP_BY_HOP}
        body = await request.read()
        session: aiohttp.ClientSession = self._must(self._session)
        with self._under_way(seen):
            answer = await session.request(
                request.method, f"{self.target}{request.rel_url}", headers=headers, data=body or None
            )
            seen.status = answer.status
            self.seen.append(seen)
        async with answer:
            if seen.watch and answer.status == 200:
                return await self._stream(request, answer)
            content = await answer.read()
            if self._is_lost(seen):
                return self._lose(request)
            await self._must(self._flow).wait()
            kept = {key: value for key, value in answer.headers.items() if key.lower() not in HOP_BY_HOP}
            return web.Response(status=answer.status, body=content, headers=kept)

    @contextmanager
    def _under_way(self, seen: Seen) -> Iterator[None]:
        writes = int(seen.method in WRITES)
        self._writing += writes
        try:
            yield
        finally:
            self._writing -= writes

    def _is_lost(self, seen: Seen) -> bool:
        if seen.method not in WRITES or seen.status >= 300 or self.after_write is None:
            return False
        self._counts[seen.method, seen.resource] += 1
        return self.after_write(seen, self._counts[seen.method, seen.resource])

    def _lose(self, request: web.Request) -> web.Response:
        if isinstance(request.transport, asyncio.Transport):
            request.transport.abort()
        return web.Response(status=502)

    async def _stream(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": answer.headers.get("Content-Type", "application/json")})
        await response.prepare(request)
        async for chunk in answer.content.iter_any():
            await self._must(self._flow).wait()
            if self.withhold_watches:
                continue
            try:
                await response.write(chunk)
            except ConnectionError:
                break
        return response

    async def serve(self, started: threading.Event, stop: asyncio.Event) -> None:
        self._loop, self._flow = asyncio.get_running_loop(), asyncio.Event()
        self._flow.set()
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(self.ca)), limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as self._session:
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.port = runner.addresses[0][1]
            started.set()
            await stop.wait()
            self._flow.set()
            self._abort()
            await runner.cleanup()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.25)  # aiohttp closes TLS connections a while after it says so


@contextmanager
def api_proxy(target: str, ca: Path) -> Iterator[ApiProxy]:
    proxy, started = ApiProxy(target, ca), threading.Event()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(proxy.serve(started, stop))
        loop.close()

    thread = threading.Thread(target=run, name="api proxy", daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
