"""A shard's state as its two servers see it: the tensor transport (many threads) and the coordinator's commands.

One lock guards the bookkeeping and is never held while numbers are computed, so that gradients of the next round arrive
and versions are read while a commit runs. Commands run one at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from heterotrain.checkpoint.state import Unpacker
from heterotrain.ps.arithmetic import not_finite
from heterotrain.ps.foresight import Foresight, result
from heterotrain.ps.gradients import Gradient, State, push_status
from heterotrain.ps.last_first import LastFirst
from heterotrain.ps.part import Part
from heterotrain.ps.values import CommitOrder, GradientName, ShardSpec
from heterotrain.ps.versions import Published
from heterotrain.transport.base import (
    INITIAL_ITERATION,
    PushKey,
    PushStatus,
    RefusedError,
    Snapshot,
    capture_version,
)

_log = logging.getLogger(__name__)

LONGEST_WAIT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes that are read beside the versions."""

    buffer: memoryview


class ShardStore:
    """A `TensorStore` with the commands `configure`, `publish`, `aggregate`, `commit`.

    Commands raise `RefusedError` for what does not fit the present state, `ValueError` for what never can; both leave
    the state as it was. If a command breaks half-way, every call after it is refused with the reason.
    """

    def __init__(self) -> None:
        lock = threading.RLock()
        self._changed = LastFirst(lock)
        """Model, versions or `_closed` have changed."""
        self._settled = threading.Condition(lock)
        """A gradient has been checked. Pulls that wait for a version are not woken by the pushes that it is made of."""
        self._command = threading.Lock()
        self._part: Part | None = None
        self._last: CommitOrder | None = None
        self._summed: tuple[int, tuple[tuple[GradientName, float], ...]] | None = None
        """Version and contributions whose sum is at hand."""
        self._blobs: dict[int, memoryview] = {}
        """What is read beside the versions: captures, and files of a checkpoint that is being restored."""
        self._foresight = Foresight()
        self.found_made = 0
        """Commits whose version had been made before they were ordered."""
        self._due = False
        """A gradient has come that `_work_ahead` waits for."""
        self._closed = ""
        """Why nothing is served any more."""

    # The tensor transport's side.

    def reserve(self, key: PushKey, offset: int, num_bytes: int) -> memoryview | None:
        """See `TensorStore.reserve`."""
        with self._changed:
            part = self._of_term(key.term)
            return part.gradients.reserve(_name(key), offset, num_bytes, part.versions.present)

    def received(self, key: PushKey, offset: int, num_bytes: int) -> PushStatus:
        """See `TensorStore.received`. Whoever brings the last range checks the gradient; duplicates wait for that."""
        with self._changed:
            part = self._of_term(key.term)
            gradient = part.gradients.received(_name(key), offset, num_bytes, part.versions.present)
            if gradient is None:
                return PushStatus.COMPLETE
            mine = part.gradients.start_check(gradient)
        if mine:
            self._check(part, gradient)
        with self._changed:
            self._settled.wait_for(lambda: gradient.state is not State.CHECKING)
            if mine and gradient.state is State.COMPLETE and part is self._part:
                self._due = self._foresight.arrived(gradient.name) or self._due
            return push_status(gradient.state)

    def answered(self) -> None:
        """See `TensorStore.answered`. Make the version that is expected, if all of it is here, or prepare for it.

        All workers wait from the last gradient until its version can be read. Most of that time the order is on its
        way: the worker's word to the coordinator, and the coordinator's to the shards. Where rounds are alike the order
        is known before, and it finds its work done. Nobody sees a version that was not ordered: its values lie in
        memory of their own, the optimizer's state is copied before, and any other command that needs the state undoes
        it first.
        """
        with self._changed:
            due, self._due = self._due, False
        if due:
            self._work_ahead()

    @contextmanager
    def snapshot(self, term: int, version: int, wait_seconds: float) -> Iterator[Snapshot | None]:
        """See `TensorStore.snapshot`; waits for the configuration too."""
        if version < INITIAL_ITERATION:
            blob = self._await_blob(term, version, wait_seconds)
            yield None if blob is None else Blob(blob)
            return
        part, published = self._acquire(term, version, wait_seconds)
        if part is None or published is None:
            yield None
            return
        try:
            yield published
        finally:
            with self._changed:
                part.versions.release(published)

    # Checkpoints.

    def capture(self, term: int, version: int) -> int:
        """Copy the whole state at `version`, the present one, for a checkpoint; returns its bytes.

        Until `release` it can be read as `capture_version(version)`. Again: no effect. Raises `MemoryError`.
        """
        with self._command:
            with self._changed:
                part = self._of_term(term)
                present, held = part.versions.present, self._blobs.get(capture_version(version))
                if held is not None:
                    return len(held)
                if present != version or present < 0:
                    raise RefusedError(f"version {version} cannot be kept any more: the present one is {present}")
                values = part.versions.values
            self._undo(part)
            blob = part.pack(values)
            self.offer(term, capture_version(version), blob)
            return len(blob)

    def offer(self, term: int, version: int, blob: memoryview) -> None:
        """Let `blob` be read under a version that is none (`capture_version`, `file_version`) until `release`."""
        with self._changed:
            self._of_term(term)
            self._blobs[version] = blob.toreadonly()
            self._changed.notify_all()

    def blob(self, term: int, version: int) -> memoryview | None:
        """What was offered."""
        with self._changed:
            self._of_term(term)
            return self._blobs.get(version)

    def release(self, term: int, versions: Sequence[int]) -> None:
        """Let go what was offered; who reads it still may."""
        with self._changed:
            self._of_term(term)
            for version in versions:
                self._blobs.pop(version, None)

    def restore(self, term: int, version: int, unpacker: Unpacker) -> None:
        """Publish `version` from a checkpoint in place of initial values. Again: no effect.

        Raises `ValueError` for a checkpoint that does not hold this shard's tensors.
        """
        with self._command:
            with self._changed:
                part = self._of_term(term)
                present = part.versions.present
            if present >= 0:
                if present != version:
                    raise RefusedError(f"version {version} cannot be restored: version {present} is here already")
                return
            values = part.unpack(unpacker)
            with self._changed:
                part.versions.publish(values, version)
                self._changed.notify_all()

    def standing(self) -> tuple[int, int]:
        """Term and newest version here; -1 each before there is any."""
        with self._changed:
            return (self._part.spec.term, self._part.versions.present) if self._part else (-1, -1)

    def ordinal(self, worker: str) -> int | None:
        """Place of a worker in the order of summation; `None` if the model here knows no such worker."""
        with self._changed:
            workers = self._part.workers if self._part else ()
        return workers.index(worker) if worker in workers else None

    # The coordinator's side.

    def configure(self, spec: ShardSpec) -> int:
        """Lay the model out; returns the bytes of values and optimizer state to expect.

        The same model again changes nothing. A higher term drops everything of the term before.
        """
        with self._command:
            with self._changed:
                self._check_open()
                present = self._part
            if present is not None and spec.term < present.spec.term:
                raise RefusedError(f"term {spec.term} is over, the present one is {present.spec.term}")
            if present is not None and spec.term == present.spec.term:
                if spec != present.spec:
                    raise RefusedError(f"another model is here in term {spec.term}: {_difference(spec, present.spec)}")
                return present.expected_bytes
            part = Part(spec)
            expected = part.expected_bytes
            with self._changed:
                self._part, self._last, self._summed = part, None, None
                self._foresight, self._due = Foresight(), False
                self._blobs.clear()
                self._changed.notify_all()
            return expected

    def seat(self, term: int, workers: tuple[str, ...], least_incarnations: Sequence[int]) -> None:
        """Let workers in that were added, and bar incarnations that are over. Again: no effect.

        Raises `ValueError` for a list that leaves out or changes a worker that is known, or numbers that do not fit it.
        """
        with self._changed:
            part = self._of_term(term)
            known = part.workers
            if workers[: len(known)] != known or len(set(workers)) < len(workers):
                raise ValueError(f"workers must begin with {', '.join(known)}, each once, not be {', '.join(workers)}")
            if len(least_incarnations) != len(workers):
                raise ValueError(f"{len(workers)} workers need as many incarnations, not {len(least_incarnations)}")
            part.seat(workers, least_incarnations)

    def publish(self, term: int) -> None:
        """Make the initial values version 0. Again: no effect."""
        with self._command:
            with self._changed:
                part = self._of_term(term)
                if part.versions.present >= 0:
                    return
                values = part.gradients.initial()
                if values is None:
                    raise RefusedError("the initial values are not complete on this shard")
            with self._breaking():
                part.start(values)
            with self._changed:
                part.versions.publish(values)
                self._changed.notify_all()

    def aggregate(self, order: CommitOrder) -> float:
        """Sum the gradients of the commit that follows and return their norm's part (`arithmetic.norm_part`)."""
        with self._command:
            part, gradients = self._gather(order)
            self._undo(part)
            with self._breaking():
                self._sum(part, order, gradients)
                return part.norm_part(order.norm_type, order.absent)

    def commit(self, order: CommitOrder) -> int:
        """Carry a commit out and return the version that it made. The last one again: no effect, the same answer."""
        with self._command:
            return self._commit(order)

    def commit_made(self, order: CommitOrder) -> int | None:
        """As `commit`, if there is nothing to compute for it: its version was made ahead. Waits for no other command.

        `None`: call `commit`.
        """
        if not self._command.acquire(blocking=False):
            return None
        try:
            with self._changed:
                part = self._part
            made = part is not None and part.is_ahead and part.has_made(result(order))
            return self._commit(order) if made else None
        finally:
            self._command.release()

    def _commit(self, order: CommitOrder) -> int:
        with self._changed:
            part = self._of_term(order.term)
            if order == self._last:
                return part.versions.present
        # Before anything that was made ahead is taken: a gradient that was in it may have been dropped since.
        part, gradients = self._gather(order)
        with self._breaking():
            if order.contributions:
                self._make_version(part, order, gradients)
            else:
                self._undo(part)
                with self._changed:
                    part.versions.advance(order.retain)
        with self._changed:
            for name in (*(n for n, _ in order.contributions), *order.discard):
                part.gradients.finish(name)
            self._last, self._summed = order, None
            self._changed.notify_all()
            version = part.versions.present
        if part.may_work_ahead:  # pulls no longer wait; what is left is the answer
            expected = self._foresight.foresee(order)
            with self._changed:
                self._foresight.expect(expected, part.gradients.is_complete)
                # Who has just brought the last one has not asked yet, and will be told so.
                self._due = self._due or self._foresight.is_complete
        return version

    def _work_ahead(self) -> None:
        with self._command:
            with self._changed:
                part, order = self._part, self._foresight.expected
                if self._closed or part is None or order is None or self._summed is not None:
                    return
                complete = self._foresight.is_complete
            if part.is_ahead or not part.may_work_ahead:
                return
            try:
                self._prepare(part)
                if complete:
                    _, gradients = self._gather(order)
                    part.sum(gradients, [weight for _, weight in _ordered(order)])
                    part.work_ahead(order)
            except RefusedError:
                return  # a gradient that had come was dropped: its worker has a new incarnation
            except Exception as error:  # noqa: BLE001 - whatever it was, the commit does it again and says so
                _log.warning("versions are made only when they are ordered from now on: %s", error or repr(error))
                self._undo(part)
                part.give_up_working_ahead()

    @property
    def bytes_held(self) -> int:
        """Bytes of all tensors held: versions, gradients, aggregate, optimizer state."""
        with self._changed:
            return self._part.bytes_held if self._part else 0

    def versions(self) -> tuple[int, ...]:
        """Versions that can be read now, ascending."""
        with self._changed:
            return self._part.versions.numbers if self._part else ()

    def close(self, reason: str) -> None:
        """Refuse everything from now on; whoever waits for a version is refused at once."""
        with self._changed:
            self._closed = self._closed or reason
            self._changed.notify_all()

    def _gather(self, order: CommitOrder) -> tuple[Part, list[torch.Tensor]]:
        """Check an order against the state and find its gradients, in the order of summation."""
        with self._changed:
            part = self._of_term(order.term)
            present = part.versions.present
            if present < 0:
                raise RefusedError("the initial values are not published yet")
            if order.version != present:
                raise RefusedError(f"a commit of version {order.version} cannot follow: the present one is {present}")
            part.check(order)
            whole = [part.gradients.whole(name) for name, _ in _ordered(order)]
            if order.compensation > 0.0:
                for name in order.stale:
                    if part.versions.arena(name.iteration) is None:
                        raise RefusedError(
                            f"{name} cannot be compensated: {_gone(name.iteration, part.versions.numbers)}"
                        )
        return part, [arena for arena in whole if arena is not None]

    def _sum(self, part: Part, order: CommitOrder, gradients: Sequence[torch.Tensor]) -> None:
        content = (order.version, _ordered(order))
        if self._summed != content:
            part.sum(gradients, [weight for _, weight in _ordered(order)])
            if order.compensation > 0.0 and order.stale:
                self._compensate(part, order)
            self._summed = content

    def _compensate(self, part: Part, order: CommitOrder) -> None:
        weights = dict(order.contributions)
        for name in order.stale:
            with self._changed:
                gradient = part.gradients.whole(name)
                now, base = part.versions.arena(order.version), part.versions.arena(name.iteration)
            if gradient is not None and now is not None and base is not None:
                part.compensate(gradient, now=now, base=base, strength=order.compensation * weights[name])

    def _make_version(self, part: Part, order: CommitOrder, gradients: Sequence[torch.Tensor]) -> None:
        made = part.take_ahead(result(order))
        self.found_made += made is not None
        if made is None:
            self._undo(part)
            self._sum(part, order, gradients)
        with self._changed:
            source, target = part.versions.begin(order.retain, made)
        if made is None:
            part.update(source, target, order)
        with self._changed:
            part.versions.finish(target)

    def _prepare(self, part: Part) -> None:
        """Copy what `Part.work_ahead` changes. The first gradient of a round is early: nobody waits for that."""
        if not part.is_prepared:
            with self._changed:
                source, target = part.versions.values, part.pool.take()
            part.prepare(source, target)

    def _undo(self, part: Part) -> None:
        """Forget what was made ahead."""
        with self._breaking():
            target = part.undo()
        if target is not None:
            with self._changed:
                part.pool.give(target)

    def _check(self, part: Part, gradient: Gradient) -> None:
        """Settle a gradient that has become whole; on an error a later duplicate tries again."""
        state = State.OPEN
        try:
            state = State.COMPLETE if self._is_finite(part, gradient) else State.NOT_FINITE
        finally:
            with self._changed:
                part.gradients.settle(gradient, state)
                self._settled.notify_all()

    def _is_finite(self, part: Part, gradient: Gradient) -> bool:
        arena = gradient.arena
        if arena is None:  # discarded meanwhile
            return True
        if gradient.unsettled:
            arena = arena.clone()
            with self._changed:
                part.gradients.privatise(gradient, arena)
        if gradient.name.iteration == INITIAL_ITERATION:
            return True  # the user's own values: a causal mask, for one, rightly holds -inf
        bad = not_finite(arena, part.regions)
        if bad is not None:
            _log.warning("the gradient for %s holds NaN or Inf in `%s`: refused", gradient.name, part.tensor_at(bad))
        return bad is None

    def _acquire(self, term: int, version: int, wait_seconds: float) -> tuple[Part | None, Published | None]:
        deadline = time.monotonic() + min(max(0.0, wait_seconds), LONGEST_WAIT_SECONDS)
        with self._changed:
            while True:
                self._check_open()
                if self._part is not None:
                    part = self._of_term(term)
                    published = part.versions.acquire(version)
                    if published is not None:
                        return part, published
                    if version <= part.versions.present or version < 0:
                        raise RefusedError(_gone(version, part.versions.numbers))
                remaining = deadline - time.monotonic()
                if remaining <= 0.0:
                    return None, None
                self._changed.wait(remaining)

    def _await_blob(self, term: int, version: int, wait_seconds: float) -> memoryview | None:
        with self._changed:
            wanted: Callable[[], bool] = lambda: bool(self._closed) or self._holds_blob(term, version)  # noqa: E731
            deadline = time.monotonic() + min(max(0.0, wait_seconds), LONGEST_WAIT_SECONDS)
            while not wanted() and (remaining := deadline - time.monotonic()) > 0.0:
                self._changed.wait(remaining)
            self._check_open()
            return self._blobs.get(version) if self._holds_blob(term, version) else None

    def _holds_blob(self, term: int, version: int) -> bool:
        return self._part is not None and self._of_term(term) is self._part and version in self._blobs

    def _of_term(self, term: int) -> Part:
        self._check_open()
        if self._part is None:
            raise RefusedError("this shard has no model yet")
        present = self._part.spec.term
        if term != present:
            raise RefusedError(
                f"term {term} is {'over' if term < present else 'not here yet'}, the present one is {present}"
            )
        return self._part

    def _check_open(self) -> None:
        if self._closed:
            raise RefusedError(self._closed)

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """What fails in here leaves the values half changed: serve nobody after it."""
        try:
            yield
        except BaseException as error:
            self.close(f"the shard broke: {type(error).__name__}: {error}")
            raise


def _name(key: PushKey) -> GradientName:
    return GradientName(key.worker, key.incarnation, key.iteration)


def _ordered(order: CommitOrder) -> tuple[tuple[GradientName, float], ...]:
    return tuple(sorted(order.contributions))


def _gone(version: int, numbers: Sequence[int]) -> str:
    held = ", ".join(map(str, numbers)) or "none"
    return f"version {version} is not held any more (held: {held}); a commit's `retain` must name what is still needed"


def _difference(new: ShardSpec, old: ShardSpec) -> str:
    names = [
        n
        for n in ("shard", "num_shards", "tensors", "optimizer", "groups", "workers")
        if getattr(new, n) != getattr(old, n)
    ]
    return f"{', '.join(names)} differ"
