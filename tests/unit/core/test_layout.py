from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterotrain_core.layout import (
    ALIGNMENT,
    DTYPE_BYTES,
    Extent,
    Layout,
    Piece,
    Region,
    TensorKind,
    TensorSpec,
    make_layout,
)

SHAPES = st.lists(st.integers(0, 6), max_size=3).map(tuple)
TENSORS = st.lists(
    st.tuples(SHAPES, st.sampled_from(["F64", "F32", "BF16", "I64", "BOOL"]), st.sampled_from(TensorKind)), max_size=8
).map(lambda rows: tuple(TensorSpec(f"t{i}", *row) for i, row in enumerate(rows)))
SHARDS = st.integers(1, 5)


def layouts() -> st.SearchStrategy[Layout]:
    return st.builds(make_layout, TENSORS, SHARDS)


def bytes_of(offsets_and_lengths: Iterable[tuple[int, int]]) -> list[int]:
    """All byte addresses, sorted; a byte that is covered twice is listed twice."""
    return sorted(b for offset, length in offsets_and_lengths for b in range(offset, offset + length))


@settings(max_examples=60)
@given(layout=layouts())
def test_extents_cover_every_region_once_globally_and_on_the_shards(layout: Layout) -> None:
    assert bytes_of((e.global_offset, e.num_bytes) for e in layout.extents) == bytes_of(
        (r.offset, r.num_bytes) for r in layout.regions
    )
    for shard, regions in enumerate(layout.shard_regions):
        assert bytes_of((e.shard_offset, e.num_bytes) for e in layout.extents_of(shard, pushed=False)) == bytes_of(
            (r.offset, r.num_bytes) for r in regions
        )
    assert [e.global_offset for e in layout.extents] == sorted(e.global_offset for e in layout.extents)


@settings(max_examples=60)
@given(layout=layouts())
def test_tensors_fill_their_regions_without_overlap(layout: Layout) -> None:
    spans = [(o, t.num_bytes) for o, t in zip(layout.tensor_offsets, layout.tensors, strict=True)]

    assert bytes_of(spans) == bytes_of((r.offset, r.num_bytes) for r in layout.regions)
    for (offset, length), tensor in zip(spans, layout.tensors, strict=True):
        region = next(r for r in layout.regions if (r.kind, r.dtype) == (tensor.kind, tensor.dtype))
        assert region.offset <= offset <= offset + length <= region.offset + region.num_bytes
        assert offset % DTYPE_BYTES[tensor.dtype] == 0


@settings(max_examples=60)
@given(layout=layouts())
def test_pieces_and_extents_say_the_same_about_where_an_element_lies(layout: Layout) -> None:
    by_extent = {
        e.global_offset + k: (e.shard, e.shard_offset + k, e.kind) for e in layout.extents for k in range(e.num_bytes)
    }
    seen = [0] * len(layout.tensors)
    for shard, pieces in enumerate(layout.pieces):
        assert [p.offset for p in pieces] == sorted(p.offset for p in pieces)
        for piece in pieces:
            tensor, size = layout.tensors[piece.tensor], DTYPE_BYTES[layout.tensors[piece.tensor].dtype]
            assert piece.start < piece.stop
            assert piece.start == seen[piece.tensor], "pieces of a tensor follow each other over the shards"
            seen[piece.tensor] = piece.stop
            for element in range(piece.start, piece.stop):
                address = layout.tensor_offsets[piece.tensor] + element * size
                want = (shard, piece.offset + (element - piece.start) * size, tensor.kind)
                assert by_extent[address] == want
    assert seen == [t.num_elements for t in layout.tensors]


@settings(max_examples=60)
@given(layout=layouts())
def test_shards_get_the_same_load_within_one_element_a_region(layout: Layout) -> None:
    for i, region in enumerate(layout.regions):
        counts = [regions[i].num_elements for regions in layout.shard_regions]
        assert {(r[i].kind, r[i].dtype) for r in layout.shard_regions} == {(region.kind, region.dtype)}
        assert sum(counts) == region.num_elements
        assert max(counts) - min(counts) <= 1


@settings(max_examples=60)
@given(layout=layouts())
def test_regions_are_aligned_disjoint_in_order_and_inside_their_arena(layout: Layout) -> None:
    arenas = [(layout.global_bytes, layout.regions), *zip(layout.shard_bytes, layout.shard_regions, strict=True)]
    for size, regions in arenas:
        end = 0
        for region in regions:
            assert region.offset % ALIGNMENT == 0
            assert end <= region.offset
            end = region.offset + region.num_bytes
        assert end <= size < end + ALIGNMENT
        assert size % ALIGNMENT == 0
    assert len({(r.kind, r.dtype) for r in layout.regions}) == len(layout.regions)


@settings(max_examples=60)
@given(layout=layouts())
def test_a_push_leaves_out_frozen_tensors_and_nothing_else(layout: Layout) -> None:
    for shard in range(layout.num_shards):
        everything = layout.extents_of(shard, pushed=False)
        assert all(e.shard == shard for e in everything)
        assert layout.extents_of(shard, pushed=True) == tuple(e for e in everything if e.kind is not TensorKind.FROZEN)


def test_a_small_model_on_two_shards_is_laid_out_as_described() -> None:
    weight = TensorSpec("weight", (3, 5), "F32", TensorKind.PARAMETER, 0)
    mean = TensorSpec("mean", (3,), "F32", TensorKind.FLOAT_BUFFER)
    bias = TensorSpec("bias", (2,), "F32", TensorKind.PARAMETER, 1)

    layout = make_layout((weight, mean, bias), 2)

    parameter, buffer = TensorKind.PARAMETER, TensorKind.FLOAT_BUFFER
    assert layout == Layout(
        tensors=(weight, mean, bias),
        num_shards=2,
        global_bytes=192,
        tensor_offsets=(0, 128, 60),
        regions=(Region(parameter, "F32", 0, 17), Region(buffer, "F32", 128, 3)),
        shard_bytes=(128, 128),
        shard_regions=(
            (Region(parameter, "F32", 0, 8), Region(buffer, "F32", 64, 1)),
            (Region(parameter, "F32", 0, 9), Region(buffer, "F32", 64, 2)),
        ),
        extents=(
            Extent(0, 0, 0, 32, parameter),
            Extent(32, 1, 0, 36, parameter),
            Extent(128, 0, 64, 4, buffer),
            Extent(132, 1, 64, 8, buffer),
        ),
        pieces=(
            (Piece(0, 0, 8, 0), Piece(1, 0, 1, 64)),
            (Piece(0, 8, 15, 0), Piece(2, 0, 2, 28), Piece(1, 1, 3, 64)),
        ),
    )


@pytest.mark.parametrize(
    ("tensors", "num_shards", "want_message"),
    [
        pytest.param((), 0, "num_shards must be at least 1, not 0", id="no shard"),
        pytest.param(
            (TensorSpec("w", (1,), "C64", TensorKind.PARAMETER),), 1,
            "tensor `w`: dtype must be one of F64, F32, .* C64",
            id="unknown dtype",
        ),
        pytest.param(
            (TensorSpec("w", (1,), "F32", TensorKind.PARAMETER), TensorSpec("w", (), "F32", TensorKind.FROZEN)), 1,
            "tensor `w` appears twice", id="a name twice",
        ),
        pytest.param(
            (TensorSpec("w", (2, -1), "F32", TensorKind.PARAMETER),), 1,
            r"tensor `w`: shape must have no negative size, not \(2, -1\)", id="a negative size",
        ),
    ],
)  # fmt: skip
def test_manifests_that_cannot_be_laid_out_are_refused(
    tensors: tuple[TensorSpec, ...], num_shards: int, want_message: str
) -> None:
    with pytest.raises(ValueError, match=want_message):
        make_layout(tensors, num_shards)
