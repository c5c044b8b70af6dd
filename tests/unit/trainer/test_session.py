"""Schedules, evaluation, reports, logs and the emulation of slower machines, alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

import heterotrain
from heterotrain import UsageError
from heterotrain.randomness import permutation
from heterotrain.settings import Settings
from training import FakeTime, make_data, make_model, make_session, train


def test_a_schedule_by_epoch_moves_once_an_epoch() -> None:
    session = make_session()
    _, optimizer, loader = session.prepare(make_model(), torch.optim.SGD, make_data(), lr=1.0)
    schedule = session.schedule(StepLR(optimizer, 1, 0.5), per="epoch")
    rates = []
    for _ in session.epochs(3):
        for _ in loader:
            optimizer.step()
            schedule.step()  # due only once the last samples are used
        rates.append(schedule.get_last_lr())
        schedule.step()
        schedule.step()  # again: nothing more is due
    assert rates == [[0.5], [0.25], [0.125]]
    assert schedule.get_last_lr() == [0.125]


def test_a_plateau_schedule_takes_its_value() -> None:
    session = make_session()
    _, optimizer, loader = session.prepare(make_model(), torch.optim.SGD, make_data(), lr=1.0)
    schedule = session.schedule(ReduceLROnPlateau(optimizer, patience=0), per="epoch")
    for _ in session.epochs(2):
        for _ in loader:
            optimizer.step()
        schedule.step(1.0)
    assert schedule.get_last_lr() == pytest.approx([0.1])
    with pytest.raises(UsageError, match="needs the measured value"):
        schedule.step()


@pytest.mark.parametrize(
    ("make", "per", "message"),
    [
        (lambda o: StepLR(o, 1), "round", "'samples' or 'epoch'"),
        (ReduceLROnPlateau, "samples", "per='epoch'"),
    ],
)
def test_a_schedule_that_cannot_be_followed_is_refused(make: Any, per: Any, message: str) -> None:
    session = make_session()
    _, optimizer, _ = session.prepare(make_model(), torch.optim.SGD, make_data(), lr=1.0)
    with pytest.raises(UsageError, match=message):
        session.schedule(make(optimizer), per=per)


def correct(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (model(inputs).argmax(1) == targets).sum()


def test_an_evaluation_is_a_mean_over_the_samples() -> None:
    session, data, model = make_session(), make_data(), make_model(norm=True)
    session.prepare(model, torch.optim.SGD, data, lr=0.1)
    model.eval()
    want = correct(model, *data[:]).item() / 50
    model.train()
    model[1].eval()
    modes = [module.training for module in model.modules()]

    def measure(model: nn.Module, *batch: torch.Tensor) -> dict[str, Any]:
        assert not model.training
        assert not torch.is_grad_enabled()
        return {"accuracy": correct(model, *batch), "samples": len(batch[0])}

    assert session.evaluate(correct, data, batch_size=7) == want
    assert session.evaluate(measure, data, batch_size=7) == {"accuracy": want, "samples": 1.0}
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize("result", ["many", torch.zeros(2), None])
def test_a_measure_must_give_numbers(result: Any) -> None:
    session = make_session()
    session.prepare(make_model(), torch.optim.SGD, make_data(), lr=0.1)
    with pytest.raises(UsageError, match="its result must be a number or a tensor of one element"):
        session.evaluate(lambda model, *batch: result, make_data())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loss": math.nan}, "loss must be finite"),
        ({"loss": "low"}, "loss must be a number"),
        ({"a-b": 1.0}, "1 to 63 ASCII letters, digits or _"),
        ({"_hidden": 1.0}, "1 to 63 ASCII letters"),
    ],
)
def test_reports_are_checked(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_session().report(**values)


def test_reports_take_tensors() -> None:
    make_session().report(loss=torch.tensor(1.5), rounds=3)


def test_the_sample_log_has_a_line_for_each_round(tmp_path: Path) -> None:
    log = tmp_path / "samples.txt"
    session = make_session(micro_batch=3, settings=Settings(sample_log=log))
    train(session, make_model(), torch.optim.SGD, lr=0.1)
    rows = [[int(word) for word in line.split()] for line in log.read_text().splitlines()]
    assert [row[:2] for row in rows] == [[epoch, 7 * epoch + i] for epoch in range(2) for i in range(7)]
    for epoch in range(2):
        assert [i for row in rows if row[0] == epoch for i in row[2:]] == permutation(7, epoch, 50).tolist()


def test_a_compute_phase_is_stretched_to_a_multiple_of_its_cpu_time() -> None:
    time = FakeTime()
    session = make_session(batch_size=25, settings=Settings(stretch=3.0), time=time)
    _, optimizer, loader = session.prepare(make_model(), torch.optim.SGD, make_data(), lr=0.1)
    for _ in session.epochs(1):
        for i, _ in enumerate(loader):
            time.now, time.cpu = time.now + 2.0, time.cpu + (1.0 if i == 0 else 0.5)
            optimizer.step()
    assert time.slept == [1.0]  # 3 x 1 s - 2 s; then 3 x 0.5 s is less than the 2 s it took


def test_alone_the_optimizers_state_can_be_saved_and_loaded() -> None:
    session = make_session()
    _, optimizer, loader = session.prepare(make_model(), torch.optim.SGD, make_data(), lr=0.1, momentum=0.9)
    saved = optimizer.state_dict()
    saved["param_groups"][0]["lr"] = 0.25
    optimizer.load_state_dict(saved)
    seen = [optimizer.param_groups[0]["lr"]]
    schedule = session.schedule(StepLR(optimizer, 1, 0.5))
    for _ in session.epochs(1):
        for _ in loader:
            optimizer.step()
            schedule.step()
    assert seen == [0.25]
    assert optimizer.param_groups[0]["lr"] == 0.25 * 0.5**7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs batch_size and seed when the script runs alone"),
        ({"batch_size": 8}, "needs seed when"),
        ({"seed": 8}, "needs batch_size when"),
        ({"batch_size": 0, "seed": 1}, "batch_size: must be a whole number of at least 1"),
        ({"batch_size": 2.0, "seed": 1}, "batch_size: must be a whole number"),
        ({"batch_size": 2, "seed": -1}, "seed: must be a whole number of at least 0"),
    ],
)
def test_join_alone_needs_its_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        heterotrain.join(**arguments)


def test_join_makes_the_same_model_each_time_and_one_session_at_a_time() -> None:
    weights = []
    for _ in range(2):
        with heterotrain.join(batch_size=8, seed=3):
            weights.append(nn.Linear(2, 2).weight)
            with pytest.raises(UsageError, match="a process has one session"):
                heterotrain.join(batch_size=8, seed=3)
    assert torch.equal(*weights)
