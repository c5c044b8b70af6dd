from __future__ import annotations

import pytest
import torch

from heterotrain.tensors import DTYPES, allocate, byte_view, dtype_name, elements, region_view, torch_dtype
from heterotrain_core.layout import ALIGNMENT, DTYPE_BYTES, Region, TensorKind


def test_every_dtype_of_the_layout_has_a_torch_dtype_of_the_same_size() -> None:
    assert {name: torch_dtype(name).itemsize for name in DTYPES} == DTYPE_BYTES


@pytest.mark.parametrize("name", DTYPES)
def test_names_and_dtypes_translate_both_ways(name: str) -> None:
    assert dtype_name(torch_dtype(name)) == name


def test_an_unknown_dtype_is_refused_with_the_allowed_ones() -> None:
    with pytest.raises(ValueError, match=r"F64, F32, F16, BF16.*not 'C64'"):
        torch_dtype("C64")
    with pytest.raises(ValueError, match=r"torch.bfloat16.*not torch.complex64; convert the tensor"):
        dtype_name(torch.complex64)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)], ids=["a scalar", "no element", "a vector", "a matrix"])
def test_bytes_are_the_tensors_own_memory(name: str, shape: tuple[int, ...]) -> None:
    tensor = torch.zeros(shape, dtype=torch_dtype(name))
    view = byte_view(tensor)
    assert (view.format, view.ndim, view.nbytes, view.readonly) == ("B", 1, tensor.nbytes, False)
    view[:] = bytes([1] * tensor.nbytes)
    assert bytes(byte_view(tensor)) == bytes([1] * tensor.nbytes)


def test_bytes_of_a_tensor_that_needs_a_gradient_can_be_seen() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    byte_view(parameter)[:4] = b"\0\0\0\0"
    assert parameter.tolist() == [0.0, 1.0]


def test_bytes_keep_the_memory_alive() -> None:
    view = byte_view(torch.full((4,), 7, dtype=torch.uint8))
    assert bytes(view) == b"\7\7\7\7"


def test_a_strided_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        byte_view(torch.zeros(4, 4).t())


def test_a_tensor_on_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match="on meta"):
        byte_view(torch.zeros(2, device="meta"))


def test_regions_are_views_into_the_arena() -> None:
    arena = allocate(128)
    arena.zero_()
    region_view(arena, Region(TensorKind.PARAMETER, "BF16", 64, 3)).fill_(1.0)
    elements(arena, "I32", 0, 1).fill_(-1)
    assert bytes(byte_view(arena)) == b"\xff" * 4 + b"\0" * 60 + b"\x80\x3f" * 3 + b"\0" * 58
    assert arena.data_ptr() % ALIGNMENT == 0
