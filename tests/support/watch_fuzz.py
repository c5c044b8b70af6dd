"""Random requests to ``/v1/watch`` of a real server, which schemathesis leaves out: a stream has no end.

Each request is answered as the server's own description says, and what streams send is checked frame by frame for a
moment. Some hang up in the middle; at the end more clients come at once than there may be, and one that never reads.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote_from_bytes, urlencode

import httpx
import psutil

from heterotrain_operator.rest.context import MAX_WATCHERS
from heterotrain_operator.rest.watch import SEND_SECONDS
from support.info_server import TOKEN, InfoServer, processing, push_rule

PATH: Final = "/v1/watch"
RULES: Final = (
    push_rule("pushed", "load", ttl=1.5, cardinality=10_000),
    processing(
        "hot",
        inputs={"load": {"metric": "load", "entity": "node/*"}},
        chain=[{"operator": "threshold", "hi": 0.8, "lo": 0.6}],
        output={"metric": "load_state"},
        emit="both",
    ),
)
FRAMES: Final = 50
MOMENT: Final = 0.4
"""Seconds that a stream is read for."""
KINDS: Final = frozenset(["event", "sample", "synced", "error"])
FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "event": frozenset(["rule", "entity", "metric", "time", "value", "previous", "message", "cursor"]),
    "sample": frozenset(["entity", "metric", "time", "value", "expires"]),
    "synced": frozenset(),
    "error": frozenset(["code", "message", "fields"]),
}
WORDS: Final = (
    "", "0", "-1", "*", "**", "node", "node/*", "node/a", "node//", "/", "a" * 600, "\x00", "\n", "\r\n\r\n", "é", "𝔸",
    "NaN", "1e999", "0x1p-3", "events", "samples", "load", "load_state", "zone=", "zone=eu|!x", "=", "!", "1-0x1.0p+3",
    "99999999999999999999-1", "1-nan", "1-inf", "-5-0x0p+0", "9" * 64, "9" * 65, "{1}", "%00", "../..", "true",
    "null", "[]", "\ud7ff",
)  # fmt: skip
NAMES: Final = ("what", "since", "entity", "metric", "label", "interval", "unknown", "cursor", "limit")


@dataclass
class WatchReport:
    """What came of it."""

    seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    frames: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    streams: int = 0
    """Most at a time that the server let in of those that came at once."""
    refused: int = 0
    """Of those that came at once."""
    deaf_seconds: float | None = None
    """After which the server gave up a client that reads nothing; `None`: not tried."""
    memory_before: float = 0.0
    """MiB of the server."""
    memory_after: float = 0.0

    def fault(self, words: str) -> None:
        """Note one; the first few say enough."""
        if len(self.faults) < 20:
            self.faults.append(words)


def random_request(chance: random.Random, cursors: list[str]) -> tuple[str, dict[str, str]]:
    """Query and headers of one request. `cursors`: some that the server has given."""
    words = [*WORDS, *cursors[-5:]]
    pairs = [(chance.choice(NAMES), chance.choice(words)) for _ in range(chance.choice((0, 1, 1, 2, 3, 20)))]
    if chance.random() < 0.5:  # mostly right, so that streams begin
        pairs = [
            ("what", chance.choice(("events", "samples"))),
            ("interval", chance.choice(("0.1", "0.5", "60"))),
            *([("since", chance.choice(["0", *cursors[-5:]]))] if chance.random() < 0.5 else []),
        ]
    query = urlencode(pairs)
    if chance.random() < 0.1:
        query += "&entity=" + quote_from_bytes(chance.randbytes(8))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    if chance.random() < 0.3:
        given = chance.choice(words).encode("latin-1", "ignore").decode("latin-1")
        headers["Last-Event-ID"] = "".join(char for char in given if char.isprintable()).strip()
    if chance.random() < 0.05:
        headers["Authorization"] = chance.choice(("", "Bearer", "Bearer x", "Basic QQ==", f"bearer {TOKEN}"))
    return query, headers


async def fuzz_watch(server: InfoServer, seconds: float, *, deaf: bool = False, seed: int = 7) -> WatchReport:
    """All of it against a server with `RULES`. `deaf`: with a client that never reads, which takes half a minute."""
    report, chance = WatchReport(seconds), random.Random(seed)
    process = psutil.Process(server.process.pid)
    cursors: list[str] = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=30, limits=limits) as client:
        document = (await client.get("/openapi.json")).json()
        described = {int(status) for status in document["paths"][PATH]["get"]["responses"]}
        report.memory_before = process.memory_info().rss / 2**20
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.gather(
                *(_one(client, random_request(chance, cursors), described, report, cursors) for _ in range(8)),
                _swing(client, chance, report),
            )
        await _crowd(client, report)
        if deaf:
            await _deaf(client, server.port, report)
        report.memory_after = process.memory_info().rss / 2**20
    return report


async def _one(
    client: httpx.AsyncClient, request: tuple[str, dict[str, str]], described: set[int], report: WatchReport,
    cursors: list[str],
) -> None:  # fmt: skip
    query, headers = request
    url = client.base_url.join(PATH).copy_with(query=query.encode())
    where = f"{query} {headers.get('Last-Event-ID', '')}"
    try:
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        async with client.stream("GET", url, headers=raw) as answer:
            report.statuses[answer.status_code] += 1
            if answer.status_code not in described or answer.status_code >= 500:
                report.fault(f"status {answer.status_code} for {where}")
            elif answer.status_code != 200:
                if set(json.loads(await answer.aread())) != FIELDS["error"]:
                    report.fault(f"another shape of error for {where}: {answer.text[:200]}")
            else:
                await _read(answer, where, report, cursors)
    except httpx.HTTPError as error:
        report.fault(f"{type(error).__name__} for {where}: {error}")


async def _read(answer: httpx.Response, where: str, report: WatchReport, cursors: list[str]) -> None:
    frames = _frames(answer)
    try:
        async with asyncio.timeout(MOMENT):
            async for kind, cursor, data in frames:
                report.frames[kind] += 1
                if kind not in KINDS or set(data) != FIELDS[kind]:
                    report.fault(f"a frame {kind} of {sorted(data)} for {where}")
                if kind == "event" and cursor != data["cursor"]:
                    report.fault(f"the id {cursor} of an event with cursor {data['cursor']} for {where}")
                if cursor is not None:
                    cursors.append(cursor)
                if sum(report.frames.values()) % FRAMES == 0:
                    return  # hangs up in the middle
    except TimeoutError:
        return


async def _frames(answer: httpx.Response) -> AsyncIterator[tuple[str, str | None, Any]]:
    kind, cursor = "", None
    async for line in answer.aiter_lines():
        name, _, text = line.partition(": ")
        match name:
            case "event":
                kind = text
            case "id":
                cursor = text
            case "data":
                yield kind, cursor, json.loads(text, parse_constant=_strict)
                kind, cursor = "", None


def _strict(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


async def _swing(client: httpx.AsyncClient, chance: random.Random, report: WatchReport) -> None:
    """Values that come and go, and make events."""
    samples = [
        {"entity": f"node/n{chance.randrange(40)}", "metric": "load", "value": chance.choice((0.1, 0.9, 1e308))}
        for _ in range(20)
    ]
    answer = await client.post("/v1/samples", json={"samples": samples}, headers={"Authorization": f"Bearer {TOKEN}"})
    if answer.status_code != 200:
        report.fault(f"samples are not taken: {answer.text[:200]}")


async def _crowd(client: httpx.AsyncClient, report: WatchReport) -> None:
    """More clients at once than there may be: each is let in or refused at once, and all give their places back."""
    deadline = 20.0

    async def come(leave: asyncio.Event, came: list[int]) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        try:
            async with asyncio.timeout(deadline), client.stream("GET", PATH, headers=headers) as answer:
                came.append(answer.status_code)
                await leave.wait()
        except TimeoutError:
            report.fault("a client of a crowd was neither let in nor refused")

    count = MAX_WATCHERS + 40
    leave, came = asyncio.Event(), list[int]()
    clients = [asyncio.create_task(come(leave, came)) for _ in range(count)]
    waited = time.monotonic()
    while len(came) < count and time.monotonic() - waited < deadline:  # noqa: ASYNC110  # a list has no event
        await asyncio.sleep(0.05)
    leave.set()
    await asyncio.gather(*clients)
    report.streams, report.refused = came.count(200), came.count(429)
    if report.streams > MAX_WATCHERS or report.streams + report.refused != len(came):
        report.fault(f"of {count} at once {Counter(came)}")


async def _deaf(client: httpx.AsyncClient, port: int, report: WatchReport) -> None:
    """A client that reads nothing while megabytes are there for it loses its stream, and costs little memory."""
    client_socket = socket.create_connection(("127.0.0.1", port))
    request = f"GET {PATH}?what=samples&interval=0.1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    client_socket.sendall(request.encode())
    began = time.monotonic()
    while time.monotonic() - began < 3 * SEND_SECONDS:
        samples = [{"entity": f"deaf/n{index}", "metric": "load", "value": time.time()} for index in range(5000)]
        answer = await client.post(
            "/v1/samples", json={"samples": samples}, headers={"Authorization": f"Bearer {TOKEN}"}
        )
        if answer.status_code != 200:
            report.fault(f"samples are not taken beside a client that does not read: {answer.text[:200]}")
        if not _connected(port, client_socket.getsockname()[1]):
            report.deaf_seconds = time.monotonic() - began
            break
        await asyncio.sleep(0.3)
    else:
        report.fault("a client that reads nothing keeps its stream")
    client_socket.close()


def _connected(port: int, client_port: int) -> bool:
    """Whether the server's end of a connection is open."""
    return any(
        one.laddr.port == port and one.raddr and one.raddr.port == client_port and one.status == psutil.CONN_ESTABLISHED
        for one in psutil.net_connections("tcp4")
    )
