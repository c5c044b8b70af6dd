"""What a shard tells Prometheus: versions, commits, and the bytes that came and went."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from heterotrain.metrics import PREFIX
from heterotrain.ps.store import ShardStore
from heterotrain.ps.values import CommitOrder
from heterotrain.transport.base import PushKey, PushStatus, Snapshot

SECONDS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)


class MeasuredStore(ShardStore):
    """A `ShardStore` that counts. Figures are of this process: one that is started again begins at 0."""

    def __init__(self) -> None:
        super().__init__()
        registry = self.registry = CollectorRegistry()
        self._received = Counter(f"{PREFIX}shard_received_bytes", "Of gradients and initial values.", registry=registry)
        self._pushes = Counter(
            f"{PREFIX}shard_pushes", "Pushed parts by what they left: whole, partial, not finite.", ["status"],
            registry=registry,
        )  # fmt: skip
        self._reads = Counter(
            f"{PREFIX}shard_reads", "Versions that were read, by workers or others.", registry=registry
        )
        self._commits = Histogram(
            f"{PREFIX}shard_commit_seconds", "From the order of a commit to its version.", buckets=SECONDS,
            registry=registry,
        )  # fmt: skip
        self._made = Counter(
            f"{PREFIX}shard_commits_made_ahead", "Whose version had been made before they were ordered.",
            registry=registry,
        )  # fmt: skip
        version = Gauge(f"{PREFIX}shard_version", "Newest version here; -1 before there is one.", registry=registry)
        version.set_function(lambda: self.standing()[1])
        term = Gauge(f"{PREFIX}shard_term", "Term of the model here; -1 before there is one.", registry=registry)
        term.set_function(lambda: self.standing()[0])
        held = Gauge(f"{PREFIX}shard_held_bytes", "Of all tensors in memory.", registry=registry)
        held.set_function(lambda: self.bytes_held)
        versions = Gauge(f"{PREFIX}shard_held_versions", "Versions that can be read.", registry=registry)
        versions.set_function(lambda: len(self.versions()))

    def received(self, key: PushKey, offset: int, num_bytes: int) -> PushStatus:
        """As `ShardStore.received`."""
        status = super().received(key, offset, num_bytes)
        self._received.inc(num_bytes)
        self._pushes.labels(status.name.lower()).inc()
        return status

    @contextmanager
    def snapshot(self, term: int, version: int, wait_seconds: float) -> Iterator[Snapshot | None]:
        """As `ShardStore.snapshot`."""
        with super().snapshot(term, version, wait_seconds) as found:
            if found is not None:
                self._reads.inc()
            yield found

    def commit(self, order: CommitOrder) -> int:
        """As `ShardStore.commit`."""
        began, found = time.perf_counter(), self.found_made
        version = super().commit(order)
        self._commits.observe(time.perf_counter() - began)
        self._made.inc(self.found_made - found)
        return version

    def commit_made(self, order: CommitOrder) -> int | None:
        """As `ShardStore.commit_made`."""
        began = time.perf_counter()
        version = super().commit_made(order)
        if version is not None:
            self._commits.observe(time.perf_counter() - began)
            self._made.inc()
        return version
