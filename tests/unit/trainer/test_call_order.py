"""Calls in the wrong order are refused, with the right one named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from heterotrain import Session, UsageError
from heterotrain.loader import Loader
from heterotrain.optimizer import RoundOptimizer
from training import make_data, make_model, make_session

Parts = tuple[Session, torch.nn.Module, RoundOptimizer, Loader]


def prepared() -> Parts:
    session = make_session()
    return session, *session.prepare(make_model(), torch.optim.SGD, make_data(), lr=0.1)


def compute(model: torch.nn.Module, batch: Any) -> None:
    torch.nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()


def loader_before_epochs(parts: Parts) -> None:
    next(iter(parts[3]))


def loader_after_epochs(parts: Parts) -> None:
    session, _, optimizer, loader = parts
    for _ in session.epochs(1):
        for _ in loader:
            optimizer.step()
    next(iter(loader))


def step_without_batch(parts: Parts) -> None:
    parts[2].step()


def second_step(parts: Parts) -> None:
    session, model, optimizer, loader = parts
    for _ in session.epochs(1):
        for batch in loader:
            compute(model, batch)
            optimizer.step()
            optimizer.step()


def batch_without_step(parts: Parts) -> None:
    for _ in parts[0].epochs(1):
        for _ in parts[3]:
            pass


def epoch_left_early(parts: Parts) -> None:
    for _ in parts[0].epochs(2):
        for _ in parts[3]:
            parts[2].step()
            break


def epoch_left_with_a_batch(parts: Parts) -> None:
    for _ in parts[0].epochs(2):
        for _ in parts[3]:
            break


def epochs_twice(parts: Parts) -> None:
    for _ in parts[0].epochs(1):
        for _ in parts[3]:
            parts[2].step()
    parts[0].epochs(1)


def closure(parts: Parts) -> None:
    parts[2].step(lambda: 0.0)


def clip_without_batch(parts: Parts) -> None:
    parts[0].clip_grad_norm_(1.0)


def prepare_twice(parts: Parts) -> None:
    parts[0].prepare(make_model(), torch.optim.SGD, make_data(), lr=0.1)


def group_added(parts: Parts) -> None:
    parts[2].add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})


def foreign_scheduler(parts: Parts) -> None:
    parts[0].schedule(torch.optim.lr_scheduler.StepLR(torch.optim.SGD(make_model().parameters(), lr=0.1), 1))


CASES: list[tuple[Callable[[Parts], None], str]] = [
    (loader_before_epochs, "only inside `for epoch in session.epochs"),
    (loader_after_epochs, "only inside `for epoch in session.epochs"),
    (step_without_batch, "must follow a batch from the loader"),
    (second_step, "once for each batch"),
    (batch_without_step, r"optimizer.step\(\) was not called for the last batch"),
    (epoch_left_early, "left before the epoch's samples were used up"),
    (epoch_left_with_a_batch, r"optimizer.step\(\) was not called for the last batch"),
    (epochs_twice, "can be used once"),
    (closure, "takes no closure"),
    (clip_without_batch, r"between loss.backward\(\) and optimizer.step\(\)"),
    (prepare_twice, "was called before"),
    (group_added, "groups cannot be added later"),
    (foreign_scheduler, "made on the optimizer that session.prepare returned"),
]


@pytest.mark.parametrize(("calls", "message"), CASES, ids=[c.__name__.replace("_", " ") for c, _ in CASES])
def test_is_refused(calls: Callable[[Parts], None], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        calls(prepared())


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.epochs(1),
        lambda s: s.clip_grad_norm_(1.0),
        lambda s: s.evaluate(lambda model: 0.0, make_data()),
        lambda s: s.schedule(torch.optim.lr_scheduler.StepLR(torch.optim.SGD(make_model().parameters(), lr=0.1), 1)),
    ],
    ids=["epochs", "clip_grad_norm_", "evaluate", "schedule"],
)
def test_prepare_comes_first(use: Callable[[Session], object]) -> None:
    with pytest.raises(UsageError, match=r"call session.prepare before session\."):
        use(make_session())


@pytest.mark.parametrize("count", [0, -1, 2.0, True])
def test_the_number_of_epochs_is_checked(count: Any) -> None:
    with pytest.raises(UsageError, match="whole number of at least 1"):
        prepared()[0].epochs(count)


def test_leaving_both_loops_ends_training_without_an_error() -> None:
    session, model, optimizer, loader = prepared()
    for _ in session.epochs(5):
        for batch in loader:
            compute(model, batch)
            optimizer.step()
            break
        break
    session.close()
    assert session.version == 1


def test_a_second_loop_in_an_epoch_goes_on_where_the_first_stopped() -> None:
    session, model, optimizer, loader = prepared()
    counts = []
    for _ in session.epochs(1):
        for part in range(2):
            count = 0
            for batch in loader:
                compute(model, batch)
                optimizer.step()
                count += 1
                if part == 0 and count == 3:
                    break
            counts.append(count)
    assert counts == [3, 4]
    assert len(loader) == 7
