from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain.transport.wire import SLICE_BYTES, SMALL_BYTES, gathered, join_address, split_address

SIZES = st.lists(st.sampled_from([0, 1, 7, SMALL_BYTES - 1, SMALL_BYTES, SLICE_BYTES + 3]), max_size=8)


@given(SIZES)
def test_slices_hold_the_same_bytes_in_order(sizes: list[int]) -> None:
    buffers = [bytes([i % 251]) * size for i, size in enumerate(sizes)]
    slices = list(gathered(buffers))
    assert b"".join(slices) == b"".join(buffers)
    assert all(0 < len(s) <= SLICE_BYTES for s in slices)


def test_large_buffers_are_not_copied_and_small_ones_go_together() -> None:
    large = bytearray(SLICE_BYTES)
    slices = list(gathered([b"header", b"table", memoryview(large), *[b"x"] * 10_000]))
    assert [len(s) for s in slices] == [11, SLICE_BYTES, 10_000]
    assert slices[1].obj is large


@pytest.mark.parametrize("address", ["127.0.0.1:7072", "ps-0.demo.svc:1", "[::1]:65535"])
def test_addresses_can_be_split_and_joined(address: str) -> None:
    assert join_address(*split_address(address)) == address


@pytest.mark.parametrize("address", ["", "ps-0", ":7072", "ps-0:", "ps-0:http", "ps-0:65536", "ps-0:-1", "ps-0:٣"])
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="must be host:port"):
        split_address(address)
