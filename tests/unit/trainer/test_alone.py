"""Alone, a session is plain PyTorch: the same numbers, bit by bit, as a loop written by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, StepLR

from heterotrain.alone import lone_grant
from training import make_data, make_model, make_session, plain_batches, train

CASES: dict[str, dict[str, Any]] = {
    "SGD with momentum": {"cls": torch.optim.SGD, "options": {"lr": 0.05, "momentum": 0.9}},
    "AdamW": {"cls": torch.optim.AdamW, "options": {"lr": 0.01, "weight_decay": 0.1}},
    "a schedule of steps over a ragged epoch": {
        "cls": torch.optim.SGD,
        "options": {"lr": 0.05},
        "scheduler": lambda optimizer: StepLR(optimizer, 3, 0.5),
    },
    "a schedule that also moves momentum": {
        "cls": torch.optim.SGD,
        "options": {"lr": 0.05, "momentum": 0.9},
        "scheduler": lambda optimizer: OneCycleLR(optimizer, max_lr=0.1, total_steps=20),
    },
    "a cosine schedule under Adam": {
        "cls": torch.optim.Adam,
        "options": {"lr": 0.05},
        "scheduler": lambda optimizer: CosineAnnealingLR(optimizer, 14),
    },
    "the 2-norm clipped": {"cls": torch.optim.SGD, "options": {"lr": 0.5}, "clip": (0.1, 2.0)},
    "the largest element clipped": {"cls": torch.optim.SGD, "options": {"lr": 0.5}, "clip": (0.01, math.inf)},
    "BatchNorm": {"cls": torch.optim.SGD, "options": {"lr": 0.05}, "norm": True},
}


def plain(model: nn.Module, case: dict[str, Any], epochs: int = 2) -> list[float]:
    data, losses = make_data(), []
    optimizer = case["cls"](model.parameters(), **case["options"])
    scheduler = case["scheduler"](optimizer) if "scheduler" in case else None
    for epoch in range(epochs):
        for inputs, targets in plain_batches(data, epoch):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            if "clip" in case:
                nn.utils.clip_grad_norm_(model.parameters(), *case["clip"])
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_equals_a_loop_by_hand_bit_by_bit(case: dict[str, Any]) -> None:
    ours, theirs = make_model(norm=case.get("norm", False)), make_model(norm=case.get("norm", False))
    session = make_session()
    options = dict(case["options"])
    if "scheduler" in case:
        options["scheduler"] = case["scheduler"]
    if "clip" in case:
        options["after_backward"] = lambda: session.clip_grad_norm_(*case["clip"])
    got, want = train(session, ours, case["cls"], **options), plain(theirs, case)
    assert len(want) == 14  # ceil(50 / 8) rounds, twice
    assert got == want
    for name, value in ours.state_dict().items():
        assert torch.equal(value, theirs.state_dict()[name]), name


@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("micro_batch", [1, 3, 7])
def test_micro_batches_give_the_gradient_of_the_whole(cls: type[torch.optim.Optimizer], micro_batch: int) -> None:
    whole, cut = make_model(torch.float64), make_model(torch.float64)
    data = make_data(dtype=torch.float64)
    train(make_session(), whole, cls, data=data, lr=0.01)
    losses = train(make_session(micro_batch=micro_batch), cut, cls, data=data, lr=0.01)
    assert len(losses) == 2 * (6 * math.ceil(8 / micro_batch) + math.ceil(2 / micro_batch))
    for name, value in whole.state_dict().items():
        difference = (cut.state_dict()[name] - value).norm() / value.norm()
        assert difference <= 1e-12, name


@pytest.mark.parametrize(
    ("samples", "batch", "sizes"),
    [(49, 8, [8, 8, 8, 8, 8, 7, 2]), (50, 8, [8, 8, 8, 8, 8, 8, 2]), (5, 2, [2, 3]), (1, 8, [1])],
    ids=["one would be left over", "two are left over", "one cannot be spared", "a data set of one sample"],
)
def test_no_rest_of_one_sample_is_left_for_batchnorm(samples: int, batch: int, sizes: list[int]) -> None:
    grants = [lone_grant(1, index, samples, batch, None, least=2) for index in range(len(sizes) + 1)]
    assert [g.samples for g in grants if g is not None] == sizes
    assert [p for g in grants if g for r in g.ranges for p in range(r.start, r.stop)] == list(range(samples))
    assert next(g.iteration for g in grants if g) == -(-samples // batch)


def test_a_script_with_batchnorm_trains_whatever_is_left_over() -> None:
    losses = train(make_session(micro_batch=3), make_model(norm=True), torch.optim.SGD, data=make_data(49), lr=0.05)
    assert len(losses) == 2 * (5 * 3 + 3 + 1)


def test_clipping_acts_on_the_sum_of_the_micro_batches() -> None:
    whole, cut = make_model(torch.float64), make_model(torch.float64)
    data = make_data(dtype=torch.float64)
    for model, micro_batch in ((whole, None), (cut, 3)):
        session = make_session(micro_batch=micro_batch)
        train(
            session, model, torch.optim.SGD, data=data, lr=0.5, after_backward=lambda s=session: s.clip_grad_norm_(0.1)
        )
    for name, value in whole.state_dict().items():
        assert torch.allclose(cut.state_dict()[name], value, rtol=1e-12, atol=1e-14), name


def test_a_parameter_without_gradient_is_passed_over_as_in_plain_pytorch() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.used(inputs)
            return out

    torch.manual_seed(0)
    model = Half()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    train(make_session(), model, torch.optim.AdamW, lr=0.1, weight_decay=0.5)
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"used.weight", "used.bias"}


def test_zero_grad_before_the_batch_changes_nothing() -> None:
    with_it, without = make_model(), make_model()
    session = make_session()
    model, optimizer, loader = session.prepare(with_it, torch.optim.SGD, make_data(), lr=0.05)
    for _ in session.epochs(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    train(make_session(), without, torch.optim.SGD, lr=0.05)
    assert all(torch.equal(a, b) for a, b in zip(with_it.parameters(), without.parameters(), strict=True))


def test_parameter_groups_keep_their_own_rates() -> None:
    ours, theirs = make_model(), make_model()

    def groups(model: nn.Sequential) -> list[dict[str, Any]]:
        return [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters()}]

    train(make_session(), ours, torch.optim.SGD, parameters=groups(ours), lr=0.01, momentum=0.5)
    optimizer = torch.optim.SGD(groups(theirs), lr=0.01, momentum=0.5)
    for epoch in range(2):
        for inputs, targets in plain_batches(make_data(), epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(theirs(inputs), targets).backward()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_the_model_counts_its_versions() -> None:
    session = make_session()
    train(session, make_model(), torch.optim.SGD, lr=0.1)
    assert (session.version, session.rank, session.num_workers, session.batch_size) == (14, 0, 1, 8)
