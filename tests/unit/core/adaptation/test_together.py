"""Ups and downs that all workers share are no difference between them, and no reason for other shares."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from builders_adaptation import simulate, steady
from heterotrain_core.adaptation.guard import Made, Speed, fair
from heterotrain_core.adaptation.together import aligned, shared
from heterotrain_core.adaptation.track import Track, follow
from heterotrain_core.adaptation.values import Finding, WorkerSeen
from heterotrain_core.run_values import Timings
from heterotrain_core.telemetry import StepRecord
from heterotrain_core.types import Bounds

STEPS = 60


def records(times: Sequence[float], *, first: int = 1, every: float = 1.5, clock: bool = True) -> list[StepRecord]:
    """Steps of 10 samples, one each `every` seconds; without a clock nobody knows when."""
    return [
        StepRecord(n, 10, Timings(compute=t, step=every), 1.0 + n * every if clock else 0.0)
        for n, t in enumerate(times, first)
    ]


def track(times: Sequence[float], *, first: int = 1, clock: bool = True) -> Track:
    return follow(Track(), "w", records(times, first=first, clock=clock), 0.0)[0]


def weather(seed: int = 1) -> list[float]:
    """How many times as long everything takes, step by step: stays for some steps, varies by 15 %."""
    rng, mood, factors = random.Random(seed), 0.0, []
    for _ in range(STEPS):
        mood = 0.8 * mood + rng.gauss(0.0, 0.09)
        factors.append(math.exp(mood))
    return factors


def own(seed: int, noise: float = 0.02) -> list[float]:
    rng = random.Random(100 + seed)
    return [rng.gauss(1.0, noise) for _ in range(STEPS)]


def error(of: Track) -> float:
    assert of.model is not None
    return of.model.error


def per_sample(of: Track) -> float:
    assert of.model is not None
    return of.model.seconds(10) / 10


def test_what_all_workers_share_is_not_in_the_errors() -> None:
    shared_by_all = weather()
    tracks = {f"w{i}": track([f * x for f, x in zip(shared_by_all, own(i), strict=True)]) for i in range(4)}

    after = aligned(tracks)

    assert all(error(tracks[name]) > 0.01 for name in tracks)
    assert all(error(after[name]) < error(tracks[name]) / 3 for name in tracks)


@pytest.mark.parametrize(
    "clock", [pytest.param(True, id="independent noise"), pytest.param(False, id="nobody knows when steps were")]
)
def test_errors_stay_where_nothing_is_known_to_be_shared(clock: bool) -> None:
    tracks = {f"w{i}": track(own(i, noise=0.1), clock=clock) for i in range(4)}

    after = aligned(tracks)

    assert [error(after[name]) for name in tracks] == pytest.approx([error(tracks[name]) for name in tracks], rel=0.25)
    assert all(error(after[name]) <= error(tracks[name]) for name in tracks)


def test_a_worker_alone_is_left_as_it_is() -> None:
    tracks = {"w": track(own(1))}
    assert aligned(tracks) == tracks


def test_models_of_different_times_are_compared_at_the_level_of_now() -> None:
    """b joined when everything had become 1.3 times as fast, and is as fast as a: by its own model it is faster."""
    faster = [1.0] * 30 + [1 / 1.3] * 30
    a, c = (track([f * x for f, x in zip(faster, own(i), strict=True)]) for i in (1, 2))
    b = track([f * x for f, x in zip(faster[48:], own(3)[48:], strict=True)], first=49)
    assert per_sample(a) > 1.1 * per_sample(b)

    after = aligned({"a": a, "b": b, "c": c})

    assert per_sample(after["a"]) == pytest.approx(per_sample(after["b"]), rel=0.05)
    assert per_sample(after["a"]) == pytest.approx(0.1 / 1.3, rel=0.06)


def seen(name: str, times: Sequence[float], *, clock: bool = True) -> WorkerSeen:
    return WorkerSeen(name, True, 10, Bounds(1, 100), tuple(records(times, first=STEPS + 1, clock=clock)))


@pytest.mark.parametrize(
    ("others", "clock", "want"),
    [
        pytest.param([1.3, 1.3], True, math.log(1.3), id="all others show it too"),
        pytest.param([1.5, 1.3], True, math.log(1.3), id="what all show at least"),
        pytest.param([0.7, 0.8], True, math.log(0.8), id="faster"),
        pytest.param([1.3, 1.0], True, 0.0, id="one does not"),
        pytest.param([1.3, 0.8], True, 0.0, id="one the other way"),
        pytest.param([4.0, 4.0], True, math.log(2.0), id="so large a change is told of each"),
        pytest.param([1.3, 1.3], False, None, id="nobody knows when"),
    ],
)
def test_the_part_of_a_step_that_all_others_show(others: list[float], clock: bool, want: float | None) -> None:
    names = ("a", "b", "c")
    tracks = {name: track([1.0] * STEPS, clock=clock) for name in names}
    workers = [seen(n, [t] * 3, clock=clock) for n, t in zip(names, [2.0, *others], strict=True)]

    found = shared(tracks, workers)

    assert found.get("a", {}).get(STEPS + 3) == (None if want is None else pytest.approx(want, abs=0.01))


@pytest.mark.parametrize(
    ("there", "want"),
    [
        pytest.param("abc", 0.0, id="two of five others: too few"),
        pytest.param("abcd", math.log(1.3), id="three of five"),
    ],
)
def test_few_of_the_others_say_nothing_of_all(there: str, want: float) -> None:
    tracks = {name: track([1.0] * STEPS) for name in "abcdef"}
    workers = [seen(name, [1.3] * 3 if name in there else []) for name in "abcdef"]

    assert shared(tracks, workers)["a"][STEPS + 3] == pytest.approx(want, abs=0.01)


@pytest.mark.parametrize(
    ("paces", "want"),
    [
        pytest.param((2.0, 1.5), (2.0, 150.0), id="all machines are 1.5 times slower: that is not the plan's"),
        pytest.param((0.5, 0.8), (3.0, 100.0), id="all are faster: nothing to excuse"),
        pytest.param((2.0, 1.0), (3.0, 100.0), id="one became slower: the plan's, for all that is known"),
        pytest.param((2.0, 0.9), (3.0, 100.0), id="one slower, one faster"),
    ],
)
def test_a_plan_is_held_against_the_machines_as_they_were_before_it(
    paces: tuple[float, float], want: tuple[float, float]
) -> None:
    made = Made(
        generation=2, effective_round=1, before={"a": 5, "b": 15}, after={"a": 10, "b": 10}, predicted_seconds=3.0,
        speed_before=1.0, noise_before=0.0, changes={}, marks={"a": 2, "b": 2}, paces={"a": 0.07, "b": 0.2},
        foretold={"a": 0.1, "b": 0.1},
    )  # fmt: skip
    tracks = {name: track([1.0] * 2 + [pace] * 6) for name, pace in zip("ab", paces, strict=True)}

    after = fair(Speed(seconds=3.0, samples_per_second=100.0, error=0.01), made, tracks)

    assert (after.seconds, after.samples_per_second) == pytest.approx(want)


LADDER = [steady(0.001 * k) for k in (1, 2, 4, 8)]


@pytest.mark.parametrize("seed", range(4))
def test_shares_settle_although_all_workers_become_slower_and_faster_together(seed: int) -> None:
    """Single steps vary by 17 %: told apart from 8 % of each alone, as was measured on two cores."""
    job = simulate(LADDER, batch=256, noise=0.08, weather=0.15, seed=seed)
    job.until(60)

    shares = job.plans[-1][1]
    slowest = max(shares[f"w{i}"] * 0.001 * k for i, k in enumerate((1, 2, 4, 8)))
    assert 256 / slowest > 0.94 * sum(1 / (0.001 * k) for k in (1, 2, 4, 8))
    assert len(job.plans) <= 4


@pytest.mark.parametrize("seed", range(3))
def test_a_worker_that_really_becomes_slower_is_still_found_at_once(seed: int) -> None:
    paces = [lambda r: 0.004 if r >= 200 else 0.002, steady(0.002), steady(0.002)]
    job = simulate(paces, batch=192, noise=0.05, weather=0.15, seed=seed)
    job.run(230)

    told = [(v, f) for v, d in job.decisions for f in d.found if f.kind is Finding.SLOWER and v > 200]
    assert {f.worker for _, f in told} == {"w0"}
    assert told[0][0] <= 212
    assert job.plans[-1][1]["w0"] < 50


def test_a_worker_that_was_away_does_not_make_the_others_steps_one() -> None:
    """b has steps from before and after ten minutes elsewhere."""
    shared_by_all = weather()
    tracks = {f"w{i}": track([f * x for f, x in zip(shared_by_all, own(i), strict=True)]) for i in range(4)}
    told = [*records([1.0] * 10, first=1), *records([1.0] * 10, first=STEPS - 9)]
    away = [StepRecord(n, r.samples, r.timings, r.ended) for n, r in enumerate(told, 1)]
    tracks["b"] = follow(Track(), "b", [replace(r, ended=r.ended - 600) if r.ended < 50 else r for r in away], 0.0)[0]

    after = aligned(tracks)

    assert all(error(after[f"w{i}"]) < error(tracks[f"w{i}"]) / 2 for i in range(4))
