"""CPU tensors as named dtypes and as bytes, without copies; shared by the script's side and the parameter servers.

Dtype names are those of `heterotrain_core.layout.DTYPE_BYTES` (as in safetensors).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import torch

from heterotrain_core.layout import Region

DTYPES: Final = MappingProxyType(
    {
        "F64": torch.float64,
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "I64": torch.int64,
        "I32": torch.int32,
        "I16": torch.int16,
        "I8": torch.int8,
        "U8": torch.uint8,
        "BOOL": torch.bool,
    }
)
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a name; raises `ValueError` for an unknown one."""
    if name not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, not {name!r}")
    return DTYPES[name]


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a torch dtype; raises `ValueError` for one that cannot be trained over parameter servers."""
    if dtype not in _NAMES:
        raise ValueError(f"dtype must be one of {', '.join(map(str, _NAMES))}, not {dtype}; convert the tensor")
    return _NAMES[dtype]


def allocate(num_bytes: int) -> torch.Tensor:
    """Return `num_bytes` of uninitialised CPU memory as a flat uint8 tensor that starts at a multiple of 64 bytes.

    Raises `MemoryError` if the system has not got it.
    """
    try:
        return torch.empty(num_bytes, dtype=torch.uint8, device="cpu")
    except RuntimeError as error:
        raise MemoryError(f"{num_bytes} bytes of memory cannot be had: {error}") from error


def byte_view(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor (any dtype, any shape) as a flat writable memoryview, format "B".

    The view keeps the memory alive. Raises `ValueError` if the tensor is elsewhere or not contiguous.
    """
    if tensor.device.type != "cpu":
        raise ValueError(f"only CPU tensors can be seen as bytes, this one is on {tensor.device}")
    if not tensor.is_contiguous():
        raise ValueError("only contiguous tensors can be seen as bytes; call .contiguous() first")
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def elements(arena: torch.Tensor, dtype: str, offset: int, num_elements: int) -> torch.Tensor:
    """Return `num_elements` of `dtype` at byte `offset` of a uint8 `arena`, as a flat view.

    `offset` must be a multiple of the element size (all regions and cuts of a layout are).
    """
    element_type = torch_dtype(dtype)
    return arena[offset : offset + num_elements * element_type.itemsize].view(element_type)


def region_view(arena: torch.Tensor, region: Region) -> torch.Tensor:
    """Return a region of an arena as a flat view of its dtype."""
    return elements(arena, region.dtype, region.offset, region.num_elements)
