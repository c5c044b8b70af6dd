"""Whole jobs, from the first join to the outcome."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_core import run_effects as out
from heterotrain_core import run_events as ev
from heterotrain_core.run_effects import GradientKey
from heterotrain_core.run_values import Clip, Outcome, Phase, RunReason, StopLimits
from heterotrain_core.types import Grant
from run_driver import FOUR, GROUP, Driver, Script, make_config, make_manifest


def test_four_workers_train_three_ragged_epochs_to_success() -> None:
    # 20 samples in rounds of 8: two whole rounds and one of 4 samples in each epoch.
    driver = Driver(make_config(FOUR))
    driver.start()
    assert driver.outcome == Outcome(
        Phase.SUCCEEDED, RunReason.EPOCHS_COMPLETED, "all 3 epochs are trained", 9, 60, {}, "/out/model.safetensors"
    )
    commits = driver.of(out.CommitRound)
    assert [c.version for c in commits] == list(range(9))
    assert commits[0] == out.CommitRound(
        version=0,
        contributions=tuple((GradientKey(w, 1, 0), weight) for w, weight in enumerate((0.5, 0.25, 0.125, 0.125))),
        scale=1.0,
        groups=(GROUP,),
        absent=(),
        retain=(),
        clip=None,
        discard=(),
    )
    assert all(not c.retain for c in commits)
    for epoch in range(3):
        positions = [p for r in driver.used_samples() if r.epoch == epoch for p in range(r.start, r.stop)]
        assert positions == list(range(20))


def test_schedules_stand_at_the_version_whatever_the_raggedness() -> None:
    driver = Driver(make_config(FOUR))
    driver.start()
    for script in driver.scripts.values():
        assert all(step == version for _, version, step in script.steps)
    assert driver.scripts["gpu-0"].steps[:5] == [
        ("Grant", 0, 0),
        ("Grant", 1, 1),
        ("Grant", 2, 2),
        ("EpochEnd", 3, 3),
        ("Grant", 3, 3),
    ]


def test_a_setup_goes_through_in_this_order() -> None:
    driver = Driver(make_config({"a-0": 1, "b-0": 1}), [Script("a-0", epochs=1), Script("b-0", epochs=1)])
    effects = driver.start()
    manifest = make_manifest()
    kinds = [e for e in effects if not isinstance(e, out.CommitRound)][:7]
    assert kinds[:6] == [
        out.Send("a-0", out.Welcome(0, 1, driver.config.workers[0].bounds)),
        out.ConfigureShards(manifest),
        out.Send("b-0", out.Welcome(1, 1, driver.config.workers[1].bounds)),
        out.Send("a-0", out.ManifestAccepted(True)),
        out.Send("b-0", out.ManifestAccepted(False)),
        out.PublishInitial(),
    ]
    assert isinstance(kinds[6], out.Send)
    assert isinstance(kinds[6].message, out.Work)


def test_training_waits_for_the_last_worker_and_says_for_whom() -> None:
    driver = Driver(make_config({"a-0": 1, "b-0": 1}))
    driver.tell(ev.Joined("a-0", 1), ev.ManifestGiven("a-0", make_manifest()))
    assert driver.run.view(driver.now).message == "waiting for b-0 to join"
    assert not driver.run.training_began
    driver.tell(ev.Joined("b-0", 1))
    assert driver.run.view(driver.now).message == "waiting for the model of b-0 (session.prepare)"
    driver.tell(ev.ManifestGiven("b-0", make_manifest()))
    assert driver.outcome.phase is Phase.SUCCEEDED


def test_a_gradient_that_one_shard_refused_is_discarded_by_all_and_the_round_goes_on() -> None:
    def nan_in_round_1(done: ev.Done) -> ev.Done:
        return replace(done, refusal="ps-1: weight holds NaN") if done.iteration == 1 else done

    driver = Driver(make_config(FOUR), [Script(n, done=nan_in_round_1 if n == "gpu-1" else lambda d: d) for n in FOUR])
    driver.start()
    commit = driver.of(out.CommitRound)[1]
    assert [key.worker for key, _ in commit.contributions] == [0, 2, 3]
    assert commit.scale == 0.75
    assert commit.discard == (GradientKey(1, 1, 1),)
    assert driver.of(out.CommitRound)[2].discard == ()
    assert driver.outcome.samples == 60
    worker = driver.run.view(driver.now).workers[1]
    assert (worker.refused, worker.rounds) == (1, 9)
    assert [e.message for e in driver.run.view(driver.now).events if e.reason == "GradientNotFinite"] == [
        "gradient of worker gpu-1 in round 1 is discarded: ps-1: weight holds NaN"
    ]


def test_a_round_of_which_nothing_is_left_steps_by_nothing() -> None:
    def nan(done: ev.Done) -> ev.Done:
        return replace(done, refusal="ps-0: weight holds Inf", clip=Clip(1.0, 2.0))

    driver = Driver(make_config({"a-0": 4}), [Script("a-0", epochs=1, done=nan)])
    driver.start()
    commits = driver.of(out.CommitRound)
    assert [(c.contributions, c.scale, c.clip) for c in commits] == [((), 0.0, None)] * 5
    assert driver.outcome.phase is Phase.SUCCEEDED


def test_clipping_and_parameters_without_gradient_reach_the_commit() -> None:
    absent = {"a-0": frozenset({0, 1}), "b-0": frozenset({1})}

    def said(done: ev.Done) -> ev.Done:
        return replace(done, clip=Clip(1.0, 2.0), absent=absent[done.worker])

    driver = Driver(make_config({"a-0": 1, "b-0": 1}), [Script(n, done=said) for n in absent])
    driver.start()
    commit = driver.of(out.CommitRound)[0]
    assert (commit.clip, commit.absent) == (Clip(1.0, 2.0), (1,))


@pytest.mark.parametrize(
    ("stop", "reason", "rounds"),
    [
        pytest.param(StopLimits(rounds=4), RunReason.ROUNDS_REACHED, 4, id="a limit of rounds is met exactly"),
        pytest.param(StopLimits(rounds=1), RunReason.ROUNDS_REACHED, 1, id="even a limit of one round"),
        pytest.param(StopLimits(rounds=9), RunReason.EPOCHS_COMPLETED, 9, id="epochs that end with the limit count"),
        pytest.param(StopLimits(rounds=50), RunReason.EPOCHS_COMPLETED, 9, id="a limit beyond the epochs"),
    ],
)
def test_limits_of_rounds(stop: StopLimits, reason: RunReason, rounds: int) -> None:
    driver = Driver(make_config(FOUR, stop=stop))
    driver.start()
    assert (driver.outcome.phase, driver.outcome.reason, driver.outcome.rounds) == (Phase.SUCCEEDED, reason, rounds)


@pytest.mark.parametrize(
    ("stop", "value", "reached"),
    [
        pytest.param(StopLimits(target_name="acc", target_at_least=0.9), 0.9, True, id="at least, met"),
        pytest.param(StopLimits(target_name="acc", target_at_least=0.9), 0.89, False, id="at least, missed"),
        pytest.param(StopLimits(target_name="acc", target_at_most=0.1), 0.05, True, id="at most, met"),
        pytest.param(StopLimits(target_name="acc", target_at_most=0.1), 0.2, False, id="at most, missed"),
        pytest.param(StopLimits(target_name="loss", target_at_most=0.1), 0.05, False, id="another name"),
    ],
)
def test_a_reported_target_ends_the_training(stop: StopLimits, value: float, reached: bool) -> None:
    def report(driver: Driver, script: Script, epoch: int) -> None:
        if epoch == 0 and script.name == "cpu-1":
            driver.later(ev.Reported("cpu-1", {"acc": value}))

    driver = Driver(make_config(FOUR, stop=stop), [Script(n, at_epoch_end=report) for n in FOUR])
    driver.start()
    assert driver.outcome.phase is Phase.SUCCEEDED
    assert driver.outcome.reported == {"acc": value}
    assert driver.outcome.reason is (RunReason.TARGET_REACHED if reached else RunReason.EPOCHS_COMPLETED)
    assert (driver.outcome.rounds < 9) is reached


def test_a_limit_of_time_counts_from_the_first_grant_and_finishes_what_was_granted() -> None:
    driver = Driver(make_config(FOUR, stop=StopLimits(seconds=30.0)), [Script(n, silent_from=2) for n in FOUR])
    driver.start()
    began = driver.run.view(driver.now).training_seconds
    driver.now += 14 - began
    driver.tell(*(ev.Heartbeat(n) for n in FOUR))
    driver.now += 10
    driver.tell(*(ev.Heartbeat(n) for n in FOUR))
    assert driver.run.next_timer <= driver.now + 6.1
    driver.now += 6.1
    driver.tell(ev.TimerFired())
    for script in driver.scripts.values():
        script.silent_from = None
    driver.tell(ev.TimerFired())
    # Rounds 2 and the one ahead of it were granted; round 2 is the last of the epoch, so none was ahead.
    assert (driver.outcome.reason, driver.outcome.rounds) == (RunReason.SECONDS_REACHED, 3)


def test_the_model_is_exported_once_after_the_last_commit_and_before_the_end() -> None:
    driver = Driver(make_config(FOUR))
    driver.hold_exports = True
    driver.start()
    assert driver.of(out.Export) == [out.Export(9, "model.safetensors")]
    assert driver.of(out.Finish) == []
    assert driver.run.view(driver.now).message == "the model is being saved"
    driver.tell(ev.Exported("model.safetensors", "/out/model.safetensors"))
    assert driver.outcome.model == "/out/model.safetensors"


def test_the_end_waits_for_scripts_that_still_work() -> None:
    driver = Driver(make_config(FOUR), [Script(n, at_end=lambda _d, _s: None) for n in FOUR])
    driver.start()
    assert driver.of(out.Finish) == []
    driver.tell(ev.SaidGoodbye("gpu-0"), ev.Reported("gpu-1", {"acc": 0.5}), ev.SaidGoodbye("gpu-1"))
    assert driver.run.view(driver.now).message == "waiting for the scripts of cpu-0, cpu-1 to end"
    driver.tell(ev.SaidGoodbye("cpu-0"), ev.SaidGoodbye("cpu-1"))
    assert driver.outcome.reported == {"acc": 0.5}


def test_speeds_and_totals_are_seen() -> None:
    driver = Driver(make_config(FOUR), [Script(n, speed=s) for n, s in zip(FOUR, (40, 20, 10, 10), strict=True)])
    driver.start()
    view = driver.run.view(driver.now)
    assert [w.samples_per_second for w in view.workers] == pytest.approx([40, 20, 10, 10])
    assert (view.samples, view.version, view.rounds_planned, view.epochs) == (60, 9, 9, 3)
    assert view.mean_samples_per_second == pytest.approx(60 / view.training_seconds)
    assert view.round_seconds > 0


def test_a_checkpoint_is_of_the_newest_decided_version_and_keeps_none_readable() -> None:
    driver = Driver(make_config({"a-0": 4}), [Script("a-0", silent_from=1)])
    driver.hold_exports = True
    driver.start()
    driver.tell(ev.CheckpointCommanded(5))
    (saved,) = driver.of(out.SaveCheckpoint)
    assert (saved.progress.version, saved.progress.used) == (1, ((0, 4),))
    assert driver.effects.index(saved) > driver.effects.index(driver.of(out.CommitRound)[-1])
    driver.scripts["a-0"].silent_from = 3
    driver.tell(ev.Heartbeat("a-0"))
    assert [c.retain for c in driver.of(out.CommitRound)] == [(), (), ()]
    driver.tell(ev.CheckpointSaved(1, "/out/checkpoints/1"))
    assert driver.of(out.AnswerCommand) == [out.AnswerCommand(5, True, path="/out/checkpoints/1")]


def test_a_worker_that_never_gets_a_grant_keeps_no_versions_once_it_says_what_it_holds() -> None:
    def acknowledge(driver: Driver, script: Script, epoch: int) -> None:
        if script.name == "slow-0":
            driver.later(ev.Heartbeat("slow-0", version=epoch + 1))

    manifest = make_manifest(dataset_size=3)  # a round an epoch, of which the slow one's part is 0
    kept = []
    for at_epoch_end in (lambda _d, _s, _e: None, acknowledge):
        scripts = [Script(n, 4, manifest, at_epoch_end=at_epoch_end) for n in ("slow-0", "fast-0")]
        driver = Driver(make_config({"slow-0": 1, "fast-0": 7}), scripts)
        driver.start()
        assert (driver.outcome.phase, driver.scripts["slow-0"].grants) == (Phase.SUCCEEDED, [])
        kept.append([c.retain for c in driver.of(out.CommitRound)])
    assert kept == [[(), (1,), (1, 2), (1, 2, 3)], [(), (), (), ()]]


def test_grants_ahead_name_versions_that_do_not_exist_yet() -> None:
    driver = Driver(make_config({"a-0": 4}), [Script("a-0", silent_from=0)])
    driver.start()
    items = driver.scripts["a-0"].items
    assert [(i.iteration, i.version) for i in items if isinstance(i, Grant)] == [(0, 0), (1, 1)]


def test_the_state_says_how_long_a_worker_could_not_have_gone_on() -> None:
    """In each round a is done first and waits for b, then both for the shards."""
    driver = Driver(make_config({"a-0": 4, "b-0": 4}))
    driver.start()

    a, b = ([record.withheld for record in worker.recent] for worker in driver.run.view(driver.now).workers)
    assert (a[0], b[0], len(a), len(b)) == (None, None, 9, 9)
    assert all(x is not None and y is not None and x > y > 0 for x, y in zip(a[1:], b[1:], strict=True))
