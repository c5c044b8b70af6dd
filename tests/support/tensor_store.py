"""A shard's store in memory: what a transport needs of one, with a record of what was called."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from heterotrain.transport.base import PushKey, PushStatus, RefusedError


@dataclass(frozen=True)
class Held:
    """A published version."""

    buffer: memoryview


class MemoryStore:
    """A `TensorStore` of one arena; a gradient is complete when all its bytes were received."""

    def __init__(self, num_bytes: int, term: int = 1) -> None:
        self.num_bytes = num_bytes
        self.term = term
        self.gradients: dict[PushKey, bytearray] = {}
        self.ranges: dict[PushKey, set[tuple[int, int]]] = {}
        self.calls: list[tuple[str, int, int]] = []
        self.held = 0
        self.answers = 0
        self._num_received: Counter[PushKey] = Counter()
        self._versions: dict[int, bytes] = {}
        self._changed = threading.Condition()

    def publish(self, version: int, content: bytes) -> None:
        with self._changed:
            self._versions[version] = content
            self._changed.notify_all()

    def is_given_free(self, within_seconds: float = 20.0) -> bool:
        """Whether no pull holds a version: a server gives it free when all is sent, a client may have it all before."""
        with self._changed:
            return self._changed.wait_for(lambda: self.held == 0, within_seconds)

    def reserve(self, key: PushKey, offset: int, num_bytes: int) -> memoryview | None:
        with self._changed:
            self.calls.append(("reserve", offset, num_bytes))
            if key.term != self.term:
                raise RefusedError(f"term {key.term} is over, {self.term} is current")
            if offset + num_bytes > self.num_bytes:
                raise RefusedError(f"range outside the arena of {self.num_bytes} bytes")
            if (offset, num_bytes) in self.ranges.get(key, set()):
                return None
            gradient = self.gradients.setdefault(key, bytearray(self.num_bytes))
            return memoryview(gradient)[offset : offset + num_bytes]

    def received(self, key: PushKey, offset: int, num_bytes: int) -> PushStatus:
        with self._changed:
            self.calls.append(("received", offset, num_bytes))
            ranges = self.ranges.setdefault(key, set())
            if (offset, num_bytes) not in ranges:
                ranges.add((offset, num_bytes))
                self._num_received[key] += num_bytes
            return PushStatus.COMPLETE if self._num_received[key] >= self.num_bytes else PushStatus.PARTIAL

    def answered(self) -> None:
        with self._changed:
            self.answers += 1
            self._changed.notify_all()

    def wait_for_answers(self, count: int) -> bool:
        """An answer is noted after it has been sent."""
        with self._changed:
            return self._changed.wait_for(lambda: self.answers >= count, 10.0)

    @contextmanager
    def snapshot(self, term: int, version: int, wait_seconds: float) -> Iterator[Held | None]:
        with self._changed:
            if term != self.term:
                raise RefusedError(f"term {term} is over, {self.term} is current")
            self._changed.wait_for(lambda: version in self._versions, wait_seconds)
            content = self._versions.get(version)
            self.held += content is not None
        try:
            yield None if content is None else Held(memoryview(content))
        finally:
            with self._changed:
                self.held -= content is not None
                self._changed.notify_all()
