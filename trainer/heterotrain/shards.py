"""Pushes to and pulls from all shards of a job at once, each over its own connection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

from heterotrain.errors import PeerLostError
from heterotrain.transport.base import (
    MINIMUM_RATE_BYTES,
    Part,
    PullStatus,
    PushKey,
    PushStatus,
    RefusedError,
    TensorClient,
    TransportError,
)
from heterotrain_core.layout import Layout

ResultT = TypeVar("ResultT")

WAIT_SECONDS: Final = 1.0
"""How long a pull waits at a shard before the worker looks whether its session still lives."""
BASE_TIMEOUT_SECONDS: Final = 30.0
RETRIES: Final = 8


@dataclass(frozen=True, slots=True)
class Link:
    """One shard: its name, its connection, and this worker's memory for its arena."""

    name: str
    client: TensorClient
    whole: tuple[Part, ...]
    """The whole arena, in the memory of the model's values."""
    trained: tuple[Part, ...]
    """As `whole`, without frozen tensors."""
    pushed: tuple[Part, ...]
    """What a gradient covers, in the memory that is pushed from."""


def make_links(
    names: Sequence[str], clients: Sequence[TensorClient], layout: Layout, *, values: memoryview, pushed: memoryview
) -> tuple[Link, ...]:
    """Links to all shards, in shard order. `values` and `pushed` are laid out as the global arena."""
    return tuple(
        Link(
            name,
            client,
            whole=_parts(layout, shard, values, pushed=False),
            trained=_parts(layout, shard, values, pushed=True),
            pushed=_parts(layout, shard, pushed, pushed=True),
        )
        for shard, (name, client) in enumerate(zip(names, clients, strict=True))
    )


class Shards:
    """All shards as one. `check` raises if the session is over; `sleep` takes seconds. One caller at a time.

    `recovers`: the job starts a lost shard again and goes back to a checkpoint, so that the script may begin anew.
    """

    def __init__(
        self,
        links: Sequence[Link],
        check: Callable[[], None],
        sleep: Callable[[float], None],
        *,
        recovers: bool = False,
    ) -> None:
        self._links = tuple(links)
        self._check = check
        self._sleep = sleep
        self._recovers = recovers
        self._pool = ThreadPoolExecutor(len(self._links), thread_name_prefix="heterotrain-shard")
        self.push_bytes = _bytes(part for link in self._links for part in link.pushed)
        """Of one gradient."""
        self.pull_bytes = _bytes(part for link in self._links for part in link.trained)
        """Of one version, without frozen tensors."""

    def push_initial(self, key: PushKey) -> None:
        """Push the whole arena to every shard."""
        self._on_all(lambda link: self._push(link, key, link.whole))

    def push(self, key: PushKey) -> dict[str, PushStatus]:
        """Push a gradient; the shards' answers by name. Raises `PeerLostError` if a shard stays away or refuses."""
        return dict(self._on_all(lambda link: (link.name, self._push(link, key, link.pushed))))

    def pull(self, term: int, version: int, *, frozen: bool) -> float:
        """Receive `version` into the model's memory, with or without frozen tensors; waits until it is published.

        Returns the seconds that receiving took, of the shard that took longest; the wait is not in it.
        """
        return max(self._on_all(lambda link: self._pull(link, term, version, link.whole if frozen else link.trained)))

    def close(self) -> None:
        """Close all connections."""
        self._pool.shutdown(cancel_futures=True)
        for link in self._links:
            link.client.close()

    def _push(self, link: Link, key: PushKey, parts: Sequence[Part]) -> PushStatus:
        timeout = _timeout(parts)
        return self._persist(link, lambda: link.client.push(key, parts, timeout_seconds=timeout))

    def _pull(self, link: Link, term: int, version: int, parts: Sequence[Part]) -> float:
        timeout = WAIT_SECONDS + _timeout(parts)

        def once() -> PullStatus:
            return link.client.pull(term, version, parts, wait_seconds=WAIT_SECONDS, timeout_seconds=timeout)

        while self._persist(link, once) is PullStatus.NOT_YET:
            self._check()
        return link.client.receive_seconds

    def _persist(self, link: Link, operation: Callable[[], ResultT]) -> ResultT:
        """Try again what may be tried again, while the session lives."""
        for delay in retry_delays():
            try:
                return operation()
            except TransportError as error:
                # The coordinator's word on why the job ends says more than a broken connection.
                self._check()
                failure = error
            except RefusedError as error:
                self._check()
                reason = f"parameter server {link.name} refused this worker: {error}"
                raise PeerLostError(reason, shard=link.name, again=self._recovers) from error
            self._sleep(delay)
        self._check()
        reason = f"parameter server {link.name} does not answer: {failure}"
        raise PeerLostError(reason, shard=link.name, again=self._recovers) from failure

    def _on_all(self, operation: Callable[[Link], ResultT]) -> list[ResultT]:
        if len(self._links) == 1:
            return [operation(self._links[0])]
        # All end before one's error is raised: none may still write into the model's memory afterwards.
        futures = [self._pool.submit(operation, link) for link in self._links]
        errors = [e for f in futures if (e := f.exception()) is not None]
        if errors:
            raise errors[0]
        return [f.result() for f in futures]


def retry_delays() -> Iterator[float]:
    """Seconds to wait after each failed try, the last one included: doubling from 0.1 to 3.2, some 13 s in all."""
    for i in range(RETRIES):
        yield min(0.1 * 2**i, 3.2)


def _timeout(parts: Sequence[Part]) -> float:
    return BASE_TIMEOUT_SECONDS + _bytes(parts) / MINIMUM_RATE_BYTES


def _bytes(parts: Iterable[Part]) -> int:
    return sum(part.buffer.nbytes for part in parts)


def _parts(layout: Layout, shard: int, memory: memoryview, *, pushed: bool) -> tuple[Part, ...]:
    return tuple(
        Part(e.shard_offset, memory[e.global_offset : e.global_offset + e.num_bytes])
        for e in layout.extents_of(shard, pushed=pushed)
    )
