"""The information service with its API on one machine, without a cluster: what ``heterotrain info serve`` runs."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from heterotrain_operator.info.collect import Collector
from heterotrain_operator.info.engine import Engine
from heterotrain_operator.info.events import EventLog
from heterotrain_operator.info.history import History
from heterotrain_operator.info.loop import InfoService
from heterotrain_operator.info.readers import ReaderSettings, make_readers
from heterotrain_operator.info.store import Limits, Store
from heterotrain_operator.info.turns import Turns
from heterotrain_operator.rest.access import LocalAccess
from heterotrain_operator.rest.app import create_app
from heterotrain_operator.rest.desk import LocalDesk, Rule
from heterotrain_operator.rest.server import serve


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """Of one server."""

    host: str = "127.0.0.1"
    """A loopback address."""
    port: int
    """0: any free one."""
    token: str
    readers: ReaderSettings = field(default_factory=lambda: ReaderSettings(allow_commands=True))
    allow_commands: bool = False
    """Whether rules that come by the API may run commands; those of files may."""
    history: Path | None = None
    limits: Limits = field(default_factory=Limits)


async def serve_local(settings: LocalSettings, rules: Iterable[Rule], ready: Callable[[int], None]) -> None:
    """Collect, process and serve until cancelled. `rules` have no faults; `ready` is called with the port.

    Raises `OSError` if the address cannot be had, `OSError` or `sqlite3.Error` if the history cannot.
    """
    store, events = Store(settings.limits), EventLog()
    history = _history(settings, store, events)
    turns = Turns()
    engine = Engine(store, events, turns)
    readers, web = make_readers(settings.readers, turns)
    # Chance spreads the runs of rules over time; nothing secret depends on it.
    collector = Collector(engine, readers, time.time, random.random)
    service = InfoService(engine, collector, time.time, random.random)
    desk = LocalDesk(service, rules, allow_commands=settings.allow_commands)
    app = create_app(service, LocalAccess(settings.token), desk)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(service.run(), name="information service")
            if history is not None:
                group.create_task(history.run(), name="history")
            group.create_task(serve(app, settings.host, settings.port, ready=ready), name="REST API")
    except ExceptionGroup as group_error:
        raise group_error.exceptions[0] from group_error  # one has failed, the others were cancelled
    finally:
        await web.close()


def _history(settings: LocalSettings, store: Store, events: EventLog) -> History | None:
    if settings.history is None:
        return None
    history = History(settings.history, settings.limits.retention_seconds, time.time)
    history.restore(store, events)
    history.attach(store, events)
    return history
