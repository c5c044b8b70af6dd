"""Workers that are lost, come back, leave and are added while the job runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_core import run_effects as out
from heterotrain_core import run_events as ev
from heterotrain_core.memory import MemoryUse
from heterotrain_core.run import TrainingRun
from heterotrain_core.run_values import Phase, RunConfig, RunReason, WorkerPhase
from heterotrain_core.synchronization import Asp, Backup, Bsp, Delay, Dssp, Ssp, Synchronization
from heterotrain_core.types import Bounds, EpochEnd, SampleRange, Share
from run_driver import Driver, Script, make_config, make_manifest

THREE = {"a-0": 4, "a-1": 2, "b-0": 2}
EPOCHS, SAMPLES = 3, 20


def config(**changes: object) -> RunConfig:
    return replace(make_config(THREE, rejoin_limit=3), **changes)  # type: ignore[arg-type]


def paused(at: int = 1, **changes: object) -> Driver:
    """A job whose workers do nothing from iteration `at` on, until `go`."""
    driver = Driver(config(**changes), [Script(n, silent_from=at) for n in THREE])
    driver.start()
    return driver


def go(driver: Driver) -> None:
    for script in driver.scripts.values():
        script.silent_from = None
    driver.tell(ev.Heartbeat(next(iter(driver.scripts))))


def phases(driver: Driver) -> dict[str, WorkerPhase]:
    return {w.name: w.phase for w in driver.run.view(driver.now).workers}


def shares(driver: Driver) -> dict[str, int]:
    return driver.run.view(driver.now).plan.samples


def assert_all_samples_once(driver: Driver) -> None:
    assert driver.outcome.phase is Phase.SUCCEEDED, driver.outcome
    covered = [(r.epoch, i) for r in driver.committed_samples() for i in range(r.start, r.stop)]
    assert covered == [(epoch, i) for epoch in range(EPOCHS) for i in range(SAMPLES)]


def test_the_others_go_on_with_the_share_and_the_samples_of_a_lost_worker() -> None:
    driver = paused()
    lost = driver.scripts["a-1"].grants[-1].ranges
    effects = driver.lose("a-1")
    assert shares(driver) == {"a-0": 6, "b-0": 2}, "in proportion"
    assert effects[:2] == [
        out.Dismiss("a-1", "lost to the job: closed", fault=False, again=True),
        out.SeatWorkers(1, (("a-0", 1), ("a-1", 2), ("b-0", 1))),
    ]
    go(driver)
    assert_all_samples_once(driver)
    again = [g for n in ("a-0", "b-0") for g in driver.scripts[n].grants if set(g.ranges) & set(lost)]
    assert again, "what it held was handed out once more"
    assert phases(driver) == {
        "a-0": WorkerPhase.FINISHED, "a-1": WorkerPhase.LOST, "b-0": WorkerPhase.FINISHED
    }  # fmt: skip


def test_a_lost_worker_is_in_no_commit_and_its_gradient_is_discarded() -> None:
    driver = paused()
    driver.scripts["a-1"].silent_from = None
    driver.tell(ev.Heartbeat("a-1"))  # its gradient of round 1 is in
    driver.lose("a-1")
    go(driver)
    commit = driver.of(out.CommitRound)[1]
    assert ({k.worker for k, _ in commit.contributions}, commit.discard[:1]) == ({0, 2}, (out.GradientKey(1, 1, 1),))
    assert commit.scale == 1.0, "it is out of the denominator too"
    assert_all_samples_once(driver)


def test_a_worker_that_comes_back_has_a_new_incarnation_one_version_and_a_share() -> None:
    driver = paused()
    driver.lose("a-1")
    driver.join("a-1")
    assert [e.message for e in driver.of(out.Send) if e.worker == "a-1"][-2:] == [
        out.Welcome(1, 2, driver.config.workers[1].bounds),
        out.ManifestAccepted(False, 1),
    ]
    assert shares(driver) == {"a-0": 3, "a-1": 2, "b-0": 3}, "by speeds, which are known of all and equal"
    go(driver)
    assert_all_samples_once(driver)
    keys = {k for c in driver.of(out.CommitRound) for k, _ in c.contributions if k.worker == 1}
    assert {k.incarnation for k in keys if k.iteration > 2} == {2}


def test_the_version_that_a_newcomer_pulls_is_kept_until_it_is_done() -> None:
    driver = paused()
    driver.lose("a-1")
    driver.script_starts = False
    driver.join("a-1")
    for name in ("a-0", "b-0"):
        driver.scripts[name].silent_from = None
    driver.tell(ev.Heartbeat("a-0"))
    assert driver.published > 3
    assert all(1 in c.retain for c in driver.of(out.CommitRound) if c.version > 1)


def test_silence_for_a_lease_is_a_loss_and_the_ghost_begins_anew() -> None:
    driver = paused()
    for _ in range(4):
        driver.now += 5.0
        driver.tell(ev.Heartbeat("a-0"), ev.Heartbeat("b-0"), ev.TimerFired())
    assert phases(driver)["a-1"] is WorkerPhase.LOST
    dismissed = out.Dismiss("a-1", "lost to the job: silent for 15 s", fault=False, again=True)
    assert dismissed in driver.effects
    driver.tell(ev.Done("a-1", 1, 1, 1, 2), ev.Heartbeat("a-1"))  # what the ghost still says is passed over
    driver.join("a-1")
    go(driver)
    assert_all_samples_once(driver)


def test_a_second_process_waits_while_the_first_has_its_lease() -> None:
    driver = paused()
    words = "worker a-1 is in the job already, from here"
    assert driver.tell(ev.Joined("a-1", 1)) == [out.RefuseJoin("a-1", words, retry=True)]


def test_one_loss_more_than_the_limit_fails_the_job() -> None:
    driver = paused()
    for _ in range(3):
        driver.lose("a-1")
        driver.join("a-1")
    driver.lose("a-1", "killed")
    assert (driver.outcome.reason, driver.outcome.message) == (
        RunReason.WORKER_LOST,
        "worker a-1 is lost: killed (4 losses, spec.runPolicy.backoffLimit is 3)",
    )


def test_losses_are_counted_by_worker() -> None:
    driver = paused()
    for _ in range(3):
        for name in THREE:
            driver.lose(name)
            driver.join(name)
    go(driver)
    assert_all_samples_once(driver)
    assert [w.losses for w in driver.run.view(driver.now).workers] == [3, 3, 3]


def test_a_script_that_raises_fails_the_job_all_the_same() -> None:
    driver = paused()
    driver.tell(ev.WorkerFailed("a-1", "ValueError: no"))
    assert driver.outcome.reason is RunReason.WORKER_FAILED


def test_a_worker_that_lost_a_shard_is_lost_itself_until_the_shard_is() -> None:
    driver = paused()
    driver.tell(ev.WorkerFailed("a-1", "parameter server ps-1 does not answer", lost_shard="ps-1"))
    assert driver.run.outcome is None
    assert driver.run.view(driver.now).workers[1].error == "it lost parameter server ps-1"


def test_a_job_without_workers_waits_for_one_and_not_for_ever() -> None:
    driver = paused()
    for name in THREE:
        driver.lose(name)
    driver.now += 100.0
    driver.tell(ev.TimerFired())
    view = driver.run.view(driver.now)
    assert (view.phase, view.reason, view.message) == (
        Phase.TRAINING,
        RunReason.WAITING_FOR_WORKERS,
        "waiting for a worker to come back: a-0, a-1, b-0",
    )
    driver.join("b-0")
    go(driver)
    assert_all_samples_once(driver)


def test_a_job_whose_workers_stay_away_fails() -> None:
    driver = paused()
    for name in THREE:
        driver.lose(name)
    left = driver.now
    while driver.run.outcome is None and driver.now < left + 200.0:
        driver.now = driver.run.next_timer
        driver.tell(ev.TimerFired())
    assert 119.9 < driver.now - left < 120.1
    assert driver.outcome.message == ("no worker is left, and none has come back within 120 s; lost are a-0, a-1, b-0")


@pytest.mark.parametrize("lost", ["a-0", "a-1"])
def test_a_worker_lost_before_training_is_waited_for(lost: str) -> None:
    driver = Driver(config())
    driver.tell(*(ev.Joined(n, 1) for n in THREE))
    driver.tell(ev.ManifestGiven("a-0", make_manifest()))  # its initial values count, unless it is lost
    driver.lose(lost)
    assert driver.run.phase is Phase.WAITING
    driver.join(lost)
    driver.tell(*(ev.ManifestGiven(n, make_manifest()) for n in ("a-1", "b-0") if n != lost))
    assert_all_samples_once(driver)


def test_the_initial_values_are_asked_of_another_if_their_giver_is_lost() -> None:
    run = TrainingRun(config(), 0.0)
    for name in THREE:
        run.handle(ev.Joined(name, 1), 0.0)
    for name in ("a-0", "b-0"):
        run.handle(ev.ManifestGiven(name, make_manifest()), 0.0)
    accepted = run.handle(ev.ShardsConfigured(), 0.0)
    assert [e for e in accepted if isinstance(e, out.Send)] == [
        out.Send("a-0", out.ManifestAccepted(True)), out.Send("b-0", out.ManifestAccepted(False))
    ]  # fmt: skip
    run.handle(ev.SessionBroken("a-0", "closed"), 0.0)
    assert run.view(0.0).message == "waiting for a-0 to join"
    assert run.handle(ev.ManifestGiven("a-1", make_manifest()), 0.0) == [out.Send("a-1", out.ManifestAccepted(True))]
    assert run.handle(ev.InitialValuesPushed("a-1"), 0.0) == [out.PublishInitial()]


@pytest.mark.parametrize(
    "mode",
    [Bsp(), Asp(), Ssp(1), Dssp(1, 2), Delay(0.5, 2), Backup(1)],
    ids=lambda mode: mode.mode.value,
)
def test_every_mode_loses_and_takes_back_workers(mode: Synchronization) -> None:
    driver = paused(at=2, synchronization=mode)
    for name in ("a-1", "a-0"):
        driver.lose(name)
        for _ in range(5):
            driver.now += 1.0
            driver.tell(ev.TimerFired())
        driver.join(name)
    go(driver)
    for _ in range(60):
        driver.now += 1.0
        driver.tell(*(ev.Heartbeat(n) for n in THREE), ev.TimerFired())
    assert_all_samples_once(driver)


# --- leaving ----------------------------------------------------------------------------------------------------------


def test_a_worker_that_is_told_to_end_finishes_its_grants_and_may_come_back() -> None:
    driver = paused()
    driver.tell(ev.Leaving("a-1"))
    assert shares(driver) == {"a-0": 6, "b-0": 2}
    go(driver)
    assert_all_samples_once(driver)
    done = {k.iteration for c in driver.of(out.CommitRound) for k, _ in c.contributions if k.worker == 1}
    assert done == {0, 1, 2}, "the rounds that were granted"


def test_one_that_does_not_finish_drops_its_work_whole_without_counting_as_lost() -> None:
    driver = paused()
    driver.tell(ev.Leaving("a-1"))
    driver.scripts["a-1"].begin()
    driver.tell(ev.SaidGoodbye("a-1"))
    view = driver.run.view(driver.now).workers[1]
    assert (view.phase, view.losses) == (WorkerPhase.FINISHED, 0)
    driver.join("a-1")
    go(driver)
    assert_all_samples_once(driver)


def test_the_last_worker_may_leave_and_the_job_waits_for_somebody() -> None:
    driver = paused()
    driver.lose("a-0")
    driver.lose("b-0")
    driver.tell(ev.Leaving("a-1"))
    go(driver)
    assert driver.run.outcome is None
    driver.join("a-1", "b-0")
    assert_all_samples_once(driver)


def test_a_drained_worker_does_not_come_back() -> None:
    driver = paused()
    driver.tell(ev.DrainCommanded(1, "a-1"), ev.SaidGoodbye("a-1"))
    assert driver.tell(ev.Joined("a-1", 1)) == [
        out.RefuseJoin("a-1", "worker a-1 was in the job before and has left it")
    ]


# --- scaling ----------------------------------------------------------------------------------------------------------


def test_a_group_is_scaled_up_and_down_by_name() -> None:
    driver = paused()
    assert driver.tell(ev.ScaleCommanded(1, "b", 3))[-2:] == [
        out.GroupsChanged({"a": 2, "b": 3}),
        out.AnswerCommand(1, True),
    ]
    assert phases(driver) | {"b-1": WorkerPhase.ABSENT, "b-2": WorkerPhase.ABSENT} == phases(driver)
    driver.scripts["b-1"] = Script("b-1", silent_from=2)
    driver.join("b-1")
    assert shares(driver) == {"a-0": 4, "a-1": 2, "b-0": 1, "b-1": 1}, "the mean of its group"
    driver.tell(ev.ScaleCommanded(2, "b", 1))
    assert phases(driver) | {"b-2": WorkerPhase.FINISHED} == phases(driver)
    assert "b-1" not in shares(driver)
    go(driver)
    assert_all_samples_once(driver)
    assert driver.run.view(driver.now).groups == {"a": 2, "b": 1}


def test_scaled_up_again_the_same_names_may_come_back() -> None:
    driver = paused()
    driver.tell(ev.ScaleCommanded(1, "a", 1))
    for script in driver.scripts.values():
        script.silent_from = 4
    driver.tell(ev.Heartbeat("a-0"))
    assert phases(driver)["a-1"] is WorkerPhase.FINISHED
    driver.tell(ev.ScaleCommanded(2, "a", 2))
    driver.join("a-1")
    go(driver)
    assert_all_samples_once(driver)
    assert driver.scripts["a-1"].incarnation == 2


def test_the_same_number_again_changes_nothing() -> None:
    driver = paused()
    driver.tell(ev.DrainCommanded(1, "a-1"), ev.SaidGoodbye("a-1"))
    assert driver.tell(ev.ScaleCommanded(2, "a", 2)) == [out.AnswerCommand(2, True)]
    assert isinstance(driver.tell(ev.Joined("a-1", 1))[0], out.RefuseJoin)


@pytest.mark.parametrize(
    ("group", "replicas", "words"),
    [
        pytest.param("c", 2, "unknown group `c`; the job's groups are a, b", id="unknown"),
        pytest.param("b", 0, "group b must have at least 1 worker, not 0", id="none"),
        pytest.param("b", 5000, "group b must have at most 1000 workers, not 5000", id="too many"),
        pytest.param("b", 7, "the minimum shares of all sum to 9 samples, more than the global batch of 8", id="batch"),
    ],
)
def test_a_number_that_cannot_be_is_refused(group: str, replicas: int, words: str) -> None:
    workers = tuple(replace(w, bounds=Bounds(1, 100)) for w in config().workers)
    driver = paused(workers=workers)
    (answer,) = driver.tell(ev.ScaleCommanded(1, group, replicas))
    assert isinstance(answer, out.AnswerCommand)
    assert not answer.accepted
    assert words in answer.reason


def test_nobody_is_scaled_away_who_is_the_last() -> None:
    driver = paused()
    driver.lose("a-0")
    driver.lose("b-0")
    assert driver.tell(ev.ScaleCommanded(1, "a", 1)) == [
        out.AnswerCommand(
            1, False, "nobody would be left who trains: wait until the others have joined, or stop the job"
        )
    ]


def test_groups_are_not_scaled_before_training() -> None:
    driver = Driver(config())
    assert driver.tell(ev.ScaleCommanded(1, "a", 3)) == [out.AnswerCommand(1, False, "training has not begun")]


# --- plans and evaluations --------------------------------------------------------------------------------------------


def test_a_plan_that_is_being_agreed_has_lost_its_sense_when_somebody_goes() -> None:
    driver = paused()
    driver.scripts["b-0"].accepts = "silent"
    driver.tell(ev.PlanRequested(7, 0, {"a-0": Share(3), "b-0": Share(3)}, "", 5.0))
    driver.lose("a-1")
    (answer,) = driver.of(out.AnswerPlan)
    assert answer.refusals == (out.Refusal("", "worker a-1 has left"),)


def evaluate(driver: Driver, script: Script, _epoch: int) -> None:
    driver.later(ev.Heartbeat(script.name, version=script.version))
    script.evaluating = True
    script.evaluations += 1
    driver.later(ev.EvaluationCalled(script.name, script.evaluations, 100, version=script.version))


def outcomes(driver: Driver) -> list[tuple[str, float, int]]:
    return [
        (e.worker, e.message.sums.get("right", 0.0), e.message.samples)
        for e in driver.of(out.Send)
        if isinstance(e.message, out.EvaluationOutcome)
    ]


def test_a_newcomer_evaluates_with_the_others_from_the_end_of_its_first_epoch_on() -> None:
    driver = Driver(config(), [Script(n, silent_from=4, at_epoch_end=evaluate) for n in THREE])
    driver.start()
    driver.lose("a-1")
    driver.join("a-1")
    go(driver)
    assert_all_samples_once(driver)
    assert len(outcomes(driver)) == 9
    assert {(right, samples) for _, right, samples in outcomes(driver)} == {(100.0, 100)}


def test_a_part_of_an_evaluation_that_is_lost_is_measured_by_another() -> None:
    held: list[ev.EvaluationPart] = []
    driver = Driver(config(), [Script(n, at_epoch_end=evaluate) for n in THREE])

    class Holding(Driver):
        def later(self, event: ev.RunEvent) -> None:
            if isinstance(event, ev.EvaluationPart) and event.worker == "a-1" and not held:
                held.append(event)
            else:
                super().later(event)

    driver.__class__ = Holding
    driver.start()
    assert (len(held), len(outcomes(driver))) == (1, 0)
    driver.lose("a-1")
    assert_all_samples_once(driver)
    assert {(right, samples) for _, right, samples in outcomes(driver)} == {(100.0, 100)}
    assert {name for name, _, _ in outcomes(driver)} == {"a-0", "b-0"}


def test_who_waits_in_an_evaluation_no_longer_waits_for_a_lost_worker() -> None:
    driver = Driver(config(), [Script(n, at_epoch_end=evaluate) for n in THREE])
    driver.scripts["a-1"].at_epoch_end = lambda _driver, script, _epoch: setattr(script, "evaluating", True)
    driver.start()
    assert driver.run.outcome is None
    driver.lose("a-1")
    assert_all_samples_once(driver)


def test_what_a_newcomer_evaluates_before_it_trains_it_evaluates_alone() -> None:
    driver = paused()
    driver.lose("a-1")
    driver.script_starts = False
    driver.join("a-1")
    effects = driver.tell(ev.EvaluationCalled("a-1", 1, 50, version=1))
    assert [e.message for e in effects if isinstance(e, out.Send)] == [
        out.EvaluationWork(1, 0, 50),
        out.EvaluationOutcome(1, {"right": 50.0}, 50),
    ]


def test_a_worker_that_comes_when_all_is_over_is_told_the_end() -> None:
    driver = Driver(config(), [Script(n, at_end=lambda _d, _s: None) for n in THREE])
    driver.hold_exports = True
    driver.start()
    driver.lose("a-1")
    assert driver.run.phase is Phase.FINISHING
    driver.join("a-1")
    kinds = [kind for kind, _, _ in driver.scripts["a-1"].steps]
    assert kinds[-1] == "TrainingEnd"
    driver.tell(*(ev.SaidGoodbye(n) for n in THREE), ev.Exported("model.safetensors", "/out/model.safetensors"))
    assert driver.outcome.phase is Phase.SUCCEEDED


def test_a_newcomer_hears_the_end_of_the_epoch_that_it_came_into() -> None:
    driver = paused(at=2)  # the last round of the first epoch is granted: 20 samples, 8 a round
    driver.lose("a-1")
    driver.join("a-1")
    go(driver)
    ends = [i for i in driver.scripts["a-1"].steps if i[0] == EpochEnd.__name__]
    assert len(ends) == 3
    assert_all_samples_once(driver)
    assert SampleRange(0, 0, 4) in driver.committed_samples()


# --- want of memory -----------------------------------------------------------------------------------------------


def parts(driver: Driver) -> dict[str, int | None]:
    return {name: share.micro_batch for name, share in driver.run.view(driver.now).plan.shares.items()}


def test_a_worker_that_ran_out_of_memory_comes_back_and_computes_half_as_many_samples_at_once() -> None:
    driver = paused()

    driver.tell(ev.WorkerFailed("a-0", "MemoryError", too_many=4))

    assert phases(driver)["a-0"] is WorkerPhase.LOST
    driver.join("a-0")
    assert parts(driver) == {"a-0": 2, "a-1": None, "b-0": None}
    go(driver)
    assert_all_samples_once(driver)
    events = [event.message for event in driver.run.view(driver.now).events]
    assert "worker a-0 is lost: out of memory with 4 samples at once, from now on at most 2" in events


def test_no_plan_gives_it_more_at_once_again() -> None:
    driver = paused()
    driver.tell(ev.WorkerFailed("a-0", "MemoryError", too_many=4))
    driver.join("a-0")
    driver.tell(ev.WorkerFailed("a-0", "MemoryError", too_many=2))
    driver.join("a-0")

    driver.tell(ev.PlanRequested(7, 0, {"a-0": Share(4, 4), "a-1": Share(2, 2), "b-0": Share(2)}, "by hand", 10.0))
    for name in THREE:
        driver.tell(ev.PlanAnswered(name, driver.of(out.Send)[-1].message.plan.generation, True, ""))

    assert parts(driver) == {"a-0": 1, "a-1": 2, "b-0": None}


@pytest.mark.parametrize(
    ("too_many", "changes"),
    [
        pytest.param(1, {}, id="a single sample does not fit"),
        pytest.param(4, {"rejoin_limit": 0}, id="nobody may come back"),
    ],
)
def test_a_want_of_memory_that_smaller_parts_cannot_help_fails_the_job(too_many: int, changes: dict[str, int]) -> None:
    driver = paused(**changes)

    driver.tell(ev.WorkerFailed("a-0", "MemoryError", too_many=too_many))

    assert (driver.outcome.phase, driver.outcome.reason) == (Phase.FAILED, RunReason.WORKER_FAILED)


def test_a_plan_gives_a_worker_no_more_at_once_than_its_measured_memory_holds() -> None:
    """Peaks of 1000 + 100 b bytes with 4 and (at the end of epochs) 2 samples: 0.9 x 1700 bytes hold 5."""
    scripts = [Script(name, epochs=6, silent_from=12) for name in THREE]
    scripts[0].done = lambda done: replace(
        done,
        memory=MemoryUse(done.samples, 1000 + 100 * done.samples, limit=1700)
        if done.samples in {2, 4}
        else done.memory,
    )
    driver = Driver(config(), scripts)
    driver.start()
    assert {grant.samples for grant in driver.scripts["a-0"].grants} >= {2, 4}

    driver.tell(ev.PlanRequested(7, 0, {"a-0": Share(6), "a-1": Share(1), "b-0": Share(1)}, "by hand", 10.0))

    proposed = driver.of(out.Send)[-1].message.plan
    assert proposed.shares == {"a-0": Share(6, 5), "a-1": Share(1), "b-0": Share(1)}
    assert proposed.reason == "by hand; a-0 in parts of 5, all that memory holds at once"


def test_a_worker_that_runs_out_of_memory_again_and_again_fails_the_job() -> None:
    driver = paused(rejoin_limit=1)
    driver.tell(ev.WorkerFailed("a-0", "MemoryError", too_many=4))
    driver.join("a-0")

    driver.tell(ev.WorkerFailed("a-0", "MemoryError", too_many=2))

    assert driver.outcome.phase is Phase.FAILED
    assert "out of memory with 2 samples at once" in driver.outcome.message
