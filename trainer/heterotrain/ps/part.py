"""A shard's part of one model in one term: its memory, and the arithmetic of a commit on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from heterotrain.checkpoint.state import Unpacker, held, pack
from heterotrain.ps.arithmetic import aggregate, compensate, norm_part, scale_parameters, update_buffers
from heterotrain.ps.gradients import ArenaPool, Gradients
from heterotrain.ps.optimizer import ShardOptimizer, Slot, decode_group, state_bytes_per_element
from heterotrain.ps.values import CommitOrder, ShardSpec
from heterotrain.ps.versions import Versions
from heterotrain.tensors import allocate, elements, torch_dtype
from heterotrain_core.layout import Piece, TensorKind, make_layout

AHEAD_BYTES: Final = 64 << 20
"""Values and optimizer's state of a shard that works ahead: it holds them twice. Of more, the copy would take as long
as it saves."""


class Part:
    """Bookkeeping (`gradients`, `versions`, `pool`) is under the store's lock; the rest is for one command at a time.

    Raises `ValueError` if the model cannot be laid out, `MemoryError` if there is no memory for it.
    """

    def __init__(self, spec: ShardSpec) -> None:
        self.spec = spec
        layout = make_layout(spec.tensors, spec.num_shards)
        self.regions = layout.shard_regions[spec.shard]
        self.num_bytes = layout.shard_bytes[spec.shard]
        """Of the arena."""
        self._pieces = layout.pieces[spec.shard]
        self._slots = tuple(_slot(spec, p) for p in self._pieces if spec.tensors[p.tensor].kind is TensorKind.PARAMETER)
        self.workers = spec.workers
        """Names by ordinal; more than the model was laid out with, once some were added."""
        self.pool = ArenaPool(self.num_bytes, keep=_arenas(len(spec.workers)))
        self.gradients = Gradients(self.regions, len(spec.workers), self.pool)
        self.versions = Versions(self.pool)
        self._total = allocate(self.num_bytes)
        self._values: torch.Tensor | None = None
        self._optimizer: ShardOptimizer | None = None
        self.may_work_ahead = False
        """There is little enough of everything to have it twice, and it has not failed yet."""
        self._spare: torch.Tensor | None = None
        """Arena of the version that is made ahead."""
        self._ahead: CommitOrder | None = None
        """What was made ahead."""

    @property
    def expected_bytes(self) -> int:
        """Bytes of values and optimizer state once training is under way, without the copies for working ahead."""
        groups = [decode_group(self.spec.optimizer, text) for text in self.spec.groups]
        kinds = {(slot.group, slot.dtype) for slot in self._slots}
        state = {
            (group, dtype): state_bytes_per_element(self.spec.optimizer, groups[group], torch_dtype(dtype))
            for group, dtype in kinds
        }
        return self.num_bytes + sum(s.num_elements * state[s.group, s.dtype] for s in self._slots)

    @property
    def bytes_held(self) -> int:
        """Bytes held now: versions, gradients (waiting or free), aggregate and optimizer state."""
        state = self._optimizer.state_bytes if self._optimizer else 0
        return self.pool.bytes_held + self.num_bytes + state

    def seat(self, workers: tuple[str, ...], least_incarnations: Sequence[int]) -> None:
        """Know these workers, and the least incarnation of each that may push."""
        self.workers = workers
        self.gradients.seat(least_incarnations)
        self.pool.keep(_arenas(len(workers)))

    def start(self, values: torch.Tensor) -> None:
        """Take the initial values over and set the optimizer up on them."""
        self._values = values
        self._optimizer = ShardOptimizer(self.spec.optimizer, self.spec.groups, self._slots, values, self._total)
        self.may_work_ahead = self.expected_bytes <= AHEAD_BYTES

    def pack(self, arena: torch.Tensor) -> memoryview:
        """Copy the present values, in `arena`, and the optimizer's state: the content of a checkpoint's file."""
        return pack(list(held(self.spec.tensors, self._pieces, arena, self._started().states())))

    def unpack(self, unpacker: Unpacker) -> torch.Tensor:
        """Start from a checkpoint; returns the values. Raises `ValueError` for what it does not hold."""
        arena = self.pool.take()
        states: dict[int, dict[str, torch.Tensor]] = {}
        for piece in self._pieces:
            spec = self.spec.tensors[piece.tensor]
            unpacker.values(spec, piece, arena)
            if spec.kind is TensorKind.PARAMETER and (state := unpacker.state(spec, piece)):
                states[piece.tensor] = state
        self.start(arena)
        self._started().restore(states)
        return arena

    def check(self, order: CommitOrder) -> None:
        """Raise `ValueError` for an order that the optimizer or the model cannot obey, before anything has changed."""
        self._started().check(order.groups)
        if not all(0 <= index < len(self.spec.tensors) for index in order.absent):
            raise ValueError(f"absent must be indices of the model's {len(self.spec.tensors)} tensors")

    def sum(self, gradients: Sequence[torch.Tensor], weights: Sequence[float]) -> None:
        """Put the weighted sum of whole gradients into the aggregate."""
        if gradients:
            aggregate(self._total, self.regions, gradients, weights)

    def compensate(self, gradient: torch.Tensor, *, now: torch.Tensor, base: torch.Tensor, strength: float) -> None:
        """Correct the aggregate for one stale gradient (see `arithmetic.compensate`)."""
        compensate(self._total, self.regions, gradient, now=now, base=base, strength=strength)

    def norm_part(self, norm_type: float, absent: frozenset[int]) -> float:
        """What this shard adds to the norm of the aggregate (see `arithmetic.norm_part`)."""
        views = [
            elements(self._total, s.dtype, s.offset, s.num_elements) for s in self._slots if s.tensor not in absent
        ]
        return norm_part(views, norm_type)

    def update(self, source: torch.Tensor, target: torch.Tensor, order: CommitOrder) -> None:
        """Make the next version from the values in `source` and the aggregate, in `target` (may be the same arena)."""
        optimizer = self._started()
        if target is not source:
            target.copy_(source)
        if target is not self._values:
            optimizer.rebind(target)
            self._values = target
        if order.clip_coefficient is not None:
            scale_parameters(self._total, self.regions, order.clip_coefficient)
        optimizer.step(order.groups, order.scale, order.absent)
        update_buffers(target, self._total, self.regions, order.scale, stale=bool(order.stale))

    def give_up_working_ahead(self) -> None:
        """It does not work here; no more of it. After `undo`."""
        self.may_work_ahead = False
        self._started().forget_kept()

    @property
    def is_prepared(self) -> bool:
        """`prepare` was called since the last version was made."""
        return self._spare is not None

    @property
    def is_ahead(self) -> bool:
        """A version was made ahead, and neither taken nor undone."""
        return self._ahead is not None

    def prepare(self, source: torch.Tensor, spare: torch.Tensor) -> None:
        """Copy what `work_ahead` will change: the values in `source` to the arena `spare`, and the optimizer's state.

        `spare` is given back by `take_ahead` or `undo`.
        """
        self._spare = spare
        spare.copy_(source)
        self._started().keep()

    def work_ahead(self, order: CommitOrder) -> None:
        """As `update`, for an order that has not come yet; after `prepare` and `sum`."""
        assert self._spare is not None, "prepare() comes first"  # noqa: S101 - our own order of calls
        self._ahead = order
        self.update(self._spare, self._spare, order)

    def has_made(self, order: CommitOrder) -> bool:
        """The version that `order` makes was made ahead."""
        return self._ahead is not None and self._ahead == order

    def take_ahead(self, order: CommitOrder) -> torch.Tensor | None:
        """The arena with the version that `order` makes, if that is what was made ahead; else call `undo`."""
        if not self.has_made(order):
            return None
        spare, self._spare, self._ahead = self._spare, None, None
        return spare

    def undo(self) -> torch.Tensor | None:
        """Take back what was made ahead, or prepared for it; returns the spare arena, if there is one."""
        if self._ahead is not None:
            self._started().undo()
            self._values = None
        spare, self._spare, self._ahead = self._spare, None, None
        return spare

    def tensor_at(self, offset: int) -> str:
        """Name of the tensor that byte `offset` of the arena belongs to."""
        piece = max((p for p in self._pieces if p.offset <= offset), key=lambda p: p.offset)
        return self.spec.tensors[piece.tensor].name

    def _started(self) -> ShardOptimizer:
        assert self._optimizer is not None, "start() comes first"  # noqa: S101 - our own order of calls
        return self._optimizer


def _arenas(num_workers: int) -> int:
    """Free arenas to keep: a gradient waiting from each worker, and copies of versions still read."""
    return num_workers + 2


def _slot(spec: ShardSpec, piece: Piece) -> Slot:
    tensor = spec.tensors[piece.tensor]
    return Slot(piece.tensor, tensor.group, tensor.dtype, piece.offset, piece.stop - piece.start)
