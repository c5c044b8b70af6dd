"""What a commit does to the values: compared with one process of plain PyTorch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heterotrain.ps.values import GradientName
from heterotrain.transport.base import PushStatus, RefusedError
from heterotrain_core.layout import TensorKind
from shard_job import ShardJob, specs_of

F64 = torch.float64


def randoms(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a": (7, 5), "b": (11,), "c": (), "nothing": (0, 3)}
    return {n: torch.randn(s, generator=generator, dtype=torch.float32).to(dtype) for n, s in shapes.items()}


@settings(max_examples=15)
@given(data=st.data())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_arrival_order_and_segmentation_do_not_change_a_bit(dtype: torch.dtype, data: st.DataObject) -> None:
    start, gradients = randoms(0, dtype), [randoms(1 + w, dtype) for w in range(3)]
    weights = {0: 0.5, 1: 0.3, 2: 0.2}

    def result(pushes: list[tuple[int, int, int, memoryview]]) -> dict[str, torch.Tensor]:
        job = ShardJob(specs_of(start), num_shards=2, optimizer="Adam").start(start)
        for worker, shard, offset, content in pushes:
            job.push_range(job.key(worker, 0), shard, offset, content)
        job.commit(0, weights)
        return job.read(1)

    job = ShardJob(specs_of(start), num_shards=2)
    at_most = data.draw(st.sampled_from([3, 16, 1000]), "bytes a range")
    pushes = [(w, *r) for w, g in enumerate(gradients) for r in job.ranges(g, at_most=at_most)]
    shuffled = data.draw(st.permutations(pushes), "arrival")
    expected, got = result(pushes), result(shuffled)
    assert {n: t.tolist() for n, t in got.items()} == {n: t.tolist() for n, t in expected.items()}


def test_gradients_are_summed_in_worker_order_however_they_are_listed() -> None:
    start, gradients = randoms(0), [randoms(1 + w) for w in range(3)]

    def result(weights: dict[int, float]) -> dict[str, Any]:
        job = ShardJob(specs_of(start)).start(start)
        for worker, gradient in enumerate(gradients):
            job.push(worker, 0, gradient)
        job.commit(0, weights)
        return {n: t.tolist() for n, t in job.read(1).items()}

    assert result({2: 0.2, 0: 0.5, 1: 0.3}) == result({0: 0.5, 1: 0.3, 2: 0.2})


def test_gradients_are_weighted_by_samples_not_by_workers() -> None:
    # Oracle C-8: f = (w - x)^2 / 2 at w = 0; worker 0 has x = 1, 2, 3, worker 1 has x = 10.
    zero = {"w": torch.zeros(1, dtype=F64)}
    job = ShardJob(specs_of(zero)).start(zero)
    job.push(0, 0, {"w": torch.tensor([-2.0], dtype=F64)})
    job.push(1, 0, {"w": torch.tensor([-10.0], dtype=F64)})
    job.commit(0, {0: 3 / 4, 1: 1 / 4})
    assert job.read(1)["w"].item() == 4.0


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "RMSprop"])
def test_three_workers_with_unequal_shares_end_where_one_process_ends(optimizer: str, num_shards: int) -> None:
    # Oracle C-9: shares 5, 2, 1 over 20 steps, float64.
    options = {"lr": 0.05, "weight_decay": 0.01}
    generator = torch.Generator().manual_seed(5)
    model = torch.nn.Linear(4, 3, dtype=F64)
    plain = getattr(torch.optim, optimizer)(model.parameters(), **options)
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    job = ShardJob(specs_of(start), num_shards=num_shards, optimizer=optimizer, groups=[options]).start(start)
    replica = torch.nn.Linear(4, 3, dtype=F64)
    for version in range(20):
        x, y = torch.randn(8, 4, generator=generator, dtype=F64), torch.randn(8, 3, generator=generator, dtype=F64)
        replica.load_state_dict(job.read(version))
        for worker, (a, b) in enumerate([(0, 5), (5, 7), (7, 8)]):
            replica.zero_grad()
            torch.autograd.backward(torch.nn.functional.mse_loss(replica(x[a:b]), y[a:b]))
            job.push(worker, version, {n: p.grad for n, p in replica.named_parameters() if p.grad is not None})
        job.commit(version, {0: 5 / 8, 1: 2 / 8, 2: 1 / 8})
        plain.zero_grad()
        torch.autograd.backward(torch.nn.functional.mse_loss(model(x), y))
        plain.step()
    for name, value in job.read(20).items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("max_norm", [0.5, 1e6], ids=["clipped", "short enough"])
def test_two_phase_clipping_equals_clip_grad_norm_on_the_whole_aggregate(norm_type: float, max_norm: float) -> None:
    start, gradients = randoms(0, F64), [randoms(1, F64), randoms(2, F64)]
    job = ShardJob(specs_of(start), num_shards=3).start(start)
    for worker, gradient in enumerate(gradients):
        job.push(worker, 0, gradient)
    order = job.order(0, {0: 0.75, 1: 0.25}, norm_type=norm_type)
    parts = [store.aggregate(order) for store in job.stores]
    norm = max(parts) if math.isinf(norm_type) else sum(parts) ** (1 / norm_type)
    job.commit(0, {0: 0.75, 1: 0.25}, norm_type=norm_type, clip_coefficient=min(1.0, max_norm / (norm + 1e-6)))

    plain = {n: torch.nn.Parameter(t.clone()) for n, t in start.items()}
    for name, p in plain.items():
        p.grad = 0.75 * gradients[0][name] + 0.25 * gradients[1][name]
    # Without the empty tensor, of which torch cannot take the infinity norm.
    total = torch.nn.utils.clip_grad_norm_([p for p in plain.values() if p.numel()], max_norm, norm_type)
    assert norm == pytest.approx(total.item(), rel=1e-12)
    for name, value in job.read(1).items():
        clipped = plain[name].grad
        assert clipped is not None
        torch.testing.assert_close(value, plain[name].detach() - clipped, rtol=1e-12, atol=1e-12)


def test_a_commit_of_other_gradients_than_those_aggregated_is_summed_anew() -> None:
    zero = {"w": torch.zeros(1, dtype=F64)}
    job = ShardJob(specs_of(zero)).start(zero)
    job.push(0, 0, {"w": torch.tensor([-1.0], dtype=F64)})
    job.push(1, 0, {"w": torch.tensor([-3.0], dtype=F64)})
    assert job.stores[0].aggregate(job.order(0, {0: 0.5, 1: 0.5})) == 4.0
    job.commit(0, {1: 1.0})
    assert job.read(1)["w"].item() == 3.0


def test_a_scale_multiplies_rate_and_buffer_differences_of_one_commit_only() -> None:
    start = {"w": torch.zeros(1, dtype=F64), "mean": torch.zeros(1, dtype=F64)}
    job = ShardJob(specs_of(start, {"mean": TensorKind.FLOAT_BUFFER})).start(start)
    for version, scale in enumerate([0.5, 1.0]):
        job.push(0, version, {"w": torch.tensor([-2.0], dtype=F64), "mean": torch.tensor([8.0], dtype=F64)})
        job.commit(version, {0: 1.0}, scale=scale)
    assert {n: t.item() for n, t in job.read(2).items()} == {"w": 3.0, "mean": 12.0}


def test_hyperparameters_of_each_group_come_with_the_commit() -> None:
    start = {"a": torch.zeros(1, dtype=F64), "b": torch.zeros(1, dtype=F64)}
    job = ShardJob(specs_of(start, groups={"b": 1}), groups=[{"lr": 1.0}, {"lr": 2.0}]).start(start)
    ones = {n: -torch.ones(1, dtype=F64) for n in start}
    job.push(0, 0, ones)
    job.commit(0, {0: 1.0})
    job.push(0, 1, ones)
    job.commit(1, {0: 1.0}, groups=[{"lr": 10.0}, {"lr": 20.0}])
    assert {n: t.item() for n, t in job.read(2).items()} == {"a": 11.0, "b": 22.0}


BUFFERS = {
    "mean": TensorKind.FLOAT_BUFFER,
    "count": TensorKind.INTEGER_BUFFER,
    "pointer": TensorKind.INTEGER_BUFFER,
    "seen": TensorKind.INTEGER_BUFFER,
    "table": TensorKind.FROZEN,
    "mask": TensorKind.FLOAT_BUFFER,
}


def with_buffers(w: float, mean: float, count: int, pointer: int, seen: bool) -> dict[str, torch.Tensor]:
    return {
        "w": torch.tensor([w]),
        "mean": torch.tensor([mean]),
        "count": torch.tensor(count),
        "pointer": torch.tensor([pointer], dtype=torch.int32),
        "seen": torch.tensor([seen, False]),
        "table": torch.tensor([[3.0]], dtype=torch.float16),
        "mask": torch.tensor([0.0]),
    }


@pytest.mark.parametrize("num_shards", [1, 2, 5])
def test_buffers_of_every_kind_advance_as_in_one_process(num_shards: int) -> None:
    start = with_buffers(w=0.0, mean=10.0, count=41, pointer=7, seen=False) | {"mask": torch.tensor([-math.inf])}
    job = ShardJob(specs_of(start, BUFFERS), num_shards=num_shards).start(start)
    job.push(0, 0, with_buffers(w=-1.0, mean=4.0, count=42, pointer=0, seen=True))
    job.push(1, 0, with_buffers(w=-1.0, mean=8.0, count=42, pointer=0, seen=False))
    job.commit(0, {0: 0.75, 1: 0.25})
    expected = with_buffers(w=1.0, mean=15.0, count=42, pointer=0, seen=True) | {"mask": torch.tensor([-math.inf])}
    assert {n: t.tolist() for n, t in job.read(1).items()} == {n: t.tolist() for n, t in expected.items()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_float_types_are_summed_wide_and_rounded_once(dtype: torch.dtype) -> None:
    # 1 + 2 x 2^-12 rounds to 1 in 16 bits after each addition, and differs from 1 after one rounding of the whole
    # only if the sum was wide: 256 + 1 + 1 = 258 in bfloat16 (256 + 1 rounds back to 256).
    zero = {"w": torch.zeros(1, dtype=dtype)}
    job = ShardJob(specs_of(zero)).start(zero)
    for worker, value in enumerate([-1024.0, -4.0, -4.0]):
        job.push(worker, 0, {"w": torch.tensor([value], dtype=dtype)})
    job.commit(0, {0: 0.5, 1: 0.25, 2: 0.25})
    assert job.read(1)["w"].item() == torch.tensor(514.0).to(dtype).item()


def test_tensors_that_no_contribution_has_a_gradient_for_are_passed_over() -> None:
    start = {"a": torch.ones(3), "b": torch.ones(3)}
    job = ShardJob(specs_of(start), num_shards=2, groups=[{"lr": 1.0, "weight_decay": 0.5}]).start(start)
    job.push(0, 0, {n: torch.zeros(3) for n in start})
    job.commit(0, {0: 1.0}, absent=frozenset({1}))
    assert {n: t.tolist() for n, t in job.read(1).items()} == {"a": [0.5] * 3, "b": [1.0] * 3}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=str)
def test_a_shard_refuses_a_gradient_that_two_others_took(bad: float) -> None:
    start = {"w": torch.zeros(6)}
    job = ShardJob(specs_of(start), num_shards=3).start(start)
    poisoned = torch.ones(6)
    poisoned[3] = bad
    assert job.push(0, 0, {"w": poisoned}) == {
        0: PushStatus.COMPLETE,
        1: PushStatus.NOT_FINITE,
        2: PushStatus.COMPLETE,
    }
    job.push(1, 0, {"w": torch.full((6,), -4.0)})
    held = [store.bytes_held for store in job.stores]
    job.commit(0, {1: 1.0}, scale=0.5, discard=(GradientName(0, 1, 0),))
    assert job.read(1)["w"].tolist() == [2.0] * 6
    assert [store.bytes_held for store in job.stores] == held


def test_a_gradient_that_is_not_finite_cannot_be_committed() -> None:
    start = {"w": torch.zeros(1)}
    job = ShardJob(specs_of(start)).start(start)
    job.push(0, 0, {"w": torch.tensor([math.nan])})
    with pytest.raises(RefusedError, match=r"iteration 0 of worker 0 .* cannot be committed: it is NOT_FINITE"):
        job.commit(0, {0: 1.0})


def test_finite_numbers_whose_sum_overflows_are_finite() -> None:
    start = {"w": torch.zeros(4), "b": torch.zeros(2)}
    job = ShardJob(specs_of(start, {"b": TensorKind.FLOAT_BUFFER})).start(start)
    values = {"w": torch.full((4,), 3e38), "b": torch.full((2,), -3e38)}
    assert job.push(0, 0, values) == {0: PushStatus.COMPLETE}


def test_a_commit_without_contributions_moves_the_version_only() -> None:
    start = {"w": torch.ones(2)}
    job = ShardJob(specs_of(start), groups=[{"lr": 1.0, "weight_decay": 0.5}]).start(start)
    held = job.stores[0].bytes_held
    assert job.commit(0, {}, retain=frozenset({0})) == 1
    assert (job.read(0)["w"].tolist(), job.read(1)["w"].tolist()) == ([1.0, 1.0], [1.0, 1.0])
    assert job.stores[0].bytes_held == held
    job.push(0, 1, {"w": torch.zeros(2)})
    job.commit(1, {0: 1.0}, retain=frozenset({0}))
    assert (job.read(0)["w"].tolist(), job.read(2)["w"].tolist()) == ([1.0, 1.0], [0.5, 0.5])


def test_the_same_commit_again_is_answered_and_not_applied_again() -> None:
    start = {"w": torch.zeros(1)}
    job = ShardJob(specs_of(start)).start(start)
    job.push(0, 0, {"w": -torch.ones(1)})
    assert [job.commit(0, {0: 1.0}), job.commit(0, {0: 1.0})] == [1, 1]
    assert job.read(1)["w"].item() == 1.0


@pytest.mark.parametrize(
    ("version", "weights", "fields", "message"),
    [
        pytest.param(
            1, {0: 1.0}, {}, "a commit of version 1 cannot follow: the present one is 0", id="a version ahead"
        ),
        pytest.param(0, {1: 1.0}, {}, "iteration 0 of worker 1 .* has not arrived", id="a gradient that is not there"),
        pytest.param(0, {0: 1.0}, {"groups": [{"lr": -1}]}, "Invalid learning rate: -1", id="a negative rate"),
        pytest.param(0, {0: 1.0}, {"groups": [{"speed": 1}]}, "no hyperparameter `speed`", id="an unknown option"),
        pytest.param(
            0, {0: 1.0}, {"absent": frozenset({9})}, "absent must be indices", id="a tensor that is not there"
        ),
        pytest.param(0, {0: 0.5}, {}, "sum to 1", id="weights that do not sum to 1"),
        pytest.param(0, {0: math.nan}, {}, "sum to 1", id="a weight that is no number"),
        pytest.param(0, {0: 1.0}, {"scale": math.inf}, "scale must be", id="an infinite scale"),
        pytest.param(0, {0: 1.0}, {"norm_type": 0.0}, "norm_type must be above 0", id="norm type 0"),
        pytest.param(0, {0: 1.0}, {"clip_coefficient": 2.0}, "clip_coefficient must be", id="clipping that lengthens"),
    ],
)
def test_a_commit_that_cannot_be_is_refused_and_changes_nothing(
    version: int, weights: dict[int, float], fields: dict[str, Any], message: str
) -> None:
    start = {"w": torch.zeros(1)}
    job = ShardJob(specs_of(start)).start(start)
    job.push(0, 0, {"w": -torch.ones(1)})
    with pytest.raises((RefusedError, ValueError), match=message):
        job.commit(version, weights, **fields)
    assert job.read(0)["w"].item() == 0.0
    job.commit(0, {0: 1.0})
    assert job.read(1)["w"].item() == 1.0
