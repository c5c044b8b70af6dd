"""Published versions of a shard's values. Not thread-safe: the store calls it with its lock held.

A version is immutable while it can be read. The next one is made in the same memory if nobody needs the old one any
more, else in a copy, which is taken before anything changes.
"""

from __future__ import annotations

import torch

from heterotrain.ps.gradients import ArenaPool
from heterotrain.tensors import byte_view


class Published:
    """An arena that can be read under one or more versions (several, where only the version moved)."""

    def __init__(self, arena: torch.Tensor) -> None:
        self.arena = arena
        self.readers = 0
        self._buffer = byte_view(arena).toreadonly()

    @property
    def buffer(self) -> memoryview:
        """The whole arena, read-only, format "B"."""
        return self._buffer


class Versions:
    """Versions that can be read, by number; `present` is the newest, -1 before the first."""

    def __init__(self, pool: ArenaPool) -> None:
        self.present = -1
        self._pool = pool
        self._held: dict[int, Published] = {}
        self._source: Published | None = None

    @property
    def numbers(self) -> tuple[int, ...]:
        """Versions that can be read now, ascending."""
        return tuple(sorted(self._held))

    @property
    def values(self) -> torch.Tensor:
        """Arena of the present version."""
        return self._held[self.present].arena

    def arena(self, version: int) -> torch.Tensor | None:
        """Values of a version that can be read; `None` if it cannot. They stay until the next `begin`."""
        published = self._held.get(version)
        return None if published is None else published.arena

    def acquire(self, version: int) -> Published | None:
        """Hold a version for reading, if it can be; to be given back by `release`."""
        published = self._held.get(version)
        if published is not None:
            published.readers += 1
        return published

    def release(self, published: Published) -> None:
        """Give a version back; its memory goes when nobody needs it."""
        published.readers -= 1
        self._free_if_unneeded(published)

    def publish(self, arena: torch.Tensor, version: int = 0) -> None:
        """Make `arena` the first version; `version` is that of the checkpoint it came from."""
        self.present = version
        self._held[self.present] = Published(arena)

    def begin(self, retain: frozenset[int], made: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Drop what is not retained and say where the next version is made: (present values, memory for the next).

        The two are the same arena if it may be changed in place; else the caller copies. It may have been `made` in
        memory of its own already. Until `finish` only retained versions can be read.
        """
        source = self._drop(retain)
        if made is not None:
            return source.arena, made
        in_use = source.readers > 0 or source in self._held.values()
        return source.arena, self._pool.take() if in_use else source.arena

    def _drop(self, retain: frozenset[int]) -> Published:
        self._source = source = self._held[self.present]
        for version in [v for v in self._held if v not in retain]:
            dropped = self._held.pop(version)
            if dropped is not source:
                self._free_if_unneeded(dropped)
        return source

    def advance(self, retain: frozenset[int]) -> None:
        """Publish the present values as the next version too: a commit without contributions."""
        self.finish(self._drop(retain).arena)

    def finish(self, arena: torch.Tensor) -> None:
        """Publish the next version, which `arena` (from `begin`) holds."""
        source, self._source = self._source, None
        assert source is not None, "finish() without begin()"  # noqa: S101 - our own order of calls
        self.present += 1
        self._held[self.present] = source if arena is source.arena else Published(arena)
        self._free_if_unneeded(source)

    def _free_if_unneeded(self, published: Published) -> None:
        needed = published.readers > 0 or published is self._source or published in self._held.values()
        if not needed:
            self._pool.give(published.arena)
