"""The whole loop against jobs in virtual time (issue: constant speeds, a step change, a 10x slower worker, …)."""

from __future__ import annotations

import pytest

from builders_adaptation import Simulation, simulate, steady
from heterotrain_core.adaptation.detect import cause
from heterotrain_core.adaptation.values import Action, Decision, Finding, Found, Mode, NodeFact

FOUR = [steady(1 / 40), steady(1 / 30), steady(1 / 20), steady(1 / 10)]


def told(simulation: Simulation) -> list[Decision]:
    return [d for _, d in simulation.decisions if d.action is not Action.NONE]


def reasons(simulation: Simulation, kind: Action) -> list[str]:
    return [d.reason for d in told(simulation) if d.action is kind]


def found(simulation: Simulation) -> set[tuple[str, Finding]]:
    return {(f.worker, f.kind) for d in told(simulation) for f in d.found}


@pytest.mark.parametrize("seed", range(6))
def test_constant_speeds_with_noise_settle_and_stay_for_ten_minutes(seed: int) -> None:
    """Settled: all models rest on a hundred steps, and what was chosen from fewer has been corrected."""
    job = simulate(FOUR, noise=0.05, seed=seed)

    job.until(600)

    early, later = [v for v, _ in job.plans if v < 60], [v for v, _ in job.plans if v >= 60]
    refined = [v for v, d in job.decisions if d.action is Action.PROPOSE and "chosen from fewer steps" in d.reason]
    assert 1 <= len(early) <= 2
    assert later == refined
    assert all(100 <= version < 130 for version in refined[:1])
    assert len(refined) <= 1
    assert job.efficiency(40, len(job.round_seconds)) > 0.9


def test_what_is_within_the_dead_band_is_corrected_once_when_a_hundred_steps_are_known() -> None:
    job = simulate([steady(0.01)] * 4, batch=128, shares=[33, 32, 32, 31], dead_band=0.08)

    job.until(120)

    (version, shares), *others = job.plans
    assert not others
    assert version >= 100
    assert shares == {"w0": 32, "w1": 32, "w2": 32, "w3": 32}
    (why,) = reasons(job, Action.PROPOSE)
    assert "chosen from fewer steps than are known now" in why


def test_after_the_correction_the_dead_band_holds_as_before() -> None:
    """Otherwise noise would make one of many looks exceed a fine band."""
    job = simulate([steady(0.002)] * 4, batch=512)
    job.until(60)
    job.workers[0].pace = steady(0.002 * 1.028)  # no alarm; to gain: 2 %

    job.until(400)

    assert job.plans == []


def halved_from_50_to_150(round_: int) -> float:
    return 0.02 * (2 if 50 <= round_ < 150 else 1)


@pytest.mark.parametrize(
    ("noise", "seed"), [(0.0, 1), (0.01, 1), (0.05, 1), (0.05, 2)], ids=["none", "1 %", "5 %", "5 %, other"]
)
def test_a_step_change_is_followed_within_20_rounds_by_two_plans_at_most(noise: float, seed: int) -> None:
    job = simulate([halved_from_50_to_150] + [steady(0.02)] * 3, noise=noise, seed=seed)

    job.run(300)

    rounds = [version for version, _ in job.plans]
    assert [r for r in rounds if r < 50] == []
    assert 1 <= sum(50 <= r < 150 for r in rounds) <= 2
    assert 1 <= sum(r >= 150 for r in rounds) <= 2
    assert job.efficiency(70, 150) > 0.9
    assert job.efficiency(170, 300) > 0.9
    assert {("w0", Finding.SLOWER), ("w0", Finding.FASTER)} <= found(job)


def slowed(factor: float, first: int, last: int) -> Simulation:
    """Rounds of 0.26 s; a worker is slower from one round to another."""
    return simulate([lambda r: 0.002 * (factor if first <= r < last else 1)] + [steady(0.002)] * 3, batch=512)


def test_a_load_that_goes_after_seconds_moves_no_share() -> None:
    job = slowed(1.5, 60, 70)

    job.run(150)

    assert job.plans == []
    assert {("w0", Finding.SLOWER), ("w0", Finding.FASTER)} <= found(job)


@pytest.mark.parametrize(
    ("factor", "least", "most"),
    [
        pytest.param(1.5, 15, 18, id="1.5x: once it has lasted for 12 steps after the alarm"),
        pytest.param(1.8, 0, 6, id="1.8x: at once"),
    ],
)
def test_a_load_that_lasts_is_answered_the_sooner_the_larger_it_is(factor: float, least: int, most: int) -> None:
    job = slowed(factor, 60, 150)

    job.run(150)

    (version, shares), *_ = job.plans
    assert 60 + least <= version <= 60 + most
    assert shares["w0"] < 128
    assert "w0 became" in reasons(job, Action.PROPOSE)[0]


def test_a_change_of_long_rounds_has_lasted_after_a_window() -> None:
    """A dozen of them would take minutes."""
    job = simulate([lambda r: 0.02 * (1.5 if r >= 20 else 1)] + [steady(0.02)] * 3, batch=512)

    job.run(40)

    assert 25 <= job.plans[0][0] <= 27  # three steps until the alarm, and a window of two rounds


def test_another_load_within_the_window_must_last_itself() -> None:
    """A load of 3 s on one worker, and one on another just before the first would have lasted."""
    job = simulate(
        [lambda r: 0.002 * (1.5 if 60 <= r < 68 else 1), lambda r: 0.002 * (1.5 if 70 <= r < 78 else 1)]
        + [steady(0.002)] * 2,
        batch=512,
    )

    job.run(150)

    assert job.plans == []
    assert {("w0", Finding.SLOWER), ("w1", Finding.SLOWER)} <= found(job)


def test_in_recommend_mode_the_correction_is_recommended_once() -> None:
    job = simulate([steady(0.01)] * 4, batch=128, shares=[33, 32, 32, 31], dead_band=0.08, mode=Mode.RECOMMEND)

    job.until(200)

    assert len(reasons(job, Action.RECOMMEND)) == 1
    last = told(job)[-1]
    assert last.action is Action.KEEP
    assert last.gain <= last.band


def test_a_plan_set_by_hand_is_corrected_too() -> None:
    job = simulate([steady(0.01)] * 4, batch=128, dead_band=0.08)
    job.until(60)
    job.generation, job.effective = 2, job.version + 2
    job.planned = {"w0": 33, "w1": 32, "w2": 32, "w3": 31}

    job.until(120)

    ((_, shares),) = job.plans
    assert shares == {"w0": 32, "w1": 32, "w2": 32, "w3": 32}


def test_a_load_during_a_freeze_begins_its_windows_anew() -> None:
    """Shares go to and fro with a worker that is 1.6x slower every other 12 s; six windows never pass in between."""
    job = simulate([lambda r: 0.004 * (1.6 if r // 24 % 2 else 1), steady(0.004)], batch=256)

    job.run(600)

    frozen = [d for d in told(job) if "without any change of speed" in d.reason]
    assert frozen == []


def test_a_worker_that_becomes_ten_times_slower_is_given_a_tenth_and_comes_back() -> None:
    def pace(round_: int) -> float:
        return 0.02 * (10 if 60 <= round_ < 200 else 1)

    job = simulate([pace] + [steady(0.02)] * 3)

    job.run(300)

    assert job.efficiency(85, 200) > 0.9
    assert job.efficiency(225, 300) > 0.9
    during = next(shares for version, shares in reversed(job.plans) if version < 200)
    assert during["w0"] <= 5
    assert job.planned == dict.fromkeys(("w0", "w1", "w2", "w3"), 32)


def test_a_straggler_at_its_smallest_share_is_named_with_what_it_costs() -> None:
    job = simulate([steady(0.01)] * 3 + [steady(0.5)])
    job.workers[3].minimum = 4

    job.run(40)

    assert job.planned["w3"] == 4
    assert ("w3", Finding.STRAGGLER) in found(job)
    assert "without w3 rounds would be 4.7x faster" in told(job)[-1].advice


def test_slowness_from_the_beginning_is_told_apart_from_a_change() -> None:
    job = simulate([steady(0.01)] * 3 + [steady(0.05)])

    job.run(40)

    assert found(job) == {("w3", Finding.BUILT_IN)}


def test_stalls_now_and_then_move_no_shares() -> None:
    job = simulate([steady(0.02)] * 4, spikes=0.05)

    job.run(400)

    assert job.plans == []
    assert Finding.NOISY in {kind for _, kind in found(job)}


def test_a_fixed_part_is_learned_from_the_first_change() -> None:
    job = simulate([steady(1 / 40)] * 2 + [steady(1 / 10)], batch=120)
    job.workers[2].fixed = 1.0

    job.run(120)

    # b / 40 = b / 40 = 1 + c / 10 with 2 b + c = 120: c = 4.4; without the fixed part it would be 8.
    assert job.planned == {"w0": 58, "w1": 58, "w2": 4}


def test_a_worker_that_takes_long_to_receive_gets_less_at_once_and_the_prediction_holds() -> None:
    """As at a small CPU quota: the transfer takes the worker a fixed time, during which it computes nothing."""
    job = simulate([steady(1 / 40)] * 2 + [steady(1 / 10)], batch=120)
    job.workers[2].receive = 1.0

    job.run(40)

    # b / 40 = b / 40 = 1 + c / 10 with 2 b + c = 120: c = 4.4.
    assert [shares for _, shares in job.plans] == [{"w0": 58, "w1": 58, "w2": 4}]
    (check,) = [d.verified for d in told(job) if d.verified is not None]
    assert check.error < 0.02


def test_lost_metrics_keep_the_share_then_give_the_start_shares_back() -> None:
    job = simulate(FOUR, lost_seconds=10.0, equal_after_seconds=60.0)
    job.run(30)
    adapted = dict(job.planned)
    job.workers[0].silent = True

    job.until(job.now + 40)
    kept = dict(job.planned)
    job.until(job.now + 60)

    assert (adapted != job.start, kept) == (True, adapted)
    assert ("w0", Finding.LOST) in found(job)
    assert job.planned == job.start
    assert len(reasons(job, Action.FALL_BACK)) == 1


def test_metrics_that_come_back_are_used_again() -> None:
    job = simulate(FOUR, lost_seconds=10.0, equal_after_seconds=30.0)
    job.run(30)
    adapted = dict(job.planned)
    job.workers[0].silent = True
    job.until(job.now + 60)
    job.workers[0].silent = False

    job.until(job.now + 120)

    assert job.planned == adapted


def test_a_cause_that_is_known_only_later_is_told_once_it_is() -> None:
    """Node information is averaged over half a minute, the loop acts at the third slow step."""
    job = simulate([halved_from_50_to_150] + [steady(0.02)] * 3)
    job.run(60)
    before = {f.words for f in told(job)[-1].found}
    job.workers[0].node = NodeFact("x", others_busy=0.93)

    job.run(20)

    words = "w0 is 2.0x slower than at first: node x is 93% busy with other pods"
    assert words not in before
    assert Found("w0", Finding.SLOWER, words) in told(job)[-1].found


def test_a_worker_that_leaves_wakes_the_loop() -> None:
    job = simulate([steady(0.02)] * 4)
    job.run(40)
    job.workers[3].live = False
    job.planned |= {"w0": 42, "w1": 43, "w2": 43, "w3": 0}
    job.generation += 1

    job.run(20)

    assert job.plans == []  # the coordinator's own plan is good
    assert {r.name for r in told(job)[-1].workers} == {"w0", "w1", "w2"}


def test_a_share_that_is_refused_becomes_a_ceiling_and_the_others_take_the_rest() -> None:
    job = simulate(FOUR)
    job.workers[0].refuses_above = 40

    job.run(120)

    assert 32 < job.planned["w0"] <= 40
    assert sum(job.planned.values()) == 128
    assert ("w0", Finding.CEILING) in found(job)


def test_recommend_changes_nothing_and_shows_what_it_would_do() -> None:
    job = simulate(FOUR, mode=Mode.RECOMMEND)

    job.run(60)

    assert job.plans == []
    assert all(d.proposal is None for d in told(job))
    recommended = next(d for d in told(job) if d.action is Action.RECOMMEND)
    assert {r.name: r.wanted for r in recommended.workers} == {"w0": 52, "w1": 39, "w2": 25, "w3": 12}
    assert recommended.reason.startswith("recommended, not applied: the workers' speeds are known for the first time")


def test_off_does_and_says_nothing() -> None:
    job = simulate(FOUR, mode=Mode.OFF)

    job.run(60)

    assert (job.plans, told(job)) == ([], [])


def thrashing(*, parts_help: bool) -> Simulation:
    """Worker 0 is fast alone, but any batch above 40 thrashes: no line predicts that."""
    job = simulate([steady(1 / 40)] + [steady(1 / 20)] * 3)
    paced = job.workers[0]

    def pace(_: int) -> float:
        at_once = min(paced.share, paced.micro_batch or paced.share) if parts_help else paced.share
        return 1 / 40 if at_once <= 40 else 1 / 5

    paced.pace = pace
    return job


def test_a_share_that_thrashes_in_one_go_is_computed_in_parts_of_the_size_that_was_borne() -> None:
    job = thrashing(parts_help=True)

    job.run(80)

    made = [(d.action, d.proposal.micro_batches) for _, d in job.decisions if d.proposal is not None]
    assert made[:2] == [(Action.PROPOSE, {}), (Action.SPLIT, {"w0": 32})]
    assert reasons(job, Action.ROLL_BACK) == []
    assert job.planned == {"w0": 52, "w1": 26, "w2": 25, "w3": 25}
    assert job.efficiency(40, 80) > 0.95
    assert "the shares stay, and are computed by w0 in parts of 32" in reasons(job, Action.SPLIT)[0]
    assert [d.verified.generation for d in told(job) if d.verified] == [3]


@pytest.mark.parametrize(
    ("processor_time", "want"),
    [
        pytest.param([1.0, 1.0], Action.ROLL_BACK, id="no more for a sample: it waits for a processor"),
        pytest.param([1.0, 1.5], Action.SPLIT, id="more for a sample: page faults, cache"),
        pytest.param([0.0, 0.0], Action.SPLIT, id="not known"),
    ],
)
def test_parts_are_tried_only_if_a_sample_takes_more_processor_time(processor_time: list[float], want: Action) -> None:
    """By the share: up to 40 samples at once, and more."""
    job = thrashing(parts_help=False)
    worker = job.workers[0]
    pace = worker.pace

    def computing(round_: int) -> float:
        worker.cpu = worker.share * processor_time[worker.share > 40]
        return pace(round_)

    worker.pace = computing
    job.run(20)

    assert [d.action for _, d in job.decisions if d.proposal is not None][:2] == [Action.PROPOSE, want]


def test_a_change_that_makes_rounds_slower_in_parts_too_is_undone_and_shares_stay_for_a_while() -> None:
    job = thrashing(parts_help=False)

    job.run(40)

    assert [shares for _, shares in job.plans][2] == dict.fromkeys(("w0", "w1", "w2", "w3"), 32)
    (why,) = reasons(job, Action.ROLL_BACK)
    assert "made rounds slower" in why


def test_every_change_is_held_against_its_prediction() -> None:
    job = simulate(FOUR, noise=0.02)

    job.run(60)

    checks = [d.verified for d in told(job) if d.verified is not None]
    assert len(checks) == len(job.plans)
    assert all(check.error < 0.1 for check in checks)


def test_a_worker_that_flaps_freezes_the_shares_and_says_so() -> None:
    job = simulate([lambda r: 0.02 * (3 if r // 15 % 2 else 1)] + [steady(0.02)] * 3)

    job.run(400)

    assert any("they went to and fro 3 times" in reason for reason in reasons(job, Action.KEEP))
    assert len(job.plans) < 20  # there are 26 changes of speed


def test_a_decision_holds_the_whole_chain() -> None:
    job = simulate(FOUR)

    job.run(30)

    decision = next(d for d in told(job) if d.action is Action.PROPOSE)
    assert decision.proposal is not None
    assert decision.proposal.generation == decision.generation + 1 == 2
    assert decision.present_seconds == pytest.approx(3.21, abs=0.01)
    assert decision.predicted_seconds == pytest.approx(1.31, abs=0.01)
    assert decision.gain == pytest.approx(3.21 / 1.31 - 1, rel=0.01)
    first = decision.workers[0]
    assert (first.name, first.applied, first.wanted, first.steps) == ("w0", 32, 52, 3)
    assert first.seconds_per_sample == pytest.approx(1 / 40)
    assert "w0 32→52" in decision.reason


@pytest.mark.parametrize(
    ("node", "want"),
    [
        (None, ""),
        (NodeFact("x", busy=0.2), ""),
        (NodeFact("x", busy=0.99, others_busy=0.93), "node x is 93% busy with other pods"),
        (NodeFact("x", throttled=0.4), "its CPU quota on node x held it up for 40% of the time"),
        (NodeFact("x", busy=0.97), "node x is 97% busy"),
    ],
    ids=["nothing known", "idle", "others", "quota", "busy"],
)
def test_the_cause_comes_from_the_node(node: NodeFact | None, want: str) -> None:
    assert cause(node) == want


@pytest.mark.parametrize("lasts", [8, 20, 100], ids="for {} rounds".format)
@pytest.mark.parametrize("after", [0, 2], ids=["at once", "two rounds later"])
def test_a_load_that_comes_with_a_larger_share_holds_it_back_only_while_it_lasts(after: int, lasts: int) -> None:
    """It is taken for what the share takes at first. Never forgotten, that would hold the share back for ever."""
    came: list[int] = []

    def pace(round_: int) -> float:
        if not came and job.workers[0].share > 60:
            came.append(round_ + after)
        return 0.001 * (6 if came and 0 <= round_ - came[0] < lasts else 1)

    job = simulate([pace, steady(0.003)], batch=200, shares=[60, 140], noise=0.03, seed=0)

    job.run(3000)

    assert came
    assert job.efficiency(2500, 3000) > 0.95


def test_rounds_that_were_late_when_a_plan_was_verified_do_not_keep_shares_for_ever() -> None:
    """A gain of a tenth, ten minutes after rounds took 1.5x as long as a plan had predicted."""
    job = simulate([lambda r: 0.01 * (1.35 if r > 600 else 1), steady(0.03)], batch=200, noise=0.02)
    job.run(6)
    while not job.plans or job.version < job.plans[-1][0] + 30:
        job.overhead = 0.6 if job.plans else 0.01
        job.run(1)
    job.overhead = 0.01

    assert job.state.guard.doubt > 0.3
    job.run(1000 - job.version)
    assert job.efficiency(900, 1000) > 0.95


@pytest.mark.parametrize("seed", range(3))
def test_a_first_plan_from_a_bad_moment_does_not_keep_the_shares_that_it_set(seed: int) -> None:
    """Seen at CPU quotas: three wrong steps gave wrong shares, and their late rounds held 17 % back for minutes."""
    wrong_at_first = [lambda r: 0.01 * (1.15 if r < 6 else 1), lambda r: 0.04 * (0.9 if r < 6 else 1)]
    job = simulate(wrong_at_first, batch=200, noise=0.05, seed=seed)
    while not job.plans:
        job.run(1)
    job.overhead = 0.5
    job.run(11)  # then it is verified
    assert job.state.guard.doubt > 0.3

    job.overhead = 0.01
    job.run(60)

    assert job.efficiency(job.version - 10, job.version) > 0.95
