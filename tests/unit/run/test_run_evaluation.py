"""Evaluations: shared out by speed, every sample once, the same for all; scripts that do not agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_core import run_effects as out
from heterotrain_core import run_events as ev
from heterotrain_core.evaluation import EvaluationBoard
from heterotrain_core.run_values import Phase, RunFault, RunReason
from run_driver import FOUR, Driver, Script, make_config, make_manifest


def call(driver: Driver, script: Script, epoch: int) -> None:
    script.evaluating = True
    driver.later(ev.EvaluationCalled(script.name, epoch + 1, 100))


def evaluating(speeds: dict[str, float]) -> Driver:
    driver = Driver(make_config(FOUR), [Script(n, speed=s, at_epoch_end=call) for n, s in speeds.items()])
    driver.start()
    return driver


def test_an_evaluation_is_shared_out_by_speed_and_all_get_the_sum() -> None:
    driver = evaluating({"gpu-0": 50.0, "gpu-1": 30.0, "cpu-0": 20.0, "cpu-1": 0.001})
    works = [(e.worker, e.message) for e in driver.of(out.Send) if isinstance(e.message, out.EvaluationWork)]
    assert works[:4] == [
        ("gpu-0", out.EvaluationWork(1, 0, 50)),
        ("gpu-1", out.EvaluationWork(1, 50, 80)),
        ("cpu-0", out.EvaluationWork(1, 80, 100)),
        ("cpu-1", out.EvaluationWork(1, 100, 100)),
    ]
    outcomes = [e for e in driver.of(out.Send) if isinstance(e.message, out.EvaluationOutcome)]
    assert outcomes[:4] == [out.Send(n, out.EvaluationOutcome(1, {"right": 100.0}, 100)) for n in FOUR]
    assert len(outcomes) == 12
    view = driver.run.view(driver.now)
    # Each call, part and outcome is an event, of a millisecond each. The last evaluation follows the training.
    assert 0.004 < view.evaluation_seconds < 0.5 * view.training_seconds
    assert view.mean_samples_per_second == view.samples / (view.training_seconds - view.evaluation_seconds)
    assert driver.outcome.phase is Phase.SUCCEEDED


def test_before_anything_was_measured_shares_decide() -> None:
    board = EvaluationBoard()
    for name in FOUR:
        board.call(name, 1, 16, 0)
    sends = board.share_out(list(FOUR), {}, FOUR)
    assert [s.message for s in sends] == [
        out.EvaluationWork(1, 0, 8),
        out.EvaluationWork(1, 8, 12),
        out.EvaluationWork(1, 12, 14),
        out.EvaluationWork(1, 14, 16),
    ]


def test_the_speed_of_the_evaluation_before_counts_more_than_that_of_training() -> None:
    board = EvaluationBoard()
    for name in ("a", "b"):
        board.call(name, 1, 10, 0)
    board.share_out(["a", "b"], {"a": 1.0, "b": 1.0}, {})
    board.part("a", 1, {"n": 5.0}, seconds=1.0)
    board.part("b", 1, {"n": 5.0}, seconds=4.0)
    for name in ("a", "b"):
        board.call(name, 2, 10, 0)
    sends = board.share_out(["a", "b"], {"a": 1.0, "b": 1.0}, {})
    assert [s.message for s in sends] == [out.EvaluationWork(2, 0, 8), out.EvaluationWork(2, 8, 10)]


@given(
    total=st.integers(0, 500),
    speeds=st.dictionaries(st.sampled_from("abcdefg"), st.floats(0.001, 1e6), min_size=1),
)
def test_every_sample_is_given_once_in_worker_order(total: int, speeds: dict[str, float]) -> None:
    board = EvaluationBoard()
    for name in speeds:
        board.call(name, 1, total, 0)
    sends = board.share_out(list(speeds), speeds, {})
    works = [s.message for s in sends if isinstance(s.message, out.EvaluationWork)]
    covered = [i for work in works for i in range(work.start, work.stop)]
    assert covered == list(range(total))
    assert [s.worker for s in sends] == list(speeds)


def test_sums_are_added_in_worker_order_whatever_order_they_come_in() -> None:
    parts = {"a": 0.1, "b": 0.2, "c": 0.3}
    for order in (["a", "b", "c"], ["c", "b", "a"]):
        board = EvaluationBoard()
        for name in parts:
            board.call(name, 1, 3, 0)
        board.share_out(list(parts), {}, dict.fromkeys(parts, 1))
        sends = [s for name in order for s in board.part(name, 1, {"x": parts[name]}, 1.0)]
        assert sends[0].message == out.EvaluationOutcome(1, {"x": 0.1 + 0.2 + 0.3}, 3)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        pytest.param(("b", 1, 11), "worker b has a data set of 11 samples, worker a of 10", id="size"),
        pytest.param(("b", 2, 10), "worker b is at its evaluation 2 while worker a is at 1", id="order"),
        pytest.param(("a", 2, 10), "worker a called evaluation 2", id="twice without an answer"),
    ],
)
def test_calls_that_do_not_agree(second: tuple[str, int, int], words: str) -> None:
    board = EvaluationBoard()
    board.call("a", 1, 10, 0)
    with pytest.raises(RunFault, match=words) as fault:
        board.call(*second, 0)
    assert fault.value.reason is RunReason.SCRIPTS_DIFFER


def test_other_names_of_sums_do_not_agree() -> None:
    board = EvaluationBoard()
    for name in ("a", "b"):
        board.call(name, 1, 4, 0)
    board.share_out(["a", "b"], {}, {"a": 1, "b": 1})
    board.part("a", 1, {"right": 1.0}, 1.0)
    with pytest.raises(RunFault, match=r"worker b measured \['loss'\], worker a \['right'\]"):
        board.part("b", 1, {"loss": 1.0}, 1.0)


def test_an_evaluation_that_only_one_worker_reaches_is_found_out_instead_of_waiting_for_ever() -> None:
    driver = Driver(make_config(FOUR), [Script(n, silent_from=1 if n == "gpu-0" else None) for n in FOUR])
    driver.start()
    driver.tell(ev.EvaluationCalled("gpu-0", 1, 10))
    assert driver.outcome.reason is RunReason.SCRIPTS_DIFFER
    assert driver.outcome.message == (
        "worker gpu-0 calls session.evaluate in round 1 while worker gpu-1 waits for its gradient: "
        "all workers must evaluate at the same places of the script"
    )


def test_a_worker_without_a_part_of_the_last_round_is_found_waiting_too() -> None:
    # An epoch of one round of 8 and one of 1 sample: b-0 has done all that it was granted, a-0 evaluates instead.
    names = {"a-0": 6, "b-0": 2}
    scripts = [Script(n, manifest=make_manifest(dataset_size=9), silent_from=1 if n == "a-0" else None) for n in names]
    driver = Driver(make_config(names), scripts)
    driver.start()
    assert [[g.iteration for g in s.grants] for s in scripts] == [[0, 1], [0]]
    driver.tell(ev.EvaluationCalled("a-0", 1, 10))
    assert driver.outcome.reason is RunReason.SCRIPTS_DIFFER
    assert "worker a-0 calls session.evaluate in round 1 while worker b-0 waits" in driver.outcome.message


def test_a_worker_between_two_epochs_is_not_taken_for_one_that_waits() -> None:
    # One round an epoch; b-0 gets no samples: at the end of an epoch it may come to the evaluation later than a-0.
    names, late = {"a-0": 7, "b-0": 1}, []

    def call_later(driver: Driver, script: Script, epoch: int) -> None:
        driver.later(ev.Heartbeat(script.name, version=epoch + 1))
        if script.name == "a-0":
            call(driver, script, epoch)
        else:
            script.evaluating = True
            late.append(epoch)

    manifest = make_manifest(dataset_size=3)
    driver = Driver(make_config(names), [Script(n, manifest=manifest, at_epoch_end=call_later) for n in names])
    driver.start()
    for epoch in range(3):
        assert (driver.run.outcome, late) == (None, list(range(epoch + 1)))
        driver.tell(ev.EvaluationCalled("b-0", epoch + 1, 100))
    assert driver.outcome.phase is Phase.SUCCEEDED


def test_one_version_is_evaluated_when_workers_hold_different_ones() -> None:
    board = EvaluationBoard()
    for name, version in {"a": 7, "b": 9, "c": 9}.items():
        board.call(name, 1, 10, version)
    sends = board.share_out(["a", "b", "c"], {"a": 9.0, "b": 4.0, "c": 1.0}, {})
    assert [s.message for s in sends] == [
        out.EvaluationWork(1, 0, 0),
        out.EvaluationWork(1, 0, 8),
        out.EvaluationWork(1, 8, 10),
    ]


def test_a_drained_worker_evaluates_nothing_since_its_version_is_older() -> None:
    def evaluate_at_the_end(driver: Driver, script: Script) -> None:
        if driver.run.outcome is None:
            script.evaluating = True
            driver.later(ev.EvaluationCalled(script.name, 1, 100, version=script.steps[-1][1]))

    scripts = {n: Script(n, silent_from=1, at_end=evaluate_at_the_end) for n in FOUR}
    driver = Driver(make_config(FOUR), scripts.values())
    driver.start()
    driver.tell(ev.DrainCommanded(1, "gpu-1"))
    for name, script in scripts.items():
        script.silent_from = None if name == "gpu-1" else 4
    driver.tell(ev.Heartbeat("gpu-0"))
    assert (scripts["gpu-1"].evaluating, driver.run.view(driver.now).version) == (True, 4)
    for name in ("gpu-0", "cpu-0", "cpu-1"):
        driver.tell(ev.EvaluationCalled(name, 1, 100, version=4))
    works = {e.worker: e.message for e in driver.of(out.Send) if isinstance(e.message, out.EvaluationWork)}
    assert {name: work.stop - work.start for name, work in works.items()} == {
        "gpu-0": 34, "gpu-1": 0, "cpu-0": 33, "cpu-1": 33,
    }  # fmt: skip


def test_a_worker_that_leaves_is_not_waited_for() -> None:
    driver = Driver(make_config({"a-0": 2, "b-0": 2}), [Script(n, at_end=lambda _d, _s: None) for n in ("a-0", "b-0")])
    driver.start()
    driver.tell(ev.EvaluationCalled("a-0", 1, 10))
    driver.tell(ev.SaidGoodbye("b-0"))
    outcomes = [e for e in driver.of(out.Send) if isinstance(e.message, out.EvaluationOutcome)]
    assert outcomes == [out.Send("a-0", out.EvaluationOutcome(1, {"right": 10.0}, 10))]


def test_an_evaluation_before_training_waits_for_workers_that_have_not_joined() -> None:
    driver = Driver(make_config({"a-0": 3, "b-0": 1}))
    driver.tell(ev.Joined("a-0", 1))
    assert driver.tell(ev.EvaluationCalled("a-0", 1, 8)) == []
    driver.tell(ev.Joined("b-0", 1), ev.EvaluationCalled("b-0", 1, 8))
    works = [e.message for e in driver.of(out.Send) if isinstance(e.message, out.EvaluationWork)]
    assert works == [out.EvaluationWork(1, 0, 6), out.EvaluationWork(1, 6, 8)]
