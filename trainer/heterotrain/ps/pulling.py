"""Parts of what another shard holds, as shard to shard: for model files and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from heterotrain.transport.base import Part, PullStatus, RefusedError, TensorClient, TransportError

PIECE_BYTES: Final = 1 << 26
"""Bytes held at once of what another shard sends."""
ATTEMPTS: Final = 3
"""Of one piece, when the connection breaks."""
PIECE_SECONDS: Final = 120.0

Connect = Callable[[int], TensorClient]
"""Makes the connection to a shard."""


def pull(
    client: TensorClient, term: int, version: int, part: Part, *, missing: str, timeout_seconds: float = PIECE_SECONDS
) -> None:
    """Receive one part; again if the connection breaks. `missing`: what to say if the other shard does not hold it.

    Raises `RefusedError`, `TransportError`.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            status = client.pull(
                term, version, [part], wait_seconds=timeout_seconds / 2, timeout_seconds=timeout_seconds
            )
        except TransportError:
            if attempt == ATTEMPTS:
                raise
        else:
            if status is not PullStatus.DONE:
                raise RefusedError(missing)
            return
