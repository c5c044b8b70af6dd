"""A dispatcher of inference requests that knows the world through the REST API alone.

It has an address of the information service and a token. Which servers there are, where, and how much of the work each
should get (`dispatch_weight`) it reads from ``/v1/latest`` and ``/v1/watch``. It has no strategy of its own: whichever
rule writes `dispatch_weight` is the strategy, and changing that rule changes it while this runs.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

WEIGHT, ADDRESS = "dispatch_weight", "server_address"
WANTED = {"entity": "server/*", "metric": [WEIGHT, ADDRESS]}
SECONDS_BETWEEN_TRIES = 0.5
LONGEST_SILENCE = 40.0
"""Of the stream, which says something at least each 15 seconds."""
MOST_TRIES = 4
"""Servers that one request is sent to, should one fail."""


class NoServerError(Exception):
    """Nobody may be asked: the service tells of no server, or gives none of them a weight."""


@dataclass(frozen=True)
class Present:
    """A value, and when it is absent if no other comes."""

    value: float | str
    expires: float


@dataclass
class World:
    """What the service says of the servers."""

    values: dict[tuple[str, str], Present] = field(default_factory=dict)

    def take(self, sample: Mapping[str, Any]) -> None:
        """An entry of ``/v1/latest`` or of the stream; null: there is no value now."""
        key = (sample["entity"], sample["metric"])
        if sample["value"] is None:
            self.values.pop(key, None)
        else:
            self.values[key] = Present(sample["value"], sample["expires"])

    def of(self, metric: str, now: float) -> dict[str, Any]:
        """Present values by entity. What has expired is absent, even if the service can no longer say so."""
        found = {e: p.value for (e, m), p in self.values.items() if m == metric and p.expires >= now}
        return dict(sorted(found.items()))


class SmoothWeighted:
    """Hands work out in proportion to weights, each server's turns spread evenly (as nginx does it)."""

    def __init__(self) -> None:
        self._credit: dict[str, float] = {}

    def choose(self, weights: Mapping[str, float]) -> str:
        """The next one's name; raises `NoServerError` if no weight is above 0."""
        able = {name: weight for name, weight in weights.items() if weight > 0}
        if not able:
            raise NoServerError("no server has a dispatch_weight above 0 now")
        self._credit = {name: self._credit.get(name, 0.0) + weight for name, weight in able.items()}
        best = max(self._credit, key=self._credit.__getitem__)
        self._credit[best] -= sum(able.values())
        return best


class Dispatcher:
    """Sends each request to one of the servers that the service tells of."""

    def __init__(self, service: str, token: str, now: Callable[[], float] = time.time) -> None:
        """`service`: its address, as ``http://127.0.0.1:8700``; `now`: time of day, s."""
        headers = {"Authorization": f"Bearer {token}"}
        self._api = httpx.AsyncClient(
            base_url=service, headers=headers, trust_env=False, timeout=httpx.Timeout(10, read=LONGEST_SILENCE)
        )
        self._servers = httpx.AsyncClient(trust_env=False, timeout=60, limits=httpx.Limits(max_connections=None))
        self._now = now
        self._weighted = SmoothWeighted()
        self._turn = itertools.count()
        self.world = World()
        self.news = asyncio.Event()
        """Set with each value that comes."""
        self.lost_streams = 0
        self.failures = 0

    async def follow(self) -> None:
        """Keep `world` as the service has it, until cancelled. Without the service values end when they expire."""
        while True:
            try:
                await self._latest()
                async for kind, document in self._stream():
                    if kind == "error":
                        break
                    if kind == "sample":
                        self._take(document)
            except httpx.HTTPError:
                pass  # the service is gone or busy: what it said holds until it expires
            self.lost_streams += 1
            await asyncio.sleep(SECONDS_BETWEEN_TRIES)

    async def _latest(self) -> None:
        answer = (await self._api.get("/v1/latest", params=WANTED)).raise_for_status()
        for sample in answer.json()["samples"]:
            self._take(sample)

    def _take(self, sample: Mapping[str, Any]) -> None:
        self.world.take(sample)
        self.news.set()

    async def _stream(self) -> AsyncIterator[tuple[str, Any]]:
        async with self._api.stream("GET", "/v1/watch", params={"what": "samples", **WANTED, "interval": 0.2}) as sent:
            sent.raise_for_status()
            kind = ""
            async for line in sent.aiter_lines():
                name, _, text = line.partition(": ")
                if name == "event":
                    kind = text
                elif name == "data":
                    yield kind, json.loads(text)

    def weights(self) -> dict[str, float]:
        """Weight of each server that has one now and that can be found."""
        now = self._now()
        found = self.world.of(ADDRESS, now)
        return {server: weight for server, weight in self.world.of(WEIGHT, now).items() if server in found}

    def by_weight(self) -> str:
        """The next server as the rules want it."""
        return self._weighted.choose(self.weights())

    def round_robin(self) -> str:
        """The next server in turn, whatever the rules say: what there is to compare with."""
        servers = list(self.world.of(ADDRESS, self._now()))
        if not servers:
            raise NoServerError("the service tells of no server")
        return servers[next(self._turn) % len(servers)]

    async def classify(self, image: bytes, choose: Callable[[], str]) -> tuple[str, int]:
        """Who answered, and the image's class. Another one is asked where a server fails."""
        for _ in range(MOST_TRIES):
            server = choose()
            address = self.world.of(ADDRESS, self._now())[server]
            try:
                answer = await self._servers.post(f"http://{address}/classify", content=image)
                answer.raise_for_status()
            except httpx.HTTPError:
                self.failures += 1
                continue
            return server, int(answer.text)
        raise NoServerError(f"{MOST_TRIES} servers in turn did not answer")

    async def close(self) -> None:
        """Close all connections."""
        await self._api.aclose()
        await self._servers.aclose()
