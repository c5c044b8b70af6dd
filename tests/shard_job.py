"""Several shards in one process, fed with tensors by name, for tests of the parameter server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import torch

from heterotrain.ps.store import ShardStore
from heterotrain.ps.values import CommitOrder, GradientName, ShardSpec
from heterotrain.tensors import allocate, byte_view, dtype_name, elements
from heterotrain.transport.base import INITIAL_ITERATION, PushKey, PushStatus
from heterotrain_core.layout import Layout, TensorKind, TensorSpec, make_layout

Tensors = Mapping[str, torch.Tensor]


def specs_of(
    tensors: Tensors, kinds: Mapping[str, TensorKind] | None = None, groups: Mapping[str, int] | None = None
) -> tuple[TensorSpec, ...]:
    """Manifest of tensors; parameters of group 0 unless said otherwise."""
    found = {name: (kinds or {}).get(name, TensorKind.PARAMETER) for name in tensors}
    return tuple(
        TensorSpec(
            name,
            tuple(t.shape),
            dtype_name(t.dtype),
            found[name],
            (groups or {}).get(name, 0) if found[name] is TensorKind.PARAMETER else -1,
        )
        for name, t in tensors.items()
    )


def global_arena(layout: Layout, tensors: Tensors) -> torch.Tensor:
    """The tensors at their places; zeros elsewhere."""
    arena = allocate(layout.global_bytes).zero_()
    for spec, offset in zip(layout.tensors, layout.tensor_offsets, strict=True):
        elements(arena, spec.dtype, offset, spec.num_elements).copy_(tensors[spec.name].reshape(-1))
    return arena


def tensors_of(layout: Layout, arena: torch.Tensor) -> dict[str, torch.Tensor]:
    """The inverse of `global_arena`."""
    return {
        spec.name: elements(arena, spec.dtype, offset, spec.num_elements).clone().reshape(spec.shape)
        for spec, offset in zip(layout.tensors, layout.tensor_offsets, strict=True)
    }


class ShardJob:
    """Stores of all shards of one model. `groups` are hyperparameters, one dict a parameter group."""

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        *,
        num_shards: int = 1,
        num_workers: int = 3,
        optimizer: str = "SGD",
        groups: Sequence[Mapping[str, Any]] = ({"lr": 1.0},),
        term: int = 1,
    ) -> None:
        self.layout = make_layout(tuple(specs), num_shards)
        self.term = term
        self.stores = [ShardStore() for _ in range(num_shards)]
        self.shard_specs = [
            ShardSpec(
                term=term,
                shard=shard,
                num_shards=num_shards,
                tensors=tuple(specs),
                optimizer=optimizer,
                groups=tuple(json.dumps(g) for g in groups),
                workers=tuple(f"cpu-{i}" for i in range(num_workers)),
            )
            for shard in range(num_shards)
        ]

    def start(self, values: Tensors) -> Self:
        """Configure all shards, push the initial values and publish version 0."""
        for store, spec in zip(self.stores, self.shard_specs, strict=True):
            store.configure(spec)
        self.push(0, INITIAL_ITERATION, values)
        for store in self.stores:
            store.publish(self.term)
        return self

    def key(self, worker: int, iteration: int, incarnation: int = 1) -> PushKey:
        return PushKey(self.term, worker, incarnation, iteration)

    def ranges(
        self, values: Tensors, *, initial: bool = False, at_most: int = 1 << 30
    ) -> Iterator[tuple[int, int, memoryview]]:
        """(shard, offset, bytes) of all ranges of a push, each of at most `at_most` bytes."""
        source = byte_view(global_arena(self.layout, values))
        for e in self.layout.extents:
            if e.kind is TensorKind.FROZEN and not initial:
                continue
            for start in range(0, e.num_bytes, at_most):
                stop = min(start + at_most, e.num_bytes)
                yield e.shard, e.shard_offset + start, source[e.global_offset + start : e.global_offset + stop]

    def push_range(self, key: PushKey, shard: int, offset: int, content: memoryview) -> PushStatus:
        memory = self.stores[shard].reserve(key, offset, len(content))
        if memory is not None:
            memory[:] = content
        return self.stores[shard].received(key, offset, len(content))

    def push(self, worker: int, iteration: int, values: Tensors, incarnation: int = 1) -> dict[int, PushStatus]:
        """Push a whole gradient; returns each shard's last answer."""
        key = self.key(worker, iteration, incarnation)
        ranges = self.ranges(values, initial=iteration == INITIAL_ITERATION)
        return {shard: self.push_range(key, shard, offset, content) for shard, offset, content in ranges}

    def order(self, version: int, weights: Mapping[int, float], **fields: Any) -> CommitOrder:
        """Commit of iteration `version` of the workers in `weights`."""
        contributions = tuple((GradientName(w, 1, version), weight) for w, weight in weights.items())
        if "groups" in fields:
            fields["groups"] = tuple(json.dumps(g) for g in fields["groups"])
        return CommitOrder(term=self.term, version=version, contributions=contributions, **fields)

    def commit(self, version: int, weights: Mapping[int, float], **fields: Any) -> int:
        """Commit on all shards; returns the new version."""
        (new,) = {store.commit(self.order(version, weights, **fields)) for store in self.stores}
        return new

    def read(self, version: int) -> dict[str, torch.Tensor]:
        """All tensors of a version."""
        arena = allocate(self.layout.global_bytes).zero_()
        view = byte_view(arena)
        for shard, store in enumerate(self.stores):
            with store.snapshot(self.term, version, 0.0) as held:
                assert held is not None, f"version {version} is not there yet"
                for e in self.layout.extents_of(shard, pushed=False):
                    part = held.buffer[e.shard_offset : e.shard_offset + e.num_bytes]
                    view[e.global_offset : e.global_offset + e.num_bytes] = part
        return tensors_of(self.layout, arena)
