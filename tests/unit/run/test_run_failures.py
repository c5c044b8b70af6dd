"""What a job does not accept: each ends it (or is refused) with a reason that names who and what."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from heterotrain_api.conditions import Reason
from heterotrain_core import run_effects as out
from heterotrain_core import run_events as ev
from heterotrain_core.layout import TensorKind, TensorSpec
from heterotrain_core.run import TrainingRun
from heterotrain_core.run_values import Clip, Manifest, Phase, RunReason
from run_driver import FOUR, GROUP, Driver, Script, make_config, make_manifest

TWO = {"a-0": 2, "b-0": 2}


def test_reasons_are_those_of_the_api() -> None:
    assert {r.value for r in RunReason} <= {r.value for r in Reason}


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        pytest.param(
            make_manifest(shape=(3, 5)), "tensor `weight` has shape (3, 5) instead of (3, 4)", id="another shape"
        ),
        pytest.param(
            replace(make_manifest(), tensors=(*make_manifest().tensors[:1],)),
            "1 tensors instead of 2: `bias` is missing",
            id="a tensor too few",
        ),
        pytest.param(
            replace(
                make_manifest(),
                tensors=(*make_manifest().tensors, TensorSpec("x", (1,), "F32", TensorKind.PARAMETER, 0)),
            ),
            "3 tensors instead of 2: `x` is new",
            id="a tensor too many",
        ),
        pytest.param(
            replace(
                make_manifest(),
                tensors=(replace(make_manifest().tensors[0], dtype="F64"), make_manifest().tensors[1]),
            ),
            "tensor `weight` has dtype F64 instead of F32",
            id="another dtype",
        ),
        pytest.param(
            replace(
                make_manifest(),
                tensors=(replace(make_manifest().tensors[0], kind=TensorKind.FROZEN), make_manifest().tensors[1]),
            ),
            "tensor `weight` is a FROZEN instead of a PARAMETER",
            id="frozen on one only",
        ),
        pytest.param(
            replace(
                make_manifest(),
                tensors=(replace(make_manifest().tensors[0], aliases=("out", "last")), make_manifest().tensors[1]),
            ),
            "tensor `weight` is tied to `out`, `last` instead of no other",
            id="tied on one only",
        ),
        pytest.param(make_manifest(optimizer="Adam"), "optimizer Adam instead of SGD", id="another optimizer"),
        pytest.param(
            replace(make_manifest(), groups=('{"lr": 0.1}',)),
            "parameter group 0: only one of the two has the hyperparameter `momentum`",
            id="another hyperparameter",
        ),
        pytest.param(make_manifest(dataset_size=21), "a data set of 21 samples instead of 20", id="another data set"),
        pytest.param(make_manifest(dataset_size=0), "the data set has 0 samples; it needs at least one", id="no data"),
        pytest.param(replace(make_manifest(), groups=("[]",)), "hyperparameters must be a JSON object", id="no object"),
    ],
)
def test_a_model_that_differs_fails_the_job(theirs: Manifest, words: str) -> None:
    driver = Driver(make_config(TWO), [Script("a-0"), Script("b-0", manifest=theirs)])
    driver.start()
    assert driver.outcome.reason is RunReason.MODEL_MISMATCH
    assert "worker b-0" in driver.outcome.message
    assert driver.outcome.message.endswith(words) or words in driver.outcome.message


def test_other_values_of_hyperparameters_are_no_difference_of_the_model() -> None:
    theirs = replace(make_manifest(), groups=(GROUP.replace("0.1", "0.2"),))
    driver = Driver(make_config(TWO), [Script("a-0"), Script("b-0", manifest=theirs)])
    driver.start()
    assert driver.outcome.phase is Phase.SUCCEEDED


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(
            lambda d: replace(d, groups=(GROUP.replace("0.1", "0.2"),)),
            "round 2: `lr` of parameter group 0 is 0.2 at worker b-0 and 0.1 at worker a-0: "
            "every worker must set the same value in the same round",
            id="another rate",
        ),
        pytest.param(
            lambda d: replace(d, clip=Clip(1.0, 2.0)),
            "round 2: worker b-0 clips the 2-norm to 1, worker a-0 no norm",
            id="clipping on one only",
        ),
        pytest.param(
            lambda d: replace(d, clip=Clip(1.0, 0.0)),
            "round 2: worker b-0 clips the 0-norm to 1: norm_type must be above 0 and max_norm at least 0",
            id="a norm that is none",
        ),
        pytest.param(
            lambda d: replace(d, groups=(GROUP, GROUP)),
            "round 2: worker b-0 has 2 parameter groups, worker a-0 1",
            id="another number of groups",
        ),
    ],
)
def test_hyperparameters_of_a_round_must_agree(change: Callable[[ev.Done], ev.Done], words: str) -> None:
    def from_round_2(done: ev.Done) -> ev.Done:
        return change(done) if done.iteration == 2 else done

    driver = Driver(make_config(TWO), [Script("a-0"), Script("b-0", done=from_round_2)])
    driver.start()
    assert (driver.outcome.reason, driver.outcome.message) == (RunReason.HYPERPARAMETERS_DIFFER, words)
    assert driver.outcome.rounds == 2


def test_the_same_hyperparameters_written_otherwise_agree() -> None:
    spelt = '{"momentum":9e-1,"lr":1e-1}'
    driver = Driver(make_config(TWO), [Script("a-0"), Script("b-0", done=lambda d: replace(d, groups=(spelt,)))])
    driver.start()
    assert driver.outcome.phase is Phase.SUCCEEDED


def test_epochs_must_agree() -> None:
    driver = Driver(make_config(TWO), [Script("a-0", epochs=3), Script("b-0", epochs=4)])
    driver.start()
    assert (driver.outcome.reason, driver.outcome.message) == (
        RunReason.SCRIPTS_DIFFER,
        "worker b-0 wants 4 epochs, worker a-0 3: all must agree",
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(lambda d: replace(d, term=7), "done is of term 7, the job is in term 1", id="another term"),
        pytest.param(lambda d: replace(d, iteration=5), "iteration 5 is not open", id="a round not granted"),
        pytest.param(lambda d: replace(d, samples=1), "2 samples, done says version 0 and 1 samples", id="samples"),
    ],
)
def test_a_done_that_was_not_granted_fails_the_job(change: Callable[[ev.Done], ev.Done], words: str) -> None:
    driver = Driver(make_config(TWO), [Script("a-0", done=change), Script("b-0")])
    driver.start()
    assert driver.outcome.reason is RunReason.WORKER_FAILED
    assert words in driver.outcome.message


def test_a_failed_worker_is_named_with_its_last_line_and_the_others_are_dismissed() -> None:
    driver = Driver(make_config(FOUR), [Script(n, silent_from=1) for n in FOUR])
    driver.start()
    effects = driver.tell(ev.WorkerFailed("gpu-1", "Traceback (most recent call last):\n  x\nKeyError: 'w'\n\n"))
    message = "worker gpu-1 failed: KeyError: 'w'"
    assert effects[:3] == [out.Dismiss(n, message, fault=True) for n in ("gpu-0", "cpu-0", "cpu-1")]
    assert (driver.outcome.phase, driver.outcome.reason, driver.outcome.message, driver.outcome.rounds) == (
        Phase.FAILED,
        RunReason.WORKER_FAILED,
        message,
        1,
    )
    assert driver.run.view(driver.now).workers[1].error.startswith("Traceback")
    assert driver.tell(ev.SessionBroken("gpu-0", "x"), ev.Committed(1), ev.TimerFired()) == []


def test_a_worker_that_lost_a_shard_is_not_the_one_to_blame() -> None:
    driver = Driver(make_config(TWO), [Script(n, silent_from=1) for n in TWO])
    driver.start()
    driver.tell(ev.WorkerFailed("a-0", "parameter server ps-1 does not answer: broken", lost_shard="ps-1"))
    assert (driver.outcome.reason, driver.outcome.message) == (
        RunReason.SHARD_FAILED,
        "parameter server ps-1 is lost to worker a-0: parameter server ps-1 does not answer: broken",
    )
    assert [w.error for w in driver.run.view(driver.now).workers] == [
        "parameter server ps-1 does not answer: broken", "",
    ]  # fmt: skip


def test_what_peers_say_cannot_forge_lines_or_control_a_terminal() -> None:
    driver = Driver(make_config(TWO), [Script(n, silent_from=1) for n in TWO])
    driver.start()
    driver.tell(ev.Reported("a-0", {"x\n00:00 INFO Succeeded": math.nan}))
    driver.tell(ev.WorkerFailed("a-0", "KeyError: '\x1b[2Jx\u2028y'"))
    messages = [e.message for e in driver.run.view(driver.now).events][-2:]
    assert messages == [
        "worker a-0 reported x 00:00 INFO Succeeded = nan: only finite numbers are kept",
        "worker a-0 failed: y'",
    ]
    assert driver.outcome.message == messages[-1]


def test_a_broken_session_fails_the_job_but_one_after_goodbye_is_nothing() -> None:
    driver = Driver(make_config(TWO), [Script(n, at_end=lambda _d, _s: None) for n in TWO])
    driver.start()
    driver.tell(ev.SaidGoodbye("a-0"))
    assert driver.tell(ev.SessionBroken("a-0", "closed")) == []
    driver.tell(ev.SessionBroken("b-0", "closed"))
    assert driver.outcome.message == "worker b-0 is lost: closed"


def test_a_lease_is_kept_by_anything_that_a_worker_says_and_lost_by_silence() -> None:
    driver = Driver(make_config(TWO), [Script(n, silent_from=1) for n in TWO])
    driver.start()
    for _ in range(3):
        driver.now += 10.0
        driver.tell(ev.Heartbeat("a-0"), ev.Reported("b-0", {"x": 1.0}), ev.TimerFired())
    assert driver.run.outcome is None
    heard = driver.now
    while driver.run.outcome is None and driver.now < heard + 60:
        driver.now = max(driver.now, driver.run.next_timer)
        driver.tell(ev.Heartbeat("a-0"), ev.TimerFired())
    assert driver.outcome.message == "worker b-0 is lost: silent for 15 s"
    assert driver.now - heard < 15.1


def test_a_coordinator_that_stood_still_blames_nobody() -> None:
    driver = Driver(make_config(TWO), [Script(n, silent_from=1) for n in TWO])
    driver.start()
    driver.now += 100.0
    driver.tell(ev.TimerFired())
    assert driver.run.outcome is None
    driver.now = driver.run.next_timer
    driver.tell(ev.TimerFired())
    assert driver.outcome.reason is RunReason.WORKER_LOST


@pytest.mark.parametrize(
    ("joined", "words"),
    [
        pytest.param(ev.Joined("c-0", 1), "worker c-0 is not one of this job's workers: a-0, b-0", id="unknown name"),
        pytest.param(ev.Joined("a-0", 1), "worker a-0 is in the job already, from here", id="twice"),
        pytest.param(
            ev.Joined("b-0", 2, "9.9"),
            "worker b-0 speaks protocol version 2 (heterotrain 9.9), the coordinator speaks 1: "
            "use the same heterotrain version in all images",
            id="another version",
        ),
    ],
)
def test_who_may_not_join_is_refused_and_the_job_goes_on(joined: ev.Joined, words: str) -> None:
    driver = Driver(make_config(TWO))
    driver.tell(ev.Joined("a-0", 1, host="here"))
    assert driver.tell(joined) == [out.RefuseJoin(joined.worker, words)]
    assert driver.run.phase is Phase.WAITING


def test_a_worker_that_left_cannot_come_back_and_nobody_joins_a_job_that_is_over() -> None:
    driver = Driver(make_config(TWO), [Script(n, at_end=lambda _d, _s: None) for n in TWO])
    driver.start()
    driver.tell(ev.SaidGoodbye("a-0"))
    refusal = out.RefuseJoin("a-0", "worker a-0 was in the job before and has left it")
    assert driver.tell(ev.Joined("a-0", 1)) == [refusal]
    driver.tell(ev.SaidGoodbye("b-0"))
    assert driver.tell(ev.Joined("a-0", 1)) == [
        out.RefuseJoin("a-0", "the job is over: all 3 epochs are trained"),
    ]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        pytest.param(ev.ShardFailed("ps-1", "gone"), RunReason.SHARD_FAILED, id="lost"),
        pytest.param(ev.ShardFailed("ps-1", "gone", refused=True), RunReason.OPTIMIZER_NOT_SUPPORTED, id="refused"),
    ],
)
def test_a_shard_that_fails_fails_the_job_by_name(event: ev.ShardFailed, reason: RunReason) -> None:
    driver = Driver(make_config(TWO), [Script(n, silent_from=1) for n in TWO])
    driver.start()
    driver.tell(event)
    assert (driver.outcome.reason, driver.outcome.message) == (reason, "parameter server ps-1: gone")


def test_a_model_that_cannot_be_saved_fails_the_job() -> None:
    driver = Driver(make_config(TWO))
    driver.hold_exports = True
    driver.start()
    driver.tell(ev.ExportFailed("model.safetensors", "no space left on device"))
    assert driver.outcome.message == "the model could not be saved: no space left on device"


def test_a_checkpoint_that_cannot_be_saved_does_not() -> None:
    driver = Driver(make_config(TWO), [Script(n, silent_from=1) for n in TWO])
    driver.hold_exports = True
    driver.start()
    driver.tell(ev.CheckpointCommanded(1), ev.CheckpointCommanded(2))
    assert [s.progress.version for s in driver.of(out.SaveCheckpoint)] == [1]
    driver.tell(ev.CheckpointFailed(1, "no space"))
    assert driver.of(out.AnswerCommand) == [out.AnswerCommand(n, False, "no space") for n in (1, 2)]
    assert driver.run.phase is Phase.TRAINING


def test_a_checkpoint_before_the_first_round_is_of_the_initial_values() -> None:
    held = Driver(make_config(TWO), [Script(n, silent_from=3) for n in TWO])
    held.hold_exports = True
    held.script_starts = False
    held.tell(*(ev.Joined(n, 1) for n in TWO), *(ev.ManifestGiven(n, make_manifest()) for n in TWO))
    held.tell(ev.CheckpointCommanded(1))
    (saved,) = held.of(out.SaveCheckpoint)
    assert (saved.progress.version, saved.progress.epoch, saved.progress.used) == (0, 0, ())
    held.tell(*(ev.Started(n, 3) for n in TWO))
    held.tell(ev.CheckpointSaved(0, "/out/checkpoints/0"))
    assert held.of(out.AnswerCommand) == [out.AnswerCommand(1, True, path="/out/checkpoints/0")]


def test_values_that_are_not_finite_are_not_kept() -> None:
    driver = Driver(make_config(TWO), [Script(n, silent_from=1) for n in TWO])
    driver.start()
    driver.tell(ev.Reported("a-0", {"loss": math.nan, "acc": 0.5, "inf": math.inf}))
    view = driver.run.view(driver.now)
    assert view.reported == {"acc": 0.5}
    assert [e.message for e in view.events if e.reason == "ReportIgnored"] == [
        "worker a-0 reported loss = nan: only finite numbers are kept",
        "worker a-0 reported inf = inf: only finite numbers are kept",
    ]


def test_scripts_that_never_train_fail_the_job() -> None:
    driver = Driver(make_config(TWO))
    driver.tell(ev.Joined("a-0", 1), ev.Joined("b-0", 1), ev.SaidGoodbye("a-0"), ev.SaidGoodbye("b-0"))
    assert (driver.outcome.phase, driver.outcome.reason) == (Phase.FAILED, RunReason.SCRIPTS_ENDED)


def test_start_shares_that_are_no_plan_are_refused_at_once() -> None:
    config = replace(make_config(TWO), global_batch_size=5)
    with pytest.raises(ValueError, match="start shares: the shares sum to 4 samples, the global batch is 5"):
        TrainingRun(config, 0.0)
