"""Requests: a closed loop of clients, and what became of their requests."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

from dispatcher import Dispatcher, NoServerError

SECONDS_WITHOUT_SERVER = 0.1


class Done(NamedTuple):
    """A request that was answered."""

    time: float
    """Of the answer, on the monotonic clock."""
    seconds: float
    server: str


@dataclass(frozen=True)
class Figures:
    """Of a span of time."""

    requests: int
    seconds: float
    p50: float
    p95: float
    by_server: dict[str, int]

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


def figures(done: Sequence[Done], began: float, ended: float) -> Figures:
    """Of the requests that were answered in a span."""
    counted = [one for one in done if began <= one.time < ended]
    times = sorted(one.seconds for one in counted) or [float("nan")]
    by_server = Counter(one.server.removeprefix("server/") for one in counted)
    return Figures(
        len(counted),
        ended - began,
        times[len(times) // 2],
        times[min(len(times) - 1, int(0.95 * len(times)))],
        dict(sorted(by_server.items())),
    )


def pooled(parts: Sequence[tuple[float, float]], done: Sequence[Done]) -> Figures:
    """Of several spans as if they were one."""
    seconds = sum(ended - began for began, ended in parts)
    inside = [one for one in done if any(began <= one.time < ended for began, ended in parts)]
    return figures([one._replace(time=0.0) for one in inside], 0.0, seconds)


class Traffic:
    """Each client sends its next request once it has the answer to the one before."""

    def __init__(self, dispatcher: Dispatcher, images: Sequence[bytes], expected: Sequence[int], clients: int) -> None:
        """`expected`: the class that the model gives each image; another answer is counted as wrong."""
        self._dispatcher = dispatcher
        self._work = itertools.cycle(list(zip(images, expected, strict=True)))
        self._clients = clients
        self._stopping = False
        self._sent_by = [0] * clients
        """Requests that each client has sent."""
        self._sent = asyncio.Event()
        self.done: list[Done] = []
        self.wrong = 0
        self.without_server = 0

    @asynccontextmanager
    async def flowing(self, choose: Callable[[], str]) -> AsyncIterator[None]:
        """Requests flow inside the block; at its end those on their way are waited for."""
        self._stopping = False
        async with asyncio.TaskGroup() as group:
            for client in range(self._clients):
                group.create_task(self._client(client, choose))
            try:
                yield
            finally:
                self._stopping = True

    async def turned_over(self) -> None:
        """Wait until all requests that are on their way now are answered, while others follow."""
        before = list(self._sent_by)
        while any(now <= then for now, then in zip(self._sent_by, before, strict=True)):
            self._sent.clear()
            await self._sent.wait()

    async def _client(self, client: int, choose: Callable[[], str]) -> None:
        while not self._stopping:
            image, expected = next(self._work)
            self._sent_by[client] += 1
            self._sent.set()
            began = time.monotonic()
            try:
                server, label = await self._dispatcher.classify(image, choose)
            except NoServerError:
                self.without_server += 1
                await asyncio.sleep(SECONDS_WITHOUT_SERVER)
                continue
            self.wrong += label != expected
            self.done.append(Done(time.monotonic(), time.monotonic() - began, server))

    async def span(self, choose: Callable[[], str], seconds: float) -> tuple[float, float]:
        """Let requests flow for some time; when it began and ended."""
        async with self.flowing(choose):
            began = time.monotonic()
            await asyncio.sleep(seconds)
            ended = time.monotonic()
        return began, ended
