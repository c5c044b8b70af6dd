"""Sources that do everything wrong, over real sockets, and the information service that reads them.

Used by ``bench/hostile_sources.py`` for a minute and by the tests for some seconds. Each kind of hostility has a target
and a rule of its own; every other answer of a target is right. The truth is the time of day: a right answer's value is
the time at which it was given, so that a value that is served can be told wrong, or too old, by itself.
"""

from __future__ import annotations

import asyncio
import random
import resource
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any, Final, TypeAlias

import httpx

from heterotrain_api.info_collection import CollectionRule
from heterotrain_operator.info.collect import Collector
from heterotrain_operator.info.engine import Engine
from heterotrain_operator.info.events import EventLog
from heterotrain_operator.info.loop import InfoService
from heterotrain_operator.info.readers import ReaderSettings, make_readers
from heterotrain_operator.info.rule_state import RuleState
from heterotrain_operator.info.rules import load_rules
from heterotrain_operator.info.store import Limits, Store
from heterotrain_operator.info.turns import Turns
from heterotrain_operator.rest.access import LocalAccess
from heterotrain_operator.rest.app import create_app
from heterotrain_operator.rest.desk import LocalDesk
from heterotrain_operator.rest.server import serve
from support.info_world import make_collection

Talk: TypeAlias = Callable[[asyncio.StreamWriter], Awaitable[None]]

TOKEN: Final = "t0ken-of-the-tests"
INTERVAL: Final = 1.0
TTL: Final = 4.0
SLACK: Final = 5.0
"""Between an answer's making and its being taken up, on a machine that is busy."""
WRONG: Final = 9e9
SKEW: Final = 600.0
MEGABYTE: Final = b"#" * 2**20


def answer(body: str, status: str = "200 OK", headers: str = "") -> bytes:
    """A whole answer, after which the connection ends."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body.encode())}\r\n{headers}"
    return f"{head}Connection: close\r\n\r\n{body}".encode()


def saying(make: Callable[[], bytes]) -> Talk:
    """An answer that is sent in one go."""

    async def talk(writer: asyncio.StreamWriter) -> None:
        writer.write(make())

    return talk


def text(body: str, status: str = "200 OK", headers: str = "") -> Talk:
    return saying(lambda: answer(body, status, headers))


async def silent(_: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def trickle(writer: asyncio.StreamWriter) -> None:
    for byte in answer(f"load {WRONG}\n"):
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.05)


async def half(writer: asyncio.StreamWriter) -> None:
    """Fewer bytes than were promised, then nothing; what came looks like a whole line."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 999\r\n\r\nload 9e9\n")
    await silent(writer)


async def half_closed(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 999\r\n\r\nload 9e9\n")
    writer.write_eof()


async def reset(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 999\r\n\r\nload 9e9\n")
    await writer.drain()
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def giant(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 10737418240\r\n\r\nload 9e9\n")
    while True:
        writer.write(MEGABYTE)
        await writer.drain()


async def endless_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X: " + b"y" * 1000 + b"\r\n")
        await writer.drain()


async def endless_chunks(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"100000\r\n" + MEGABYTE + b"\r\n")
        await writer.drain()


@dataclass(frozen=True)
class Kind:
    """One way to be hostile, and what it must be counted as."""

    talk: Talk
    outcomes: frozenset[str]
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Of its rule, besides what all have."""


def _kind(talk: Talk, *outcomes: str, **spec: Any) -> Kind:
    return Kind(talk, frozenset(outcomes), spec)


KINDS: Final[Mapping[str, Kind]] = {
    "nan": _kind(text("load NaN\n"), "not_finite"),
    "infinite": _kind(text("load +Inf\n"), "not_finite"),
    "empty": _kind(text(""), "empty"),
    "other-metrics": _kind(text("bytes 9e9\n"), "empty"),
    "not-found": _kind(text("load 9e9\n", "404 Not Found"), "http_status"),
    "denied": _kind(text("load 9e9\n", "403 Forbidden"), "denied"),
    "broken": _kind(text("load 9e9\n", "500 Internal Server Error"), "http_status"),
    "html": _kind(text("<html><body>load 9e9</body></html>\n"), "not_metrics"),
    "html-by-name": _kind(
        saying(lambda: answer("load 9e9\n").replace(b"text/plain", b"text/html ")), "not_metrics"
    ),
    "compressed": _kind(text("load 9e9\n", headers="Content-Encoding: gzip\r\n"), "not_metrics"),
    "cut-label": _kind(text('load{a="\n'), "malformed"),
    "bytes": _kind(saying(lambda: b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n\xff\xfe\x00\x9d\x01"), "not_metrics"),
    "no-http": _kind(saying(lambda: b"220 smtp.example ESMTP\r\n"), "connect"),
    "bad-chunk": _kind(
        saying(lambda: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nload 9e9\n\r\n0\r\n\r\n"), "connect"
    ),
    "redirect": _kind(text("load 9e9\n", "302 Found", "Location: /redirect\r\n"), "redirect"),
    "redirect-away": _kind(text("load 9e9\n", "307 x", "Location: http://169.254.169.254/\r\n"), "redirect"),
    "silent": _kind(silent, "timeout"),
    "trickle": _kind(trickle, "timeout"),
    "half": _kind(half, "timeout"),
    "half-closed": _kind(half_closed, "connect"),
    "reset": _kind(reset, "connect"),
    "closed-at-once": _kind(saying(lambda: b""), "connect"),
    "giant": _kind(giant, "too_large", "timeout"),
    "endless-head": _kind(endless_head, "connect", "timeout"),
    "endless-chunks": _kind(endless_chunks, "too_large", "timeout"),
    "twice": _kind(saying(lambda: answer(f"load {time.time()}\nload {WRONG}\n")), "several"),
    "many": _kind(
        saying(lambda: answer("".join(f'load{{card="many-{index}"}} {time.time()}\n' for index in range(500)))),
        "cardinality",
        cardinality=50, entity=[{"name": "node/{card}"}, {"name": "node/many", "absent": ["card"]}],
    ),
    "nameless": _kind(
        text('load{card=""} 9e9\n'), "unmapped",
        entity=[{"name": "node/{card}"}, {"name": "node/nameless", "absent": ["card"]}],
    ),
    "future": _kind(saying(lambda: answer(f"load {WRONG} {(time.time() + 999) * 1000:.0f}\n")), "future"),
    "late": _kind(saying(lambda: answer(f"load {WRONG} {(time.time() - 9999) * 1000:.0f}\n")), "late"),
}  # fmt: skip
"""By name. Every other answer is right, but for those of `ALWAYS`."""


def truth() -> bytes:
    return answer(f"load {time.time()}\n")


def _again() -> bytes:
    """The same sample for 3 s, as an exporter gives it that refreshes less often than it is asked."""
    now = int(time.time() // 3) * 3
    return answer(f"load {now} {now * 1000}\n")


def _skewed() -> bytes:
    there = time.time() - SKEW
    return answer(f"load {there + SKEW} {there * 1000:.0f}\n", headers=f"Date: {formatdate(there, usegmt=True)}\r\n")


def _restarting() -> bytes:
    """A counter that grows by 100 a second and begins again each 3 s."""
    return answer(f"work_total {time.time() % 3 * 100}\n")


ALWAYS: Final[Mapping[str, Kind]] = {
    "again": _kind(saying(_again), "duplicate"),
    "skewed": _kind(saying(_skewed), "clock_skew"),
    "restarting": _kind(
        saying(_restarting), "stored", metrics=[{"name": "work_total", "type": "counter", "unit": "1"}]
    ),
    "gone": _kind(saying(lambda: b""), "connect", "breaker_open"),
}
"""Targets whose every answer is so: the same sample again, another clock, a counter that begins anew, nothing."""
NEVER_SERVED: Final = frozenset({"gone", "many", "nameless"})
"""Entities without a value: never a right answer, or right answers that name other entities."""
RATE: Final = """
apiVersion: heterotrain.io/v1alpha1
kind: ProcessingRule
metadata: {name: rate}
spec:
  inputs: {work: {metric: work_total}}
  window: 2
  chain: [{operator: rate}]
  output: {metric: work_rate}
"""
LARGEST_RATE: Final = 400.0
"""Of a counter that grows by 100 a second, seen through the jitter of answers."""


class HostileWeb:
    """The targets' server: ``/NAME`` for each kind, in a thread with a loop of its own."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.hostile: Counter[str] = Counter()
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._talks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()), name="hostile")

    def __enter__(self) -> HostileWeb:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in self._talks:
            task.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._handle(reader, writer))
        self._talks.add(task)
        task.add_done_callback(self._talks.discard)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                await self._talk(head.split()[1].decode().removeprefix("/"))(writer)
                await writer.drain()
            finally:
                writer.close()

    def _talk(self, name: str) -> Talk:
        self.asked[name] += 1
        if name in ALWAYS:
            self.hostile[name] += 1
            return ALWAYS[name].talk
        if self.asked[name] % 2:
            return saying(truth)
        self.hostile[name] += 1
        return KINDS[name].talk


def rules(port: int) -> list[CollectionRule]:
    """One for each kind."""
    return [
        make_collection(
            name,
            source={"endpoint": {"url": f"http://127.0.0.1:{port}/{name}"}},
            interval=INTERVAL,
            ttl=TTL,
            **{"entity": [{"name": f"node/{name}"}], **kind.spec},
        )
        for name, kind in {**KINDS, **ALWAYS}.items()
    ]


@dataclass
class Report:
    """What a time among hostile sources has shown."""

    seconds: float = 0.0
    looks: int = 0
    """How often everything that is served was looked at."""
    fresh: Counter[str] = field(default_factory=Counter)
    """Looks at which an entity had a value."""
    wrong: list[str] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    hostile: Counter[str] = field(default_factory=Counter)
    """Hostile answers that were given, by kind."""
    errors: dict[str, str] = field(default_factory=dict)
    memory_before: float = 0.0
    """MiB, at its most."""
    memory_after: float = 0.0

    def take(self, states: Mapping[str, RuleState]) -> None:
        """Note what became of each rule's runs."""
        self.outcomes = {
            name: Counter({str(o): n for o, n in state.outcomes.items()}) for name, state in states.items()
        }
        self.errors = {name: state.error for name, state in states.items()}

    def miscounted(self) -> list[str]:
        """Kinds of which nothing is counted as it should be, or something as unforeseen."""
        faults = []
        for name, kind in {**KINDS, **ALWAYS}.items():
            counts = self.outcomes[name]
            if not any(counts[outcome] for outcome in kind.outcomes):
                faults.append(f"{name}: none of {sorted(kind.outcomes)} in {dict(counts)}")
            if counts["unexpected"]:
                faults.append(f"{name}: unexpected: {self.errors[name]}")
        return faults

    def unserved(self) -> list[str]:
        """Entities that had no value at any look although every other answer of their target is right."""
        return [name for name in (*KINDS, *ALWAYS) if name not in NEVER_SERVED and not self.fresh[name]]


async def endure(web: HostileWeb, seconds: float, patience: float = 0.0) -> Report:
    """Read the hostile sources for some time and look at what the REST API serves meanwhile.

    `patience`: more seconds, should not every kind have been met, and every right answer served, by then: on a busy
    machine right answers come too late as well, and three failures in a row open a breaker.
    """
    store, events = Store(Limits()), EventLog()
    turns = Turns()
    engine = Engine(store, events, turns)
    readers, connections = make_readers(ReaderSettings(), turns)
    collector = Collector(engine, readers, time.time, random.random)
    service = InfoService(engine, collector, time.time, random.random)
    desk = LocalDesk(service, [*rules(web.port), *load_rules(RATE)], allow_commands=False)
    app = create_app(service, LocalAccess(TOKEN), desk)
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    report = Report(seconds=seconds, memory_before=_mebibytes())
    running = [
        asyncio.create_task(service.run()),
        asyncio.create_task(serve(app, "127.0.0.1", 0, ready=ready.set_result)),
    ]
    try:
        port, end = await ready, time.monotonic() + seconds
        await _look(report, port, lambda: time.monotonic() >= end, running)
        report.take(collector.states())
        while (report.miscounted() or report.unserved()) and time.monotonic() < end + patience:
            await _look(report, port, lambda: True, running)
            report.take(collector.states())
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await connections.close()
    report.hostile, report.memory_after = web.hostile, _mebibytes()
    return report


async def _look(report: Report, port: int, over: Callable[[], bool], running: Sequence[asyncio.Task[None]]) -> None:
    """Look at all that is served ten times a second until it is `over`, once at least."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", headers=headers, trust_env=False, timeout=30
    ) as client:
        while True:
            asked = time.time()
            found = await client.get("/v1/latest", params={"metric": ["load", "work_rate"], "limit": 10000})
            for sample in found.raise_for_status().json()["samples"]:
                _judge(report, sample, asked)
            report.looks += 1
            assert not any(task.done() for task in running), "the service has ended"
            if over():
                return
            await asyncio.sleep(0.1)


def _judge(report: Report, sample: Mapping[str, Any], asked: float) -> None:
    """`asked`: before the request; what was served was no older then than it is judged to be here."""
    name = sample["entity"].removeprefix("node/")
    report.fresh[name] += 1
    if sample["metric"] == "work_rate":
        report.rates.append(sample["value"])
        if not 0 <= sample["value"] <= LARGEST_RATE:
            report.wrong.append(f"{name}: a rate of {sample['value']}")
    elif not (asked - TTL - SLACK <= sample["value"] <= time.time() + 1):
        report.wrong.append(f"{name}: {sample['value']} is {asked - sample['value']:.1f} s old")


def _mebibytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
