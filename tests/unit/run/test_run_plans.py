"""Plans that are agreed, refused and derived; workers that are drained or leave early."""

from __future__ import annotations

import pytest

from heterotrain_core import run_effects as out
from heterotrain_core import run_events as ev
from heterotrain_core.run_values import Phase, RunReason
from heterotrain_core.types import Bounds, Grant, Plan, Share, TrainingEnd
from run_driver import FOUR, Driver, Script, make_config, make_manifest

NEW = {"gpu-0": Share(3), "cpu-1": Share(2, 1)}


def training(**accepts: str) -> Driver:
    """Four workers in their first epoch that have done round 0; rounds 1 and 2 are open."""
    scripts = [Script(n, silent_from=1, accepts=accepts.get(n.replace("-", "_"), "yes")) for n in FOUR]
    driver = Driver(make_config(FOUR), scripts)
    driver.start()
    return driver


def go_on(driver: Driver) -> None:
    for script in driver.scripts.values():
        script.silent_from = None
    driver.tell(ev.TimerFired())


def request(shares: dict[str, Share] | None = None, *, number: int = 1, generation: int = 0) -> ev.PlanRequested:
    return ev.PlanRequested(number, generation, shares if shares is not None else NEW, "faster", deadline_seconds=5.0)


def shares_by_round(driver: Driver, worker: str) -> list[int]:
    return [g.samples for g in driver.scripts[worker].grants]


def test_an_accepted_plan_is_proposed_to_all_and_in_force_from_one_round_for_all() -> None:
    driver = training()
    effects = driver.tell(request())
    plan = Plan(2, {"gpu-0": Share(3), "gpu-1": Share(2), "cpu-0": Share(1), "cpu-1": Share(2, 1)}, reason="faster")
    assert effects == [*(out.Send(n, out.PlanProposal(plan)) for n in FOUR), out.AnswerPlan(1, 2, 3)]
    go_on(driver)
    # Rounds 0 to 2 had been granted; round 2 is ragged (4 of 20 samples), 3 begins the second epoch.
    assert shares_by_round(driver, "gpu-0") == [4, 4, 2, 3, 3, 2, 3, 3, 2]
    assert shares_by_round(driver, "cpu-1") == [1, 1, 2, 2, 1, 2, 2, 1]
    assert [g.micro_batch for g in driver.scripts["cpu-1"].grants] == [None, None, 1, 1, 1, 1, 1, 1]
    assert [g.plan_generation for g in driver.scripts["gpu-0"].grants] == [1, 1, 1, *[2] * 6]
    assert driver.outcome.samples == 60


def test_one_refusal_refuses_the_whole_plan_and_changes_nothing() -> None:
    driver = training(gpu_1="not enough memory")
    answer = driver.tell(request())[-1]
    assert answer == out.AnswerPlan(1, 2, refusals=(out.Refusal("gpu-1", "not enough memory"),))
    go_on(driver)
    assert shares_by_round(driver, "gpu-0") == [4, 4, 2] * 3


def test_silence_until_the_deadline_refuses_with_the_workers_name() -> None:
    driver = training(cpu_0="silent", cpu_1="too small")
    driver.tell(request())
    assert driver.of(out.AnswerPlan) == []
    driver.now = driver.run.next_timer
    driver.tell(ev.TimerFired())
    refusals = (out.Refusal("cpu-0", "did not answer within 5 s"), out.Refusal("cpu-1", "too small"))
    assert driver.of(out.AnswerPlan) == [out.AnswerPlan(1, 2, refusals=refusals)]
    driver.tell(ev.PlanAnswered("cpu-0", 2, True))
    assert driver.run.view(driver.now).plan.generation == 1


def test_only_one_proposal_at_a_time() -> None:
    driver = training(cpu_0="silent")
    driver.tell(request())
    assert driver.tell(request(number=2)) == [
        out.AnswerPlan(2, 2, refusals=(out.Refusal("", "plan 2 is being agreed: propose again when that is settled"),))
    ]
    driver.tell(ev.PlanAnswered("cpu-0", 2, True))
    assert driver.of(out.AnswerPlan)[-1] == out.AnswerPlan(1, 2, 3)


@pytest.mark.parametrize(
    ("shares", "generation", "who", "words"),
    [
        pytest.param({"gpu-0": Share(5)}, 0, "", "the shares sum to 9 samples, the global batch is 8", id="the sum"),
        pytest.param({"tpu-0": Share(0)}, 0, "tpu-0", "unknown worker", id="an unknown worker"),
        pytest.param({"gpu-0": Share(-1), "gpu-1": Share(7)}, 0, "gpu-0", "out of bounds", id="out of bounds"),
        pytest.param(NEW, 1, "", "generation 1 is not newer than 1", id="an old generation"),
        pytest.param({"gpu-0": Share(4, 0)}, 0, "gpu-0", "micro-batch 0 is too small", id="a micro-batch of nothing"),
    ],
)
def test_what_cannot_be_is_refused_before_anybody_is_asked(
    shares: dict[str, Share], generation: int, who: str, words: str
) -> None:
    driver = training()
    (answer,) = driver.tell(request(shares, generation=generation))
    assert isinstance(answer, out.AnswerPlan)
    assert answer.refusals[0].worker == who
    assert words in answer.refusals[0].reason


def test_plans_before_and_after_training_are_refused() -> None:
    driver = Driver(make_config(FOUR))
    before = out.Refusal("", "training has not begun: propose the plan again when it has")
    assert driver.tell(request()) == [out.AnswerPlan(1, 2, refusals=(before,))]
    driver.start()
    after = out.Refusal("", "the job is over: all 3 epochs are trained")
    assert driver.tell(request(generation=5)) == [out.AnswerPlan(1, 5, refusals=(after,))]


def test_a_proposal_that_training_overtakes_is_answered() -> None:
    driver = training(cpu_0="silent")
    driver.tell(request())
    go_on(driver)
    assert driver.of(out.AnswerPlan) == [out.AnswerPlan(1, 2, refusals=(out.Refusal("", "training is over"),))]
    assert driver.outcome.phase is Phase.SUCCEEDED


def test_a_drained_worker_finishes_its_grants_and_leaves() -> None:
    driver = training()
    assert driver.tell(ev.DrainCommanded(7, "gpu-0"))[-1] == out.AnswerCommand(7, True)
    plan = driver.run.view(driver.now).plan
    assert (plan.samples, plan.derived, plan.generation) == (
        {"gpu-1": 4, "cpu-0": 2, "cpu-1": 2},
        True,
        2,
    )
    assert driver.tell(ev.DrainCommanded(8, "gpu-0")) == [
        out.AnswerCommand(8, False, "worker gpu-0 takes part in no further rounds already")
    ]
    go_on(driver)
    script = driver.scripts["gpu-0"]
    assert [g.iteration for g in script.grants] == [0, 1, 2]
    assert script.steps[-1] == ("TrainingEnd", 3, 3)
    assert (driver.outcome.phase, driver.outcome.samples) == (Phase.SUCCEEDED, 60)


def test_the_version_that_a_drained_worker_ends_with_is_kept_until_it_says_goodbye() -> None:
    driver = training()
    driver.scripts["gpu-0"].at_end = lambda _driver, _script: None
    driver.tell(ev.DrainCommanded(7, "gpu-0"))
    go_on(driver)
    retained = {c.version: c.retain for c in driver.of(out.CommitRound)}
    assert [retained[v] for v in (3, 4, 8)] == [(3,)] * 3


def test_the_last_worker_cannot_be_drained() -> None:
    alone = Driver(make_config({"a-0": 4}), [Script("a-0", silent_from=1)])
    alone.start()
    assert alone.tell(ev.DrainCommanded(1, "a-0")) == [
        out.AnswerCommand(1, False, "worker a-0 is the last one: stop the job instead")
    ]


def test_a_pending_proposal_does_not_survive_a_drain() -> None:
    driver = training(cpu_0="silent")
    driver.tell(request())
    effects = driver.tell(ev.DrainCommanded(2, "gpu-0"))
    assert effects[0] == out.AnswerPlan(1, 2, refusals=(out.Refusal("", "worker gpu-0 is drained"),))


def test_a_script_that_ends_early_leaves_as_if_drained_and_its_samples_are_handed_out_again() -> None:
    def leave(driver: Driver, script: Script, epoch: int) -> None:
        if epoch == 0:
            script.items.clear()
            driver.later(ev.SaidGoodbye(script.name))

    driver = Driver(make_config(FOUR))
    driver.scripts["gpu-0"].at_epoch_end = leave
    driver.start()
    assert (driver.outcome.phase, driver.outcome.reason) == (Phase.SUCCEEDED, RunReason.EPOCHS_COMPLETED)
    assert driver.outcome.samples == 60
    discarded = [key for c in driver.of(out.CommitRound) for key in c.discard]
    assert discarded == [out.GradientKey(0, 1, 3), out.GradientKey(0, 1, 4)]
    assert driver.run.view(driver.now).plan.derived


def test_when_all_scripts_end_early_the_model_so_far_is_saved() -> None:
    def leave(driver: Driver, script: Script, _epoch: int) -> None:
        script.items.clear()
        driver.later(ev.SaidGoodbye(script.name))

    driver = Driver(make_config(FOUR), [Script(n, at_epoch_end=leave) for n in FOUR])
    driver.start()
    assert (driver.outcome.phase, driver.outcome.reason) == (Phase.SUCCEEDED, RunReason.SCRIPTS_ENDED)
    assert (driver.outcome.model, driver.outcome.samples) == ("/out/model.safetensors", 20)


def test_after_an_early_end_rounds_are_as_large_as_the_others_bounds_allow() -> None:
    config = make_config({"a-0": 2, "b-0": 2}, bounds=Bounds(2, 2))
    driver = Driver(config, [Script("a-0", silent_from=1), Script("b-0", silent_from=1)])
    driver.start()
    driver.tell(ev.SaidGoodbye("a-0"))
    assert driver.run.view(driver.now).plan.shares == {"b-0": Share(2)}


def test_stop_finishes_what_was_granted() -> None:
    driver = training()
    driver.tell(ev.StopCommanded("enough"), ev.StopCommanded("again"))
    assert driver.tell(request())[-1] == out.AnswerPlan(1, 2, refusals=(out.Refusal("", "training is ending"),))
    go_on(driver)
    ends = [s.steps[-1] for s in driver.scripts.values()]
    assert ends == [("TrainingEnd", 3, 3)] * 4
    assert (driver.outcome.phase, driver.outcome.message, driver.outcome.rounds) == (Phase.STOPPED, "enough", 3)


def test_stop_before_training_dismisses_everybody_without_fault() -> None:
    driver = Driver(make_config(FOUR))
    driver.tell(ev.Joined("gpu-0", 1))
    effects = driver.tell(ev.StopCommanded("wrong file"))
    assert effects[0] == out.Dismiss("gpu-0", "wrong file", fault=False)
    assert (driver.outcome.phase, driver.outcome.model) == (Phase.STOPPED, "")


def test_ends_name_the_version_that_a_worker_must_hold() -> None:
    driver = training()
    go_on(driver)
    items = [e.message.item for e in driver.of(out.Send) if isinstance(e.message, out.Work)]
    assert {i.version for i in items if isinstance(i, TrainingEnd)} == {9}
    assert all(i.version == i.iteration for i in items if isinstance(i, Grant))


def with_norm(shares: dict[str, int], bounds: Bounds) -> Driver:
    scripts = [Script(name, manifest=make_manifest(dataset_size=21, smallest_batch=2)) for name in shares]
    driver = Driver(make_config(shares, bounds=bounds), scripts)
    driver.start()
    return driver


def test_a_model_with_batchnorm_raises_shares_and_bounds_of_one() -> None:
    driver = with_norm(FOUR, Bounds(1, 100))
    view = driver.run.view(driver.now)
    assert view.plan.samples == dict.fromkeys(FOUR, 2)
    assert (view.plan.generation, view.plan.derived) == (2, True)
    assert {w.bounds for w in view.workers} == {Bounds(2, 100)}
    # 21 samples: one would be left over by rounds of 8, so that the second round leaves six.
    sizes = [sum(g.samples for s in driver.scripts.values() for g in s.grants if g.iteration == i) for i in range(3)]
    assert sizes == [8, 8, 5]
    assert min(g.samples for s in driver.scripts.values() for g in s.grants) == 2
    assert driver.outcome.samples == 63


def test_a_batch_that_is_too_small_for_two_samples_each_is_said_and_trained() -> None:
    driver = with_norm({"a-0": 1, "a-1": 1, "b-0": 1}, Bounds(1, 100))
    view = driver.run.view(driver.now)
    assert {w.bounds for w in view.workers} == {Bounds(1, 100)}
    assert any(e.warning and "some workers go without in some rounds" in e.message for e in view.events)
    assert (driver.outcome.samples, driver.outcome.rounds) == (63, 21)


def test_a_share_of_one_is_refused_by_name_where_the_model_has_batchnorm() -> None:
    scripts = [Script(n, manifest=make_manifest(smallest_batch=2), silent_from=1) for n in FOUR]
    driver = Driver(make_config(FOUR, bounds=Bounds(1, 100)), scripts)
    driver.start()
    answer = driver.tell(request({"gpu-0": Share(3), "gpu-1": Share(1)}))[-1]
    assert answer == out.AnswerPlan(
        1, 3, refusals=(out.Refusal("gpu-1", "share 1 is out of bounds: it must be between 2 and 100 samples"),)
    )


def test_a_script_that_ends_before_training_is_left_out_of_the_start_plan() -> None:
    driver = Driver(make_config(FOUR))
    for name in ("gpu-1", "cpu-0", "cpu-1"):
        driver.tell(ev.Joined(name, 1), ev.ManifestGiven(name, driver.scripts[name].manifest))
    driver.tell(ev.Joined("gpu-0", 1), ev.SaidGoodbye("gpu-0"))
    assert shares_by_round(driver, "gpu-1")[:2] == [4, 4]
    assert (driver.outcome.phase, driver.outcome.samples) == (Phase.SUCCEEDED, 60)


def test_a_script_that_ends_before_it_gave_the_initial_values_it_owes_fails_the_job() -> None:
    driver = Driver(make_config({"a-0": 1, "b-0": 1}))
    driver.tell(ev.Joined("b-0", 1))
    driver.run.handle(ev.ManifestGiven("b-0", driver.scripts["b-0"].manifest), driver.now)
    driver.tell(ev.SaidGoodbye("b-0"))
    assert driver.outcome.message == "the script of worker b-0 ended before it gave the initial values"
