"""The tensor transport's client: a few connections to one shard, which share large transfers.

One connection keeps at most one core busy at each end with its cipher, less than a fast network carries; two make the
copies of one overlap with the waits of the other (`bench/transport.py --lanes`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from heterotrain.transport.base import Part, PullStatus, PushKey, PushStatus, RefusedError
from heterotrain.transport.frames import MAX_PARTS, Hello
from heterotrain.transport.lane import Lane, Target
from heterotrain.transport.wire import split_address
from heterotrain_core.layout import ALIGNMENT

LANE_BYTES: Final = 1 << 20
"""A lane takes at least this much of a transfer; for less, waking a thread costs more than it saves."""

_Status = TypeVar("_Status", PushStatus, PullStatus)


class TcpTensorClient:
    """A `TensorClient` to the shard `server_name` (``ps-0``) at `address` (``host:port``).

    `hello` says who calls: `hello.name` must be the name in the certificate in the folder `credentials`, which is read
    at each connection. `stall_seconds` bounds each 128 KiB of a transfer, `connect_seconds` the way to the shard's
    welcome, `lanes` the connections at once.
    """

    def __init__(
        self,
        address: str,
        server_name: str,
        credentials: Path,
        hello: Hello,
        *,
        stall_seconds: float = 30.0,
        connect_seconds: float = 10.0,
        lanes: int = 2,
    ) -> None:
        if lanes < 1:
            raise ValueError(f"lanes must be at least 1, not {lanes}")
        split_address(address)
        target = Target(address, server_name, credentials, hello, stall_seconds, connect_seconds)
        self._hello = hello
        self._lanes = tuple(Lane(target) for _ in range(lanes))
        self._threads: ThreadPoolExecutor | None = None

    def push(self, key: PushKey, parts: Sequence[Part], *, timeout_seconds: float) -> PushStatus:
        """Send parts of a gradient (empty ones are left out); see `TensorClient.push`."""
        hello = self._hello
        if (key.term, key.worker, key.incarnation) != (hello.term, hello.ordinal, hello.incarnation):
            raise ValueError(f"{key} does not belong to this connection, which is of {hello}")
        deadline = time.monotonic() + timeout_seconds
        shares = share_out(_checked(parts, writable=False), len(self._lanes))
        # The lane whose range was the last one to arrive knows most.
        return max(self._on_lanes(shares, lambda lane, share: lane.push(key, share, deadline)))

    def pull(
        self, term: int, version: int, parts: Sequence[Part], *, wait_seconds: float, timeout_seconds: float
    ) -> PullStatus:
        """Receive parts of exactly `version` (empty ones are left out); see `TensorClient.pull`."""
        if term != self._hello.term:
            raise ValueError(f"term {term} does not belong to this connection, which is of {self._hello}")
        deadline = time.monotonic() + timeout_seconds
        shares = share_out(_checked(parts, writable=True), len(self._lanes))
        # NOT_YET on one lane leaves its part of the memory as it was: the whole is not there.
        return max(self._on_lanes(shares, lambda lane, share: lane.pull(term, version, share, wait_seconds, deadline)))

    def abort(self) -> None:
        """From any thread: make the call that is under way fail with `TransportError`."""
        for lane in self._lanes:
            lane.abort()

    def close(self) -> None:
        """Close the connections; safe to call twice. A later call connects again."""
        for lane in self._lanes:
            lane.close()
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()

    def __enter__(self) -> TcpTensorClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _on_lanes(
        self, shares: Sequence[Sequence[Part]], call: Callable[[Lane, Sequence[Part]], _Status]
    ) -> list[_Status]:
        """Run `call` for each share, the first one in this thread; returns, or raises, only once all have ended."""
        if len(shares) == 1:
            return [call(self._lanes[0], shares[0])]
        if self._threads is None:
            self._threads = ThreadPoolExecutor(len(self._lanes) - 1, thread_name_prefix="tensor-lane")
        others: list[Future[_Status]] = [
            self._threads.submit(call, lane, share) for lane, share in zip(self._lanes[1:], shares[1:], strict=False)
        ]
        try:
            first = call(self._lanes[0], shares[0])
        except BaseException:
            for lane in self._lanes[1:]:
                lane.abort()
            _raise_refusal(others)
            raise
        _raise_refusal(others)
        return [first] + [other.result() for other in others]  # the checker loses the type in the other form


def _raise_refusal(futures: Sequence[Future[_Status]]) -> None:
    """Wait for all; a refusal among their errors says more than what broke because of it."""
    for error in [future.exception() for future in futures]:
        if isinstance(error, RefusedError):
            raise error


def share_out(parts: Sequence[Part], num_lanes: int) -> list[list[Part]]:
    """Parts for each lane, near equal in bytes, cutting parts where needed; fewer lanes for small transfers.

    Cuts within a part lie at multiples of `ALIGNMENT` bytes from its start, hence never in an element. They depend on
    the sizes alone, so that a push that is tried again has the same ranges.
    """
    total = sum(part.buffer.nbytes for part in parts)
    count = max(1, min(num_lanes, total // LANE_BYTES))
    shares: list[list[Part]] = [[] for _ in range(count)]
    lane, position = 0, 0
    for part in parts:
        start, size = 0, part.buffer.nbytes
        while start < size:
            stop = size
            if lane < count - 1:
                room = total * (lane + 1) // count - position
                stop = min(size, start + -(-room // ALIGNMENT) * ALIGNMENT)
            shares[lane].append(Part(part.offset + start, part.buffer[start:stop]))
            position += stop - start
            start = stop
            if lane < count - 1 and position >= total * (lane + 1) // count:
                lane += 1
    return shares


def _checked(parts: Sequence[Part], *, writable: bool) -> list[Part]:
    kept = [part for part in parts if part.buffer.nbytes]
    if len(kept) > MAX_PARTS:
        raise ValueError(f"{len(kept)} parts in one call; at most {MAX_PARTS} are allowed")
    for part in kept:
        buffer = part.buffer
        if buffer.format != "B" or buffer.ndim != 1 or not buffer.c_contiguous or (writable and buffer.readonly):
            raise ValueError(f"the buffer of the part at {part.offset} must be flat bytes, writable for a pull")
    return kept
