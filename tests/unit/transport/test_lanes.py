from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heterotrain.transport.base import Part
from heterotrain.transport.tcp_client import LANE_BYTES, share_out
from heterotrain_core.layout import ALIGNMENT

SIZES = st.lists(st.sampled_from([1, 63, 64, 65, LANE_BYTES - 1, LANE_BYTES, 3 * LANE_BYTES + 7]), max_size=6)
MEMORY = memoryview(bytearray(32 * LANE_BYTES))


def parts_of(sizes: list[int]) -> list[Part]:
    parts, start = [], 0
    for size in sizes:
        parts.append(Part(1000 + start, MEMORY[start : start + size]))
        start += size
    return parts


@given(SIZES, st.integers(1, 4))
def test_lanes_share_all_bytes_in_order_and_near_evenly(sizes: list[int], num_lanes: int) -> None:
    parts = parts_of(sizes)
    shares = share_out(parts, num_lanes)
    total = sum(sizes)
    assert len(shares) == max(1, min(num_lanes, total // LANE_BYTES))
    lying = [(p.offset, p.offset + p.buffer.nbytes) for share in shares for p in share]
    assert all(stop > start for start, stop in lying)
    assert [start for start, _ in lying[1:]] == [stop for _, stop in lying[:-1]]
    assert (lying[0][0], lying[-1][1]) == (1000, 1000 + total) if sizes else lying == []
    for share in shares:
        assert abs(sum(p.buffer.nbytes for p in share) - total / len(shares)) <= 2 * ALIGNMENT


@given(SIZES, st.integers(1, 4))
def test_parts_are_cut_between_elements_only(sizes: list[int], num_lanes: int) -> None:
    starts = {part.offset: part for part in parts_of(sizes)}
    cuts = [p.offset for share in share_out(list(starts.values()), num_lanes) for p in share if p.offset not in starts]
    for cut in cuts:
        part = next(p for p in starts.values() if p.offset < cut < p.offset + p.buffer.nbytes)
        assert (cut - part.offset) % ALIGNMENT == 0
