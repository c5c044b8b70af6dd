"""An information service in virtual time over a scripted network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx

from heterotrain_api.info_collection import CollectionRule
from heterotrain_operator.info.collect import Collector
from heterotrain_operator.info.engine import Engine
from heterotrain_operator.info.events import EventLog
from heterotrain_operator.info.loop import InfoService
from heterotrain_operator.info.readers import ReaderSettings, make_readers
from heterotrain_operator.info.rules import collection_from_spec
from heterotrain_operator.info.sources.kubernetes import ApiReader
from heterotrain_operator.info.store import Limits, Store
from heterotrain_operator.info.turns import Turns
from support.scripted_web import Scripted, ScriptedWeb

START = 1_800_000_000.0
"""The time of day at which virtual time begins."""


def virtual_seconds() -> float:
    return START + asyncio.get_running_loop().time()


class World:
    """All parts put together; the loop that runs is a virtual one."""

    def __init__(
        self,
        script: Callable[[httpx.Request], Scripted] = lambda _: Scripted(),
        *,
        settings: ReaderSettings | None = None,
        limits: Limits | None = None,
        api: ApiReader | None = None,
    ) -> None:
        self.web = ScriptedWeb(script)
        self.store = Store(limits)
        self.events = EventLog()
        turns = Turns(clock=lambda: 0.0)
        self.engine = Engine(self.store, self.events, turns, clock=lambda: 0.0)
        readers, self.connections = make_readers(settings or ReaderSettings(), turns, api, lambda: self.web)
        self.collector = Collector(self.engine, readers, virtual_seconds, lambda: 0.5, clock=lambda: 0.0)
        self.service = InfoService(self.engine, self.collector, virtual_seconds, lambda: 0.5)

    def value(self, entity: str, metric: str) -> Any:
        """The present value, `None` if absent."""
        found = self.store.latest(virtual_seconds(), entity, metric)
        return found[0].value if found else None


def make_collection(name: str = "rule", **spec: Any) -> CollectionRule:
    """Text from http://n1:9100/metrics about node/n1, each 5 s, unless said otherwise."""
    spec.setdefault("source", {"endpoint": {"url": "http://n1:9100/metrics"}})
    spec.setdefault("entity", [{"name": "node/{instance|host}"}])
    spec.setdefault("interval", 5)
    spec.setdefault("metrics", [{"name": "load"}])
    return collection_from_spec(name, spec)
