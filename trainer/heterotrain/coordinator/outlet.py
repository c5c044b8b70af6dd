"""What waits to be sent to one worker."""

from __future__ import annotations

import asyncio
from typing import Final

from heterotrain_rpc import session_pb2

OUTLET_LIMIT: Final = 256
"""Messages that may wait for one worker; far more than a policy ever has under way."""


class Outlet:
    """What waits to be sent to one worker's session. `None` is the end."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self._queue: asyncio.Queue[session_pb2.CoordinatorMessage | None] = asyncio.Queue(OUTLET_LIMIT)
        self.closed = False

    def put(self, message: session_pb2.CoordinatorMessage) -> bool:
        """Queue a message; False if the worker does not read and the queue is full."""
        if self.closed:
            return True
        try:
            self._queue.put_nowait(message)
        except asyncio.QueueFull:
            return False
        return True

    def close(self) -> None:
        """End the session after what is queued."""
        if not self.closed:
            self.closed = True
            if self._queue.full():
                self._queue.get_nowait()
            self._queue.put_nowait(None)

    def dismiss(self, reason: str, *, fault: bool, again: bool = False) -> None:
        """Tell the worker to exit, or (`again`) to begin its script anew, and end."""
        dismissal = session_pb2.Dismissal(reason=reason, fault=fault, again=again)
        self.put(session_pb2.CoordinatorMessage(dismissal=dismissal))
        self.close()

    async def next(self) -> session_pb2.CoordinatorMessage | None:
        """The next message; `None`: the session ends."""
        return await self._queue.get()
