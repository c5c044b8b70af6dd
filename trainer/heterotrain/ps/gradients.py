"""Gradients that wait on a shard for their commit. Not thread-safe: the store calls it with its lock held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import torch

from heterotrain.ps.values import GradientName
from heterotrain.tensors import allocate, byte_view
from heterotrain.transport.base import INITIAL_ITERATION, PushStatus, RefusedError
from heterotrain_core.intervals import Intervals
from heterotrain_core.layout import Region, TensorKind

WAITING_LIMIT: Final = 4
"""Gradients of one worker that may wait on a shard: bounds the memory that a worker can claim. Under BSP one waits."""

ITERATIONS_AHEAD: Final = 1024
"""An iteration so far above the version is refused as an error of the peer."""


class ArenaPool:
    """Arenas of one size, used again and again, so that a steady state allocates nothing."""

    def __init__(self, num_bytes: int, keep: int) -> None:
        self.num_bytes = num_bytes
        self.bytes_held = 0
        """Bytes of all arenas in use or free."""
        self._free: list[torch.Tensor] = []
        self._keep = keep

    def take(self) -> torch.Tensor:
        """Return an arena with arbitrary contents."""
        if self._free:
            return self._free.pop()
        arena = allocate(self.num_bytes)
        self.bytes_held += self.num_bytes
        return arena

    def keep(self, count: int) -> None:
        """Keep up to `count` free arenas from now on."""
        self._keep = count

    def give(self, arena: torch.Tensor) -> None:
        """Take an arena back that nobody reads or writes any more."""
        if len(self._free) < self._keep:
            self._free.append(arena)
        else:
            self.abandon()

    def abandon(self) -> None:
        """Forget an arena that somebody may still write to; its memory goes when the last view does."""
        self.bytes_held -= self.num_bytes


class State(Enum):
    """How far a gradient is."""

    OPEN = auto()
    """Ranges are missing."""
    CHECKING = auto()
    """Whole; a thread looks for NaN and Inf."""
    COMPLETE = auto()
    NOT_FINITE = auto()
    """Its memory is free again; it waits to be discarded."""


@dataclass(slots=True)
class Gradient:
    """One gradient; `arena` is `None` once it is not finite or was let go."""

    name: GradientName
    arena: torch.Tensor | None
    state: State = State.OPEN
    coverage: Intervals = field(default_factory=Intervals)
    """Bytes that are there."""
    unsettled: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Ranges whose memory was handed out and not reported as received; a broken transfer leaves its range here."""


class Gradients:
    """All gradients of one term, by name."""

    def __init__(self, regions: Sequence[Region], num_workers: int, pool: ArenaPool) -> None:
        self._regions = tuple(regions)
        self._pushed_bytes = sum(r.num_bytes for r in regions if r.kind is not TensorKind.FROZEN)
        self._initial_bytes = sum(r.num_bytes for r in regions)
        self._pool = pool
        self._waiting: dict[GradientName, Gradient] = {}
        self._newest = [0] * num_workers
        """Newest incarnation seen of each worker, or the least that may push: older ones may not."""
        self._finished = [INITIAL_ITERATION - 1] * num_workers
        """Last iteration of that incarnation that was committed or discarded."""

    def seat(self, least_incarnations: Sequence[int]) -> None:
        """Take gradients of so many workers; what older incarnations of each have pushed is dropped.

        There may be more workers than before, never fewer.
        """
        more = len(least_incarnations) - len(self._newest)
        self._newest += [0] * more
        self._finished += [INITIAL_ITERATION - 1] * more
        for worker, least in enumerate(least_incarnations):
            if least > self._newest[worker]:
                self._replace(worker, least)
                for old in [n for n in self._waiting if n.worker == worker and n.incarnation < least]:
                    self._free(self._waiting.pop(old))

    def reserve(self, name: GradientName, offset: int, num_bytes: int, version: int) -> memoryview | None:
        """As `TensorStore.reserve`; `version` is the present one, -1 before the first."""
        self._check(name, version)
        self._check_range(name, offset, num_bytes)
        if self._is_over(name, version) or num_bytes == 0:
            return None
        gradient = self._waiting.get(name) or self._open(name)
        if gradient.arena is None or gradient.coverage.covers(offset, offset + num_bytes):
            return None
        gradient.unsettled[offset, num_bytes] += 1
        return byte_view(gradient.arena)[offset : offset + num_bytes]

    def received(self, name: GradientName, offset: int, num_bytes: int, version: int) -> Gradient | None:
        """Note a range as there; returns the gradient, `None` if it is over or nothing of it lies on this shard."""
        self._check_incarnation(name)
        if self._is_over(name, version):
            return None
        gradient = self._waiting.get(name)
        if gradient is None:
            if self._target(name) == 0:
                return None
            raise RefusedError(f"the gradient for {name} is not known here")
        if gradient.state is State.OPEN and not gradient.coverage.covers(offset, offset + num_bytes):
            gradient.coverage.add(offset, offset + num_bytes)
            gradient.unsettled[offset, num_bytes] -= 1
            gradient.unsettled += Counter()  # drops zeros
        return gradient

    def start_check(self, gradient: Gradient) -> bool:
        """Whether the caller must check the gradient now: it has just become whole."""
        whole = gradient.state is State.OPEN and gradient.coverage.total == self._target(gradient.name)
        if whole:
            gradient.state = State.CHECKING
        return whole

    def privatise(self, gradient: Gradient, copy: torch.Tensor) -> None:
        """Go on with a copy, since a transfer that broke may still write to the memory it was given."""
        if gradient.arena is not None:  # the old memory is forgotten, the copy counted: no change in bytes held
            gradient.arena = copy
            gradient.unsettled.clear()

    def settle(self, gradient: Gradient, state: State) -> None:
        """End the check with its result; what is not finite needs no memory any more."""
        gradient.state = state
        if state is State.NOT_FINITE:
            self._free(gradient)

    def whole(self, name: GradientName) -> torch.Tensor | None:
        """The arena of a gradient that can be committed; `None` if this shard holds nothing that is pushed.

        Raises `RefusedError` that says what is wrong with it otherwise.
        """
        if self._target(name) == 0:
            return None
        gradient = self._waiting.get(name)
        if gradient is None or gradient.state is not State.COMPLETE:
            state = "has not arrived" if gradient is None else f"is {gradient.state.name}"
            raise RefusedError(f"the gradient for {name} cannot be committed: it {state}")
        return gradient.arena

    def is_complete(self, name: GradientName) -> bool:
        """Whether all that is pushed of a gradient to this shard is here and finite."""
        gradient = self._waiting.get(name)
        return self._target(name) == 0 or (gradient is not None and gradient.state is State.COMPLETE)

    def initial(self) -> torch.Tensor | None:
        """Take the initial values out: those of the lowest worker, if several pushed; drop the others.

        `None` if none are complete and some are needed.
        """
        names = sorted(n for n, g in self._waiting.items() if n.iteration == INITIAL_ITERATION)
        chosen = next((self._waiting[n] for n in names if self._waiting[n].state is State.COMPLETE), None)
        if chosen is None:
            return self._pool.take() if self._initial_bytes == 0 else None
        arena, chosen.arena = chosen.arena, None
        for name in names:
            self.finish(name)
        return arena

    def finish(self, name: GradientName) -> None:
        """Let a gradient go, committed or discarded; what comes of it later is dropped."""
        gradient = self._waiting.pop(name, None)
        if gradient is not None:
            self._free(gradient)
        if 0 <= name.worker < len(self._newest):
            self._see(name)
            if name.incarnation == self._newest[name.worker]:
                self._finished[name.worker] = max(self._finished[name.worker], name.iteration)

    def _target(self, name: GradientName) -> int:
        return self._initial_bytes if name.iteration == INITIAL_ITERATION else self._pushed_bytes

    def _is_over(self, name: GradientName, version: int) -> bool:
        if name in self._waiting:
            return False
        return name.iteration <= self._finished[name.worker] or (name.iteration == INITIAL_ITERATION and version >= 0)

    def _open(self, name: GradientName) -> Gradient:
        waiting = [n for n in self._waiting if n.worker == name.worker]
        if len(waiting) >= WAITING_LIMIT:
            raise RefusedError(
                f"{len(waiting)} gradients of worker {name.worker} wait here already, at most {WAITING_LIMIT} may"
            )
        try:
            gradient = Gradient(name, self._pool.take())
        except MemoryError as error:
            raise RefusedError(f"the shard has no memory for another gradient: {error}") from error
        self._waiting[name] = gradient
        return gradient

    def _check(self, name: GradientName, version: int) -> None:
        if not 0 <= name.worker < len(self._newest):
            raise RefusedError(f"worker {name.worker} is not known here, there are {len(self._newest)}")
        self._check_incarnation(name)
        if not INITIAL_ITERATION <= name.iteration <= max(version, 0) + ITERATIONS_AHEAD:
            raise RefusedError(f"iteration {name.iteration} cannot be, the present version is {version}")
        if name.iteration != INITIAL_ITERATION and version < 0:
            raise RefusedError("there is no version yet: only the initial values (iteration -1) can be pushed")
        self._see(name)

    def _see(self, name: GradientName) -> None:
        """Note a newer incarnation: what the older one did not push whole can never become whole."""
        if name.incarnation > self._newest[name.worker]:
            self._replace(name.worker, name.incarnation)

    def _replace(self, worker: int, incarnation: int) -> None:
        self._newest[worker] = incarnation
        self._finished[worker] = INITIAL_ITERATION - 1
        # Initial values count from one incarnation only, the same one on all shards.
        for old in [
            n
            for n, g in self._waiting.items()
            if n.worker == worker and (g.state is State.OPEN or n.iteration == INITIAL_ITERATION)
        ]:
            self._free(self._waiting.pop(old))

    def _check_incarnation(self, name: GradientName) -> None:
        newest = self._newest[name.worker]
        if name.incarnation < newest:
            raise RefusedError(f"incarnation {name.incarnation} of worker {name.worker} was replaced by {newest}")

    def _check_range(self, name: GradientName, offset: int, num_bytes: int) -> None:
        initial = name.iteration == INITIAL_ITERATION
        for region in self._regions:
            inside = region.offset <= offset and 0 <= num_bytes <= region.offset + region.num_bytes - offset
            if inside and (initial or region.kind is not TensorKind.FROZEN):
                return
        if offset == num_bytes == 0:
            return
        what = "the initial values" if initial else "a gradient (which leaves out frozen tensors)"
        raise RefusedError(f"bytes {offset} to {offset + num_bytes} are not in one region of {what} on this shard")

    def _free(self, gradient: Gradient) -> None:
        arena, gradient.arena = gradient.arena, None
        if arena is None:
            return
        if gradient.unsettled:
            self._pool.abandon()
        else:
            self._pool.give(arena)


def push_status(state: State) -> PushStatus:
    """What a worker is told of a state (`CHECKING` is waited for)."""
    match state:
        case State.COMPLETE:
            return PushStatus.COMPLETE
        case State.NOT_FINITE:
            return PushStatus.NOT_FINITE
        case State.OPEN | State.CHECKING:
            return PushStatus.PARTIAL
