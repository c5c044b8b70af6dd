"""A network of scripted answers: what httpx asks is answered by a function, in the running loop's time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import httpx


@dataclass(frozen=True)
class Scripted:
    """One answer, or failure, of a server."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    chunk: int = 65536
    seconds_between: float = 0.0
    """Between chunks: a slow trickle."""
    silent: bool = False
    """Takes the request and never answers."""
    fails: type[httpx.HTTPError] | None = None


class _Body(httpx.AsyncByteStream):
    def __init__(self, answer: Scripted) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._answer.body), self._answer.chunk):
            if self._answer.seconds_between:
                await asyncio.sleep(self._answer.seconds_between)
            yield self._answer.body[start : start + self._answer.chunk]


class ScriptedWeb(httpx.AsyncBaseTransport):
    """Answers every request by `script`; keeps what was asked."""

    def __init__(self, script: Callable[[httpx.Request], Scripted]) -> None:
        self._script = script
        self.requests: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self._script(request)
        if answer.fails is not None:
            raise answer.fails("scripted")
        if answer.silent:
            await asyncio.Event().wait()
        return httpx.Response(answer.status, headers=answer.headers, stream=_Body(answer))
