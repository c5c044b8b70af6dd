"""Batches on their way to a device. The meta device stands for CUDA: moved there is moved, and it needs no hardware."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from heterotrain.loader import to_device

META = torch.device("meta")


class Pair(NamedTuple):
    images: Any
    labels: Any


class Edges(NamedTuple):
    """Its `to` is data."""

    begin: torch.Tensor
    to: torch.Tensor


class Graph:
    """Moves itself."""

    def __init__(self, place: str = "cpu") -> None:
        self.place = place

    def to(self, device: torch.device) -> Graph:
        return Graph(device.type)


def shape(batch: Any) -> Any:
    """The batch with the kind of device in place of each tensor."""
    match batch:
        case torch.Tensor():
            return batch.device.type
        case Graph():
            return batch.place
        case tuple() | list():
            return [type(batch).__name__, *map(shape, batch)]
        case dict():
            return {key: shape(value) for key, value in batch.items()}
    return batch


ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("batch", "want"),
    [
        (ONE, "meta"),
        ((ONE, [ONE, 3]), ["tuple", "meta", ["list", "meta", 3]]),
        (Pair(ONE, ["a", None]), ["Pair", "meta", ["list", "a", None]]),
        (Edges(ONE, ONE), ["Edges", "meta", "meta"]),
        (OrderedDict(a=ONE, b={"c": ONE}), {"a": "meta", "b": {"c": "meta"}}),
        ([Graph(), ONE], ["list", "meta", "meta"]),
    ],
    ids=["a tensor", "tuples and lists", "a named tuple", "one with a field `to`", "mappings", "what moves itself"],
)
def test_all_tensors_of_a_batch_are_moved(batch: Any, want: Any) -> None:
    assert shape(to_device(batch, META)) == want


def test_a_packed_sequence_keeps_its_sizes_on_the_cpu() -> None:
    moved = to_device(pack_sequence([torch.ones(3, 2), torch.ones(1, 2)]), META)
    assert isinstance(moved, PackedSequence)
    assert (moved.data.device.type, moved.batch_sizes.tolist()) == ("meta", [2, 1, 1])


def test_on_the_cpu_nothing_is_touched() -> None:
    batch = {"a": ONE}
    assert to_device(batch, torch.device("cpu")) is batch
