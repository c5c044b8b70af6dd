"""The history on a real disk: a restart loses nothing, a damaged file stops nothing."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from pathlib import Path

from heterotrain_core.info.values import Entity, Event, Metric, MetricType, Sample
from heterotrain_operator.info.events import EventLog
from heterotrain_operator.info.history import History
from heterotrain_operator.info.store import Limits, Store

A = Entity("node/a")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def opened(path: Path, clock: Clock) -> tuple[Store, EventLog, History, int]:
    store, events = Store(Limits(retention_seconds=100.0)), EventLog()
    history = History(path, 100.0, clock)
    restored = history.restore(store, events)
    history.attach(store, events)
    return store, events, history, restored


def test_a_restart_loses_nothing_of_the_retention_window(tmp_path: Path) -> None:
    clock = Clock()
    store, events, history, restored = opened(tmp_path / "state" / "history.db", clock)
    assert restored == 0
    store.declare(Metric("x", unit="s", ttl=30.0, description="d"))
    store.declare(Metric("state", MetricType.STATE))
    for time in (850.0, 950.0, 990.0):
        store.put(Sample(A, "x", time, time), min(clock.now, time))
    store.put(Sample(A, "x", 995.0, math.inf), clock.now, 997.0)
    store.put(Sample(A, "state", 995.0, "HOT"), clock.now)
    store.set_labels(A, {"pool": "old"})
    told = events.append(Event("r", A, "state", 995.0, "HOT", "OK", "m"))
    history.flush()

    again, log, _, restored = opened(tmp_path / "state" / "history.db", clock)
    assert restored == 4, "one was older than the retention"
    assert again.span(A, "x", 0, 2000) == [(950.0, 950.0), (990.0, 990.0), (995.0, math.inf)]
    assert [(r.metric, r.value) for r in again.latest(996)] == [("state", "HOT"), ("x", math.inf)]
    assert [(r.metric, r.value) for r in again.latest(998)] == [("state", "HOT"), ("x", None)]
    assert again.metrics() == store.metrics()
    assert again.labels(A) == {"pool": "old"}
    assert log.since(0) == [told]
    assert log.append(told.event).sequence == 2


def test_what_is_older_than_the_retention_is_deleted_but_numbers_go_on(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "history.db"
    store, events, history, _ = opened(path, clock)
    store.put(Sample(A, "x", clock.now, 1.0), clock.now)
    for _ in range(2):
        events.append(Event("r", A, "x", clock.now, 1.0, None, "m"))
    history.flush()
    for _ in range(30):
        clock.now += 50
        history.flush()
    _, log, _, restored = opened(path, clock)
    assert (restored, log.last, [n.sequence for n in log.since(0)]) == (0, 2, [2])
    with sqlite3.connect(path) as file:
        assert [
            file.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("sample", "series", "label")
        ] == [0, 0, 0]
    file.close()


def test_a_damaged_file_is_put_aside_and_a_new_one_begun(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    path.write_bytes(b"this is no database" * 100)
    store, _, history, restored = opened(path, Clock())
    assert restored == 0
    store.put(Sample(A, "x", 1000.0, 1.0), 1000.0)
    history.flush()
    assert opened(path, Clock())[3] == 1
    assert [file.name for file in tmp_path.glob("*damaged*")] == ["history.damaged-1000"]


def test_a_disk_that_refuses_is_tried_again_and_nothing_is_lost(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "history.db"
    store, _, history, _ = opened(path, clock)
    store.put(Sample(A, "x", 1000.0, 1.0), clock.now)
    path.unlink()
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    path.mkdir()
    history.flush()
    store.put(Sample(A, "x", 1001.0, 2.0), clock.now)
    path.rmdir()
    history.flush()
    assert history.lost == 0
    assert opened(path, clock)[0].span(A, "x", 0, 2000) == [(1000.0, 1.0), (1001.0, 2.0)]


async def test_cancelling_writes_what_is_left(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "history.db"
    store, _, history, _ = opened(path, clock)
    running = asyncio.create_task(history.run())
    await asyncio.sleep(0)
    store.put(Sample(A, "x", 1000.0, 1.0), clock.now)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert opened(path, clock)[3] == 1
