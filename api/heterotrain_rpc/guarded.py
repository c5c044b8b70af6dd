"""A `grpc.aio` channel whose unary calls must have a deadline.

No interceptor: with one, a call leaves a turn of the event loop later, behind all that is ready by then. Norms, which
all workers of a job wait for, would reach their shards half a millisecond later.
"""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio


class GuardedChannel(grpc.aio.Channel):
    """Passes everything on to `channel`; a unary call without `timeout` raises `ValueError` before anything is sent."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def __aenter__(self) -> GuardedChannel:
        return self

    async def __aexit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """See `grpc.aio.Channel`, as the others."""
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """State of the connection."""
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Wait until it is another one."""
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Wait for the connection."""
        await self._channel.channel_ready()

    def unary_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        """The guarded one."""
        return _GuardedCall(method, self._channel.unary_unary(method, *arguments, **options))

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:
        """As it is."""
        return self._channel.unary_stream(*arguments, **options)

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:
        """As it is."""
        return self._channel.stream_unary(*arguments, **options)

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        """As it is."""
        return self._channel.stream_stream(*arguments, **options)


class _GuardedCall:
    def __init__(self, method: str, call: grpc.aio.UnaryUnaryMultiCallable[Any, Any]) -> None:
        self._method = method
        self._call = call

    def __call__(self, request: Any, *, timeout: float | None = None, **options: Any) -> Any:
        require_deadline(self._method, timeout)
        return self._call(request, timeout=timeout, **options)


def require_deadline(method: str | bytes, timeout: float | None) -> None:
    """Raise `ValueError` that names the method if there is no `timeout`, in seconds."""
    if timeout is None:
        name = method.decode() if isinstance(method, bytes) else method
        raise ValueError(f"call of {name} has no deadline; give `timeout` in seconds")
