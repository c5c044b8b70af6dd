"""A shard's whole state, to a file's content and back: every optimizer, every dtype, any number of shards."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from heterotrain.checkpoint.shard_file import decode_header, header_bytes
from heterotrain.checkpoint.state import Unpacker, read_header
from heterotrain.ps.optimizer import elementwise_optimizers
from heterotrain.transport.base import RefusedError, capture_version, file_version
from heterotrain_core.layout import TensorKind
from shard_job import ShardJob, specs_of

GENERATOR = torch.Generator().manual_seed(3)
VALUES = {
    "weight": torch.randn(7, 5, generator=GENERATOR),
    "bias": torch.randn(3, generator=GENERATOR, dtype=torch.float64),
    "half": torch.randn(9, generator=GENERATOR).bfloat16(),
    "empty": torch.zeros(0, 4),
    "frozen": torch.randn(4, generator=GENERATOR),
    "mean": torch.randn(5, generator=GENERATOR),
    "count": torch.tensor(3),
}
KINDS = {
    "frozen": TensorKind.FROZEN,
    "mean": TensorKind.FLOAT_BUFFER,
    "count": TensorKind.INTEGER_BUFFER,
}
SPECS = specs_of(VALUES, KINDS, {"bias": 1})
MOMENTUM = {"SGD": {"momentum": 0.9}, "RMSprop": {"momentum": 0.5, "centered": True}, "Adam": {"amsgrad": True}}


class Files:
    """What several shards have packed, as a checkpoint's files."""

    def __init__(self, contents: Sequence[memoryview]) -> None:
        self.contents = contents

    def read(self, file: int, offset: int, memory: memoryview) -> None:
        memory[:] = self.contents[file][offset : offset + len(memory)]

    @property
    def unpacker(self) -> Unpacker:
        return Unpacker(self, [read_header(self, i, len(c)) for i, c in enumerate(self.contents)])


def make_job(optimizer: str, num_shards: int, term: int = 1) -> ShardJob:
    groups = [{"lr": 0.01, **MOMENTUM.get(optimizer, {})}, {"lr": 0.02, **MOMENTUM.get(optimizer, {})}]
    return ShardJob(SPECS, num_shards=num_shards, optimizer=optimizer, groups=groups, term=term)


def gradients(version: int) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(version)
    return {
        name: torch.randn(value.shape, generator=made).to(value.dtype) if value.is_floating_point() else value + version
        for name, value in VALUES.items()
    }


def train(job: ShardJob, versions: range) -> None:
    for version in versions:
        job.push(0, version, gradients(version))
        # `bias` has no gradient in the first round: its optimizer state begins later than that of the others.
        absent = frozenset({1}) if version == 0 else frozenset()
        assert job.commit(version, {0: 1.0}, absent=absent) == version + 1


def captured(job: ShardJob, version: int) -> Files:
    contents = []
    for store in job.stores:
        size = store.capture(job.term, version)
        blob = store.blob(job.term, capture_version(version))
        assert blob is not None
        assert len(blob) == size
        contents.append(blob)
    return Files(contents)


def restored(optimizer: str, num_shards: int, files: Files, version: int) -> ShardJob:
    job = make_job(optimizer, num_shards, term=2)
    for store, spec in zip(job.stores, job.shard_specs, strict=True):
        store.configure(spec)
        store.restore(2, version, files.unpacker)
    return job


def same(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)


@pytest.mark.parametrize("counts", [(1, 1), (2, 3), (3, 1), (2, 9)], ids=lambda c: f"{c[0]} to {c[1]} shards")
@pytest.mark.parametrize("optimizer", elementwise_optimizers())
def test_training_goes_on_bit_for_bit(optimizer: str, counts: tuple[int, int]) -> None:
    before, after = counts
    job = make_job(optimizer, before).start(VALUES)
    train(job, range(3))
    files = captured(job, 3)
    train(job, range(3, 6))
    again = restored(optimizer, after, files, 3)
    train(again, range(3, 6))
    assert same(again.read(6), job.read(6))
    # The optimizer's state too, moments and step counts: packed alike by as many shards, it is the same bytes.
    assert captured(restored(optimizer, before, files, 3), 3).contents == files.contents


def test_a_capture_is_of_its_version_however_training_goes_on() -> None:
    job = make_job("AdamW", 2).start(VALUES)
    train(job, range(2))
    files = captured(job, 2)
    kept = [bytes(content) for content in files.contents]
    train(job, range(2, 4))
    assert [bytes(content) for content in files.contents] == kept


def test_a_file_is_plain_safetensors() -> None:
    job = make_job("Adam", 1).start(VALUES)
    train(job, range(1))
    (content,) = captured(job, 1).contents
    tensors = load(bytes(content))
    assert torch.equal(tensors["value/frozen"], VALUES["frozen"])
    assert tensors["state/step/weight"] == 1
    assert "state/exp_avg/bias" not in tensors
    assert tensors["state/max_exp_avg_sq/half"].dtype == torch.bfloat16


def test_the_version_must_be_the_present_one() -> None:
    job = make_job("SGD", 1).start(VALUES)
    train(job, range(2))
    (store,) = job.stores
    with pytest.raises(RefusedError, match="version 1 cannot be kept any more: the present one is 2"):
        store.capture(1, 1)
    assert store.capture(1, 2) == store.capture(1, 2)
    store.release(1, [capture_version(2)])
    assert store.blob(1, capture_version(2)) is None


def test_the_older_term_is_refused_whatever_it_asks_for() -> None:
    job = make_job("SGD", 1).start(VALUES)
    train(job, range(1))
    (store,) = job.stores
    files, want = captured(job, 1), job.read(1)
    waiting: list[str] = []

    def wait() -> None:
        try:
            with store.snapshot(1, 2, 30.0):
                pass
        except RefusedError as error:
            waiting.append(str(error))

    pull = threading.Thread(target=wait)
    pull.start()
    job.push_range(job.key(0, 1), 0, *next(iter(job.ranges(gradients(1), at_most=8)))[1:])  # a push that is under way
    new = make_job("SGD", 1, term=2)
    store.configure(new.shard_specs[0])
    store.restore(2, 1, files.unpacker)
    pull.join(10.0)
    assert waiting == ["term 1 is over, the present one is 2"]
    order = job.order(1, {0: 1.0})
    old: list[tuple[str, Any]] = [
        ("a push that goes on", lambda: store.reserve(job.key(0, 1), 8, 8)),
        ("a push that ends", lambda: store.received(job.key(0, 1), 0, 8)),
        ("a commit", lambda: store.commit(order)),
        ("its initial values", lambda: store.publish(1)),
        ("a model", lambda: store.configure(job.shard_specs[0])),
        ("a checkpoint", lambda: store.capture(1, 1)),
        ("what was captured", lambda: store.blob(1, capture_version(1))),
        ("another restore", lambda: store.restore(1, 1, files.unpacker)),
    ]
    for _what, call in old:
        with pytest.raises(RefusedError, match="term 1 is over"):
            call()
    new.stores = [store]
    assert (store.standing(), store.versions()) == ((2, 1), (1,))
    assert same(new.read(1), want)
    train(new, range(1, 2))


def test_files_can_be_read_once_they_are_offered_and_no_longer() -> None:
    job = make_job("SGD", 1).start(VALUES)
    (store,) = job.stores
    with store.snapshot(1, file_version(0), 0.0) as nothing:
        assert nothing is None
    store.offer(1, file_version(0), memoryview(b"content"))
    with store.snapshot(1, file_version(0), 0.0) as held:
        assert held is not None
        store.release(1, [file_version(0)])
        assert bytes(held.buffer) == b"content"
    with store.snapshot(1, file_version(0), 0.0) as gone:
        assert gone is None


def test_what_the_files_do_not_hold_is_named() -> None:
    job = make_job("SGD", 2).start(VALUES)
    files = captured(job, 0)
    short = Files(files.contents[:1])
    other = make_job("SGD", 1, term=2)
    other.stores[0].configure(other.shard_specs[0])
    with pytest.raises(ValueError, match=r"the checkpoint holds .* elements of `value/"):
        other.stores[0].restore(2, 0, short.unpacker)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{}", "not the header"),
        (b"[]", "not the header"),
        (b"\x80\x04.", "codec"),
        (b'{"__metadata__": {"starts": "{}"}, "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', "need 8"),
        (b'{"__metadata__": {"starts": "{}"}, "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', "outside"),
        (b'{"__metadata__": {"starts": "{}"}, "a": {"dtype": "X", "shape": [1], "data_offsets": [0, 4]}}', "unknown"),
        (b'{"__metadata__": {"starts": "{}"}, "a": {"dtype": "U8", "shape": [-1], "data_offsets": [0, -1]}}', "shape"),
    ],
    ids=["empty", "a list", "pickle", "a wrong size", "beyond the file", "an unknown type", "a negative size"],
)
def test_a_header_that_cannot_be_is_refused(text: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decode_header(text, 8 + len(text))


@pytest.mark.parametrize("first", [b"", b"\xff" * 8, (9).to_bytes(8, "little")], ids=["nothing", "huge", "too long"])
def test_a_header_longer_than_its_file_is_refused(first: bytes) -> None:
    with pytest.raises(ValueError, match="header"):
        header_bytes(first, 16)


def test_no_source_file_unpickles() -> None:
    root = Path(__file__).parents[3] / "trainer" / "heterotrain"
    words = ("pickle", "torch.load", "torch.save", "marshal", "eval(")
    found = [
        (path.name, word)
        for folder in ("checkpoint", "ps")
        for path in (root / folder).glob("*.py")
        for word in words
        if word in path.read_text().replace("model.eval(", "")
    ]
    assert found == []
