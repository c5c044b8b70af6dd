from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from heterotrain.ps.service import export_path, order_from, spec_from
from heterotrain.ps.values import CommitOrder, GradientName, ShardSpec
from heterotrain_core.layout import TensorKind, TensorSpec
from heterotrain_rpc.session_pb2 import TENSOR_KIND_INTEGER_BUFFER, TENSOR_KIND_PARAMETER, Manifest, Tensor
from heterotrain_rpc.shard_pb2 import CommitContribution, CommitRequest, ConfigureRequest

NUMBER = st.integers(-(1 << 63), (1 << 63) - 1)
SMALL = st.integers(-(1 << 31), (1 << 31) - 1)


def test_a_model_is_translated() -> None:
    manifest = Manifest(
        tensors=[
            Tensor(name="w", shape=[2, 3], dtype="F32", kind=TENSOR_KIND_PARAMETER),
            Tensor(name="n", dtype="I64", kind=TENSOR_KIND_INTEGER_BUFFER),
        ],
        optimizer="SGD",
        groups=['{"lr": 0.5}'],
    )
    request = ConfigureRequest(
        term=3, shard=1, num_shards=2, manifest=manifest, workers=["a-0", "b-0"], shards=["x:1", "y:2"]
    )
    assert spec_from(request) == ShardSpec(
        term=3,
        shard=1,
        num_shards=2,
        tensors=(
            TensorSpec("w", (2, 3), "F32", TensorKind.PARAMETER, 0),
            TensorSpec("n", (), "I64", TensorKind.INTEGER_BUFFER, 0),
        ),
        optimizer="SGD",
        groups=('{"lr": 0.5}',),
        workers=("a-0", "b-0"),
    )


def test_a_commit_is_translated() -> None:
    request = CommitRequest(
        term=1,
        version=7,
        contributions=[CommitContribution(worker=2, incarnation=4, iteration=7, weight=1.0)],
        scale=0.5,
        groups=['{"lr": 1.0}'],
        absent=[3],
        retain=[6, 7],
        clip_coefficient=0.25,
        norm_type=math.inf,
        discard=[CommitContribution(worker=1, incarnation=1, iteration=6)],
    )
    assert order_from(request) == CommitOrder(
        term=1,
        version=7,
        contributions=((GradientName(2, 4, 7), 1.0),),
        scale=0.5,
        groups=('{"lr": 1.0}',),
        absent=frozenset({3}),
        retain=frozenset({6, 7}),
        clip_coefficient=0.25,
        norm_type=math.inf,
        discard=(GradientName(1, 1, 6),),
    )


def test_what_a_commit_leaves_out_has_its_default() -> None:
    assert order_from(CommitRequest(term=1, version=2, scale=1.0)) == CommitOrder(term=1, version=2)


@given(
    names=st.lists(st.text(max_size=3), max_size=3),
    shape=st.lists(NUMBER, max_size=3),
    dtype=st.sampled_from(["F32", "I64", "C64", ""]),
    kind=SMALL,
    group=SMALL,
    optimizer=st.sampled_from(["SGD", "LBFGS", "os.system", ""]),
    groups=st.lists(st.sampled_from(["{}", "[", '{"lr": 1e999}', "__import__('os')"]), max_size=2),
    shard=SMALL,
)
def test_any_model_is_taken_or_refused_as_malformed(
    names: list[str], shape: list[int], dtype: str, kind: int, group: int, optimizer: str, groups: list[str], shard: int
) -> None:
    any_kind: Any = kind
    tensors = [Tensor(name=n, shape=shape, dtype=dtype, kind=any_kind, group=group) for n in names]
    request = ConfigureRequest(
        term=1,
        shard=shard,
        num_shards=2,
        manifest=Manifest(tensors=tensors, optimizer=optimizer, groups=groups),
        workers=["cpu-0"],
    )
    try:
        spec = spec_from(request)
    except ValueError:
        return
    assert spec.shard in {0, 1}
    assert all(t.num_bytes >= 0 for t in spec.tensors)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_commit_or_malformed(data: bytes) -> None:
    request = CommitRequest()
    try:
        request.ParseFromString(data)
        order = order_from(request)
    except (DecodeError, ValueError):
        return
    assert math.isfinite(order.scale)


@pytest.mark.parametrize(
    ("folder", "file", "output", "expected"),
    [
        ("/out", "model.safetensors", None, "/out/model.safetensors"),
        ("", "model-12.safetensors", "/out", "/out/model-12.safetensors"),
        ("/out/run-1", "model.safetensors", "/out", "/out/run-1/model.safetensors"),
    ],
)
def test_the_model_goes_to_the_folder_that_is_named(folder: str, file: str, output: str | None, expected: str) -> None:
    assert export_path(folder, file, Path(output) if output else None) == Path(expected)


@pytest.mark.parametrize(
    ("folder", "file", "output", "message"),
    [
        ("", "model.safetensors", None, "no folder for the model"),
        ("/etc", "model.safetensors", "/out", "folder must lie in /out, not be /etc"),
        ("/out/../etc", "model.safetensors", "/out", "folder must lie in /out"),
        ("/out", "../model.safetensors", "/out", "file must be a plain name"),
        ("/out", "authorized_keys", "/out", "ends in .safetensors"),
        ("/out", ".safetensors", "/out", "file must be a plain name"),
        ("/out", "", "/out", "file must be a plain name"),
    ],
)
def test_other_places_are_refused(folder: str, file: str, output: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        export_path(folder, file, Path(output) if output else None)
