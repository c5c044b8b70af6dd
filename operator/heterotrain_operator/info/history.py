"""Keeps the retention window on disk, so that a restart loses none of it. Optional; the store works without.

SQLite, because it is in the standard library and as well kept as software gets, needs no process of its own, and one
file with a write-ahead log takes far more rows a second than rules give (`docs/decisions`).
Samples are buffered and written in one transaction every few seconds, in a thread: what the last seconds brought may
be lost with the power, never what was written before. Nothing waits for the disk.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from heterotrain_core.info.values import Entity, Event, Metric, MetricType, Sample
from heterotrain_operator.info.events import EventLog, Numbered
from heterotrain_operator.info.store import Store

logger = logging.getLogger(__name__)

SCHEMA_VERSION: Final = 1
FLUSH_SECONDS: Final = 2.0
MAX_BUFFERED: Final = 500_000
"""Samples that wait at most; when the disk is slower than the rules the newest are left out, and counted."""
MAX_EVENTS_KEPT: Final = 1000
"""Of a batch that could not be written."""
_TRIM_EVERY: Final = 30
"""Flushes between deletions of what is older than the retention."""

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS metric (name TEXT PRIMARY KEY, type TEXT, unit TEXT, ttl REAL, description TEXT);
CREATE TABLE IF NOT EXISTS series (id INTEGER PRIMARY KEY, entity TEXT, metric TEXT, UNIQUE (entity, metric));
CREATE TABLE IF NOT EXISTS label (entity TEXT, name TEXT, value TEXT, PRIMARY KEY (entity, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sample (time REAL, series INTEGER, value, expires REAL);
CREATE INDEX IF NOT EXISTS sample_time ON sample (time);
CREATE TABLE IF NOT EXISTS event (sequence INTEGER PRIMARY KEY, time REAL, body TEXT);
"""

Row = tuple[float, str, str, float | str, float]
"""Time, entity, metric, value, when it is absent."""
_Batch = tuple[list[Row], list[Numbered]]


class History:
    """One file. `restore` once, then `attach`, then `run` until cancelled; `flush` at the end."""

    def __init__(self, path: Path, retention_seconds: float, now: Callable[[], float]) -> None:
        self._path: Final = path
        self._retention: Final = retention_seconds
        self._now = now
        self._samples: list[Row] = []
        self._events: list[Numbered] = []
        self._ids: dict[tuple[str, str], int] = {}
        self._store: Store | None = None
        self._flushes = 0
        self.lost = 0
        """Samples that were not written, since the start."""

    def restore(self, store: Store, events: EventLog) -> int:
        """Put what the file has of the retention window into an empty store; gives how many samples.

        A damaged file is put aside and a new one begun: old numbers are not worth a service that does not start.
        """
        try:
            return self._restore(store, events)
        except sqlite3.DatabaseError:
            aside = self._path.with_suffix(f".damaged-{self._now():.0f}")
            logger.exception("The history %s is damaged; it is now %s, and a new one begins.", self._path, aside)
            self._path.replace(aside)
            for ending in ("-wal", "-shm"):
                self._path.with_name(self._path.name + ending).unlink(missing_ok=True)
            return self._restore(store, events)

    def attach(self, store: Store, events: EventLog) -> None:
        """Have everything written down that is stored and told from now on."""
        self._store = store
        store.on_put(self._note)
        events.on_append(self._note_event)

    async def run(self) -> None:
        """Write every few seconds until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(FLUSH_SECONDS)
                await self._flush_in_thread()
        finally:
            self.flush()

    def flush(self) -> None:
        """Write what is buffered; if the disk refuses, it is kept for the next time as far as there is room."""
        batch = self._take()
        try:
            self._write(batch)
        except sqlite3.Error as error:
            self._put_back(batch, error)

    async def _flush_in_thread(self) -> None:
        batch = self._take()
        writing = asyncio.create_task(asyncio.to_thread(self._write, batch))
        try:
            await asyncio.shield(writing)
        except sqlite3.Error as error:
            self._put_back(batch, error)
        except asyncio.CancelledError:
            await asyncio.wait([writing])  # the last flush must not meet this one
            failure = writing.exception()
            if isinstance(failure, sqlite3.Error):
                self._put_back(batch, failure)
            raise

    def _take(self) -> _Batch:
        batch = (self._samples, self._events)
        self._samples, self._events = [], []
        return batch

    def _put_back(self, batch: _Batch, error: sqlite3.Error) -> None:
        samples, events = batch
        logger.error("The history %s cannot be written, which is tried again: %s.", self._path, error)
        room = max(0, MAX_BUFFERED - len(self._samples))
        self.lost += max(0, len(samples) - room)
        self._samples = samples[len(samples) - min(room, len(samples)) :] + self._samples
        self._events = events[-MAX_EVENTS_KEPT:] + self._events

    def _note_event(self, numbered: Numbered) -> None:
        self._events.append(numbered)

    def _note(self, sample: Sample, expires: float) -> None:
        if len(self._samples) >= MAX_BUFFERED:
            self.lost += 1
        else:
            self._samples.append((sample.time, sample.entity, sample.metric, sample.value, expires))

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = sqlite3.connect(self._path, timeout=10)
        try:
            file.execute("PRAGMA journal_mode = WAL")
            file.execute("PRAGMA synchronous = NORMAL")
            (version,) = file.execute("PRAGMA user_version").fetchone()
            if version not in (0, SCHEMA_VERSION):
                raise sqlite3.DatabaseError(f"it has the form {version}, this program writes {SCHEMA_VERSION}")
            file.executescript(_TABLES)
            file.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        except BaseException:
            file.close()
            raise
        return file

    def _write(self, batch: _Batch) -> None:
        try:
            with closing(self._open()) as file, file:
                self._write_to(file, *batch)
        except sqlite3.Error:
            self._ids.clear()  # what this transaction numbered is undone
            raise

    def _write_to(self, file: sqlite3.Connection, samples: list[Row], events: list[Numbered]) -> None:
        if self._store is not None:
            self._write_metrics(file, self._store, {row[1] for row in samples})
        file.executemany(
            "INSERT INTO sample (time, series, value, expires) VALUES (?, ?, ?, ?)",
            [
                (time, self._id(file, entity, metric), value, expires)
                for time, entity, metric, value, expires in samples
            ],
        )
        file.executemany(
            "INSERT OR REPLACE INTO event (sequence, time, body) VALUES (?, ?, ?)",
            [(one.sequence, one.event.time, json.dumps(one.event.to_document())) for one in events],
        )
        self._flushes += 1
        if self._flushes % _TRIM_EVERY == 1:
            self._trim(file)

    @staticmethod
    def _write_metrics(file: sqlite3.Connection, store: Store, entities: set[str]) -> None:
        file.executemany(
            "INSERT OR REPLACE INTO metric VALUES (?, ?, ?, ?, ?)",
            [(m.name, m.type.value, m.unit, m.ttl, m.description) for m in store.metrics()],
        )
        labels = ((entity, name, value) for entity in entities for name, value in store.labels(Entity(entity)).items())
        file.executemany("INSERT OR REPLACE INTO label VALUES (?, ?, ?)", labels)

    def _id(self, file: sqlite3.Connection, entity: str, metric: str) -> int:
        key = (entity, metric)
        if key not in self._ids:
            file.execute("INSERT OR IGNORE INTO series (entity, metric) VALUES (?, ?)", key)
            query = "SELECT id FROM series WHERE entity = ? AND metric = ?"
            self._ids[key] = file.execute(query, key).fetchone()[0]
        return self._ids[key]

    def _trim(self, file: sqlite3.Connection) -> None:
        horizon = self._now() - self._retention
        file.execute("DELETE FROM sample WHERE time < ?", (horizon,))
        file.execute("DELETE FROM series WHERE id NOT IN (SELECT series FROM sample)")
        file.execute("DELETE FROM label WHERE entity NOT IN (SELECT entity FROM series)")
        # The newest event stays whatever its age: numbers go on from it.
        file.execute("DELETE FROM event WHERE time < ? AND sequence < (SELECT max(sequence) FROM event)", (horizon,))
        self._ids.clear()

    def _restore(self, store: Store, events: EventLog) -> int:
        now = self._now()
        with closing(self._open()) as file, file:
            for name, kind, unit, ttl, description in file.execute("SELECT * FROM metric"):
                store.declare(Metric(name, MetricType(kind), unit, ttl, description))
            count = 0
            for sample, expires in _samples(file, now - self._retention):
                store.put(sample, now, expires)
                count += 1
            for entity, name, value in file.execute("SELECT entity, name, value FROM label"):
                store.set_labels(Entity(entity), {name: value})
            events.restore(list(_events(file, events.capacity)))
        return count


def _samples(file: sqlite3.Connection, horizon: float) -> Iterator[tuple[Sample, float]]:
    query = (
        "SELECT entity, metric, time, value, expires FROM sample JOIN series ON series.id = sample.series "
        "WHERE time >= ? ORDER BY time"
    )
    for entity, metric, time, value, expires in file.execute(query, (horizon,)):
        yield Sample(Entity(entity), metric, time, value), expires


def _events(file: sqlite3.Connection, most: int) -> Iterator[Numbered]:
    query = "SELECT sequence, body FROM (SELECT * FROM event ORDER BY sequence DESC LIMIT ?) ORDER BY sequence"
    for sequence, body in file.execute(query, (most,)):
        fields: dict[str, Any] = json.loads(body)
        yield Numbered(sequence, Event(**{**fields, "entity": Entity(fields["entity"])}))
