"""The simulator itself: links, ends of epochs, membership, changes, repeatability."""

import pytest

from heterotrain_core.bsp import EPOCHS_OVER, ROUNDS_OVER
from heterotrain_core.simulate import simulate
from heterotrain_core.simulate_times import Constant, Trace, Uniform
from heterotrain_core.simulate_values import (
    Change,
    Failure,
    Join,
    Link,
    SimulatedWorker,
    Simulation,
    SimulationResult,
    Start,
    WorkerResult,
)
from heterotrain_core.synchronization import Asp, Backup, Bsp, Delay, Dssp, Ssp, Synchronization

MODES = [Bsp(), Asp(), Ssp(2), Dssp(1, 3), Delay(0.25, 2), Backup(1)]


def workers(*seconds: float, share: int = 1) -> tuple[SimulatedWorker, ...]:
    return tuple(SimulatedWorker(f"w{i}", Constant(s), share) for i, s in enumerate(seconds))


def starts(result: SimulationResult, worker: str) -> list[float]:
    return [e.seconds for e in result.log if isinstance(e, Start) and e.worker == worker]


def test_a_step_is_pull_compute_push() -> None:
    link = Link(0.25, 1000)
    result = simulate(
        Simulation(
            workers=workers(1), synchronization=Bsp(), until_seconds=12, link=link, model_bytes=250, keep_log=True
        )
    )

    assert starts(result, "w0") == [0, 2, 4, 6, 8, 10, 12]
    assert result.workers == (WorkerResult("w0", 6, 0.0),)


def test_recorded_times_are_played_and_begin_again() -> None:
    worker = SimulatedWorker("gpu-0", Trace((1.0, 2.0, 4.0)))
    result = simulate(Simulation(workers=(worker,), synchronization=Asp(), until_seconds=10, keep_log=True))

    assert starts(result, "gpu-0") == [0, 1, 3, 7, 8, 10]


@pytest.mark.parametrize("mode", MODES)
def test_epochs_end_with_every_sample_used_once_and_short_shares_take_less_time(mode: Synchronization) -> None:
    result = simulate(
        Simulation(workers=workers(1, 2, 4, share=4), synchronization=mode, dataset_size=50, epochs=3)
    )  # fmt: skip

    assert (result.end_reason, result.samples) == (EPOCHS_OVER, 150)
    assert result.seconds <= 3 * (50 / 12 + 1) * 4


def test_one_short_share_takes_its_part_of_the_time() -> None:
    result = simulate(Simulation(workers=workers(4, share=4), synchronization=Asp(), dataset_size=5))

    assert result.seconds == 4 + 1


@pytest.mark.parametrize("mode", MODES)
def test_a_limit_of_rounds_is_met_exactly(mode: Synchronization) -> None:
    result = simulate(Simulation(workers=workers(1, 1, 3), synchronization=mode, rounds=7))

    assert (result.rounds, result.end_reason) == (7, ROUNDS_OVER)


@pytest.mark.parametrize("mode", MODES)
def test_a_failure_loses_no_sample_and_who_comes_back_works_again(mode: Synchronization) -> None:
    result = simulate(
        Simulation(
            workers=workers(1, 1, 2), synchronization=mode, dataset_size=60, lease_seconds=3, keep_log=True,
            events=(Failure(2.5, "w1"), Join(8.25, "w1"), Failure(4.5, "w2")),
        )
    )  # fmt: skip

    assert (result.samples, result.end_reason) == (60, EPOCHS_OVER)
    gone = [t for t in starts(result, "w1") if 2.5 < t < 8.25]
    assert gone == []
    assert max(starts(result, "w1")) >= 8.25
    assert max(starts(result, "w2")) < 4.5


def test_who_comes_back_before_the_lease_is_over_is_a_new_worker() -> None:
    result = simulate(
        Simulation(
            workers=workers(1, 1), synchronization=Bsp(), until_seconds=6, keep_log=True,
            events=(Failure(1.5, "w1"), Join(3.0, "w1")),
        )
    )  # fmt: skip

    assert starts(result, "w0") == [0, 1, 3, 4, 5, 6], "the round that misses it goes on without it"
    # The rounds of 3 s and 4 s were open before.
    assert starts(result, "w1") == [0, 1, 5, 6]


def test_a_worker_that_joins_later_is_not_waited_for() -> None:
    result = simulate(
        Simulation(
            workers=workers(1, 1), synchronization=Bsp(), until_seconds=6, events=(Join(3.5, "w1"),), keep_log=True
        )
    )

    assert starts(result, "w0") == [0, 1, 2, 3, 4, 5, 6]
    # A round is open ahead when it joins.
    assert starts(result, "w1") == [5, 6]
    assert result.workers[1] == WorkerResult("w1", 1, 1.5)


def test_bounds_and_modes_change_on_the_way() -> None:
    result = simulate(
        Simulation(
            workers=workers(1, 4), synchronization=Ssp(0), until_seconds=24, keep_log=True,
            events=(Change(8.5, Ssp(8)), Change(16.5, Bsp())),
        )
    )  # fmt: skip

    # In step, then free (late by what it waited), then, once everything is in, in step again.
    assert starts(result, "w0") == [0, 4, 8, *[9 + i for i in range(8)], 20, 24]


def test_five_hundred_random_changes_of_bounds_under_load() -> None:
    times = [Uniform(0.5, 1.5)] * 3 + [Uniform(2, 6)]
    bounds = [(i * 7919) % 9 for i in range(500)]
    for make in (Ssp, lambda b: Delay(0.1 * (b % 3), b)):
        result = simulate(
            Simulation(
                workers=tuple(SimulatedWorker(f"w{i}", t) for i, t in enumerate(times)),
                synchronization=make(8), until_seconds=300, seed=3,
                events=tuple(Change(0.5 * i, make(b)) for i, b in enumerate(bounds)),
            )
        )  # fmt: skip
        assert all(w.iterations > 50 for w in result.workers)


def test_a_seed_is_repeatable_and_a_workers_times_depend_on_no_other() -> None:
    def first_steps(count: int, seed: int) -> list[float]:
        members = tuple(SimulatedWorker(f"w{i}", Uniform(1, 2)) for i in range(count))
        run = Simulation(workers=members, synchronization=Asp(), until_seconds=10, seed=seed, keep_log=True)
        assert simulate(run) == simulate(run)
        return starts(simulate(run), "w0")

    assert first_steps(1, 5) == first_steps(3, 5) != first_steps(1, 6)


def test_a_thousand_workers_with_a_window() -> None:
    members = tuple(SimulatedWorker(f"w{i}", Uniform(1, 4)) for i in range(1000))
    result = simulate(Simulation(workers=members, synchronization=Delay(0.25, 20), until_seconds=8))

    # From 1 s on a round takes 0.25 s and the little until its first gradient; a step takes 4 to 16 rounds.
    assert 25 <= result.rounds <= 28
    assert 2300 < result.gradients < 3000
    assert 10 <= result.largest_staleness <= 16


@pytest.mark.parametrize(
    ("change", "want_message"),
    [
        ({"workers": ()}, "workers must have different names, and there must be at least one"),
        ({"until_seconds": float("inf")}, "finite without a limit of rounds or epochs"),
        ({"events": (Failure(1, "w9"),)}, "unknown worker w9; there are w0 to w1"),
        ({"events": (Failure(-1, "w0"),)}, "the time of an event must be at least 0"),
        ({"lease_seconds": -1}, "the lease and the model's bytes must be at least 0"),
    ],
)
def test_what_cannot_be_run_is_refused(change: dict[str, object], want_message: str) -> None:
    good: dict[str, object] = {"workers": workers(1, 1), "synchronization": Bsp(), "until_seconds": 1}

    with pytest.raises(ValueError, match=want_message):
        Simulation(**{**good, **change})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="link: the fixed time must be at least 0"):
        Link(-1)
