"""Whole jobs in every mode of synchronisation, and changes of it while they run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from heterotrain_core import run_effects as out
from heterotrain_core import run_events as ev
from heterotrain_core.run_state import SynchronizationView
from heterotrain_core.run_values import Phase
from heterotrain_core.synchronization import (
    BSP,
    NO_DISCOUNT,
    Asp,
    Backup,
    Delay,
    Dssp,
    Ssp,
    Synchronization,
    SyncMode,
)
from heterotrain_core.types import EpochEnd, Grant, TrainingEnd
from run_driver import FOUR, Driver, Script, make_config, make_manifest

SAMPLES = 20
EPOCHS = 3
MODES: list[Synchronization] = [
    BSP,
    Asp(),
    Ssp(1),
    Dssp(0, 2),
    Delay(0.05, 3),
    Delay(0.0, None, NO_DISCOUNT),
    Delay(None, None),
    Backup(1),
]


def make_driver(synchronization: Synchronization, *, silent: str = "", from_iteration: int = 1) -> Driver:
    config = replace(make_config(FOUR), synchronization=synchronization)
    return Driver(config, [Script(n, silent_from=from_iteration if n == silent else None) for n in FOUR])


def play(driver: Driver, timers: int = 200) -> None:
    """Let timers of rounds fire (not those of leases) until nothing happens any more."""
    for _ in range(timers):
        due = driver.run.next_timer
        if driver.run.outcome is not None or due > driver.now + 1.0:
            return
        driver.now = max(driver.now, due)
        driver.tell(ev.TimerFired())


def committed(driver: Driver) -> Counter[tuple[int, int]]:
    """How often each position of each epoch is in a commit."""
    grants = {(list(FOUR).index(s.name), g.iteration): g for s in driver.scripts.values() for g in s.grants}
    keys = [(key.worker, key.iteration) for c in driver.of(out.CommitRound) for key, _ in c.contributions]
    return Counter((r.epoch, p) for key in keys for r in grants[key].ranges for p in range(r.start, r.stop))


@pytest.mark.parametrize("synchronization", MODES, ids=str)
def test_every_sample_is_committed_once_and_every_gradient_gone_at_the_end(synchronization: Synchronization) -> None:
    driver = make_driver(synchronization)
    driver.start()
    play(driver)
    assert driver.outcome.phase is Phase.SUCCEEDED
    assert committed(driver) == Counter({(e, p): 1 for e in range(EPOCHS) for p in range(SAMPLES)})
    commits = driver.of(out.CommitRound)
    assert [c.version for c in commits] == list(range(len(commits)))
    assert all(sum(weight for _, weight in c.contributions) == pytest.approx(1.0) for c in commits if c.contributions)
    for script in driver.scripts.values():
        kinds = [type(i).__name__ for i in script.items] or [kind for kind, _, _ in script.steps]
        assert kinds[-1] == "TrainingEnd"
        assert [kind for kind, _, _ in script.steps].count("EpochEnd") == EPOCHS


def test_a_gradient_that_comes_too_late_is_discarded_its_samples_given_out_again() -> None:
    driver = make_driver(Backup(1), silent="cpu-1", from_iteration=0)
    driver.start()
    driver.scripts["cpu-1"].silent_from = None
    driver.tell(ev.Heartbeat("gpu-0"))
    assert driver.outcome.phase is Phase.SUCCEEDED
    # It was told the end of the first epoch before it was done: that item says so, and no other.
    told = [(m.item, m.dropped) for m in _works(driver, "cpu-1")]
    assert [type(item).__name__ for item, dropped in told if dropped] == ["EpochEnd"]
    assert told[1][1]
    assert committed(driver) == Counter({(e, p): 1 for e in range(EPOCHS) for p in range(SAMPLES)})


def test_shards_discard_a_gradient_that_came_too_late_with_the_next_commit() -> None:
    driver = make_driver(Backup(1))
    late = Script("cpu-1", silent_from=0)
    driver.scripts["cpu-1"] = late
    for name in ("gpu-0", "gpu-1", "cpu-0"):
        driver.scripts[name].silent_from = 1
    driver.start()
    late.silent_from = 1
    driver.tell(ev.Heartbeat("cpu-1"))
    for script in driver.scripts.values():
        script.silent_from = None
    driver.tell(ev.Heartbeat("cpu-1"))
    assert driver.outcome.phase is Phase.SUCCEEDED
    first, second, *_ = driver.of(out.CommitRound)
    assert ([key.worker for key, _ in first.contributions], first.discard) == ([0, 1, 2], ())
    assert second.discard == (out.GradientKey(3, 1, 0),)
    assert [m.dropped for m in _works(driver, "cpu-1")][:2] == [False, True]


def _works(driver: Driver, worker: str) -> list[out.Work]:
    return [e.message for e in driver.of(out.Send) if e.worker == worker and isinstance(e.message, out.Work)]


def test_the_version_that_a_slow_worker_computes_on_is_kept_until_it_is_done() -> None:
    driver = make_driver(Asp(), silent="cpu-1", from_iteration=0)
    driver.start()
    base = driver.scripts["cpu-1"].grants[0].version
    waiting = driver.of(out.CommitRound)
    assert waiting
    assert all(base in c.retain for c in waiting)
    driver.scripts["cpu-1"].silent_from = None
    driver.tell(ev.Heartbeat("cpu-1"))
    later = driver.of(out.CommitRound)[len(waiting) :]
    assert later
    assert not any(base in c.retain for c in later)


def test_a_round_closes_when_its_window_is_over_and_not_before() -> None:
    driver = make_driver(Delay(0.05, 3), silent="cpu-1", from_iteration=0)
    driver.start()
    assert driver.of(out.CommitRound) == []
    due = driver.run.next_timer
    assert 0 < due - driver.now <= 0.05
    driver.now = due - 0.002
    driver.tell(ev.TimerFired())
    assert driver.of(out.CommitRound) == []
    driver.now = due
    driver.tell(ev.TimerFired())
    (commit,) = driver.of(out.CommitRound)
    assert [key.worker for key, _ in commit.contributions] == [0, 1, 2]
    assert commit.scale == pytest.approx(7 / 8)


def apply(driver: Driver, synchronization: Synchronization, generation: int = 0) -> out.AnswerPlan:
    before = len(driver.of(out.AnswerPlan))
    driver.tell(ev.PlanRequested(1, generation, {}, "as asked", 5.0, synchronization))
    return driver.of(out.AnswerPlan)[before]


def synchronization_of(driver: Driver) -> SynchronizationView:
    return driver.run.view(driver.now).synchronization


@pytest.mark.parametrize("after", MODES, ids=str)
@pytest.mark.parametrize("before", [BSP, Asp(), Delay(0.0, 3), Backup(1)], ids=str)
def test_the_mode_changes_while_the_job_runs(before: Synchronization, after: Synchronization) -> None:
    driver = make_driver(before)
    for name in ("gpu-1", "cpu-1"):  # so that no mode ends the job without them
        driver.scripts[name].silent_from = 0
    driver.start()
    play(driver)
    assert apply(driver, after).refusals == ()
    assert synchronization_of(driver).wanted == after
    for script in driver.scripts.values():
        script.silent_from = None
    driver.tell(ev.Heartbeat("cpu-1"))
    play(driver)
    assert driver.outcome.phase is Phase.SUCCEEDED
    assert committed(driver) == Counter({(e, p): 1 for e in range(EPOCHS) for p in range(SAMPLES)})
    view = synchronization_of(driver)
    assert (view.mode, view.wanted) == (after.mode, after)


def test_a_lowered_bound_is_in_force_when_the_gradients_beyond_it_are_in() -> None:
    driver = make_driver(Ssp(8), silent="cpu-1", from_iteration=0)
    driver.start()
    assert apply(driver, Ssp(0)).refusals == ()
    view = synchronization_of(driver)
    assert view.wanted == Ssp(0)
    driver.scripts["cpu-1"].silent_from = None
    driver.tell(ev.Heartbeat("cpu-1"))
    view = synchronization_of(driver)
    assert (view.mode, view.bound_in_force) == (SyncMode.SSP, 0)
    assert driver.outcome.phase is Phase.SUCCEEDED


def test_backup_workers_must_leave_somebody_to_wait_for() -> None:
    driver = make_driver(BSP, silent="cpu-1", from_iteration=0)
    driver.start()
    answer = apply(driver, Backup(4))
    assert [r.reason for r in answer.refusals] == ["4 backup workers of 4 leave nobody to wait for: give fewer"]
    assert synchronization_of(driver).wanted == BSP


def test_momentum_with_stale_gradients_is_warned_of_once() -> None:
    # The first worker uses the epoch up; then the first gradients of the 24 others come, all of them stale.
    many = {f"w-{i}": 1 for i in range(25)}
    config, manifest = replace(make_config(many), synchronization=Asp()), make_manifest(dataset_size=40)
    driver = Driver(config, [Script(n, epochs=1, manifest=manifest) for n in many])
    driver.start()
    warnings = [e.message for e in driver.run.view(driver.now).events if e.reason == "MomentumWithStaleness"]
    assert len(warnings) == 1
    assert "momentum is 0.9" in warnings[0]


def test_what_is_seen_of_staleness_adds_up_to_all_gradients() -> None:
    driver = make_driver(Asp())
    driver.start()
    view = synchronization_of(driver)
    gradients = sum(len(c.contributions) for c in driver.of(out.CommitRound))
    assert sum(view.staleness.values()) == gradients
    assert max(view.staleness) == view.largest_staleness > 0


def test_items_come_in_the_order_in_which_they_must_be_taken() -> None:
    driver = make_driver(Asp())
    driver.start()
    for script in driver.scripts.values():
        versions = [version for _, version, _ in script.steps]
        assert versions == sorted(versions)
        assert script.steps[-1][0] == TrainingEnd.__name__
        assert {kind for kind, _, _ in script.steps} == {Grant.__name__, EpochEnd.__name__, TrainingEnd.__name__}
