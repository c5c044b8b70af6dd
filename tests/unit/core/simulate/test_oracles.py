"""The oracles of algorithms.md D and E that are simulations, by the policies in virtual time."""

import statistics
from itertools import pairwise

import pytest

from heterotrain_core.simulate import simulate
from heterotrain_core.simulate_times import parse_step_times
from heterotrain_core.simulate_values import Close, Failure, SimulatedWorker, Simulation, SimulationResult, Start
from heterotrain_core.staleness import expected_round_seconds
from heterotrain_core.synchronization import Asp, Backup, Bsp, Delay, Normalization, Ssp, Synchronization


def run(
    times: str,
    mode: Synchronization,
    until: float,
    *,
    phases: tuple[float, ...] = (),
    log: bool = False,
    rounds: int | None = None,
    seed: int = 0,
    events: tuple[Failure, ...] = (),
    lease: float = 15.0,
) -> SimulationResult:
    steps = parse_step_times(times)
    phases = phases or (0.0,) * len(steps)
    workers = tuple(
        SimulatedWorker(f"w{i}", s, phase_seconds=p) for i, (s, p) in enumerate(zip(steps, phases, strict=True))
    )
    return simulate(
        Simulation(
            workers=workers, synchronization=mode, until_seconds=until, keep_log=log, rounds=rounds, seed=seed,
            events=events, lease_seconds=lease,
        )
    )  # fmt: skip


def iterations(result: SimulationResult) -> list[int]:
    return [w.iterations for w in result.workers]


def waiting(result: SimulationResult) -> list[float]:
    return [w.waiting_seconds for w in result.workers]


def starts(result: SimulationResult) -> list[tuple[float, str, int]]:
    return [(e.seconds, e.worker, e.clock) for e in result.log if isinstance(e, Start)]


@pytest.mark.parametrize(
    ("bound", "want_iterations", "want_waiting"),
    [
        (0, [6, 6, 6], [18, 12, 0]),
        (1, [7, 7, 6], [17, 10, 0]),
        (2, [8, 8, 6], [16, 8, 0]),
        (3, [9, 9, 6], [15, 6, 0]),
        (4, [10, 10, 6], [14, 4, 0]),
        (8, [14, 12, 6], [10, 0, 0]),
        (None, [24, 12, 6], [0, 0, 0]),
    ],
)
def test_d1_ssp_against_a_persistent_straggler(
    bound: int | None, want_iterations: list[int], want_waiting: list[float]
) -> None:
    result = run("1,2,4", Ssp(bound), 24)

    assert (iterations(result), waiting(result)) == (want_iterations, want_waiting)
    assert result.gradients == sum(want_iterations)


def test_d1_bsp_and_asp_are_the_ends() -> None:
    bsp, asp = run("1,2,4", Bsp(), 24), run("1,2,4", Asp(), 24)

    assert (iterations(bsp), waiting(bsp)) == ([6, 6, 6], [18, 12, 0])
    assert (iterations(asp), waiting(asp)) == ([24, 12, 6], [0, 0, 0])


@pytest.mark.parametrize(
    ("bound", "want"),
    [
        (1, [(0, 0, 0), (0, 1, 0), (0, 2, 0), (1, 0, 1), (2, 1, 1), (4, 0, 2), (4, 1, 2), (4, 2, 1), (8, 0, 3),
             (8, 1, 3), (8, 2, 2)]),
        (2, [(0, 0, 0), (0, 1, 0), (0, 2, 0), (1, 0, 1), (2, 0, 2), (2, 1, 1), (4, 0, 3), (4, 1, 2), (4, 2, 1),
             (6, 1, 3), (8, 0, 4), (8, 1, 4), (8, 2, 2)]),
    ],
)  # fmt: skip
def test_d1_start_log(bound: int, want: list[tuple[float, int, int]]) -> None:
    result = run("1,2,4", Ssp(bound), 11, log=True)

    assert starts(result) == [(seconds, f"w{worker}", clock) for seconds, worker, clock in want]


@pytest.mark.parametrize(("bound", "want"), [(0, 24), (3, 33), (8, 48), (None, 78)])
def test_d2_ssp_with_one_slow_worker_of_four(bound: int | None, want: int) -> None:
    assert run("1,1,1,4", Ssp(bound), 24).gradients == want


@pytest.mark.parametrize(
    ("times", "window", "bound", "rounds", "gradients", "largest", "idle"),
    [
        ("1,1,1,4", None, None, 10, 40, 0, [30, 30, 30, 0]),
        ("1,1,1,4", None, 3, 10, 40, 0, [30, 30, 30, 0]),
        ("1,1,1,4", 0.0, 0, 10, 40, 0, [30, 30, 30, 0]),
        ("1,1,1,4", 0.0, 1, 20, 70, 1, [20, 20, 20, 0]),
        ("1,1,1,4", 0.0, 3, 40, 130, 3, [0, 0, 0, 0]),
        ("1,1,1,4", 0.5, 3, 30, 100, 2, [10, 10, 10, 0]),
        ("1,2,4", 0.0, 1, 20, 40, 1, [20, 20, 0]),
        ("1,2,4", 0.0, 3, 40, 70, 3, [0, 0, 0]),
        ("1,2,4", 1.0, 3, 20, 50, 1, [20, 0, 0]),
    ],
)
def test_d3_delay(
    times: str,
    window: float | None,
    bound: int | None,
    rounds: int,
    gradients: int,
    largest: int,
    idle: list[float],
) -> None:
    result = run(times, Delay(window, bound), 40)

    assert (result.rounds, result.gradients, result.largest_staleness) == (rounds, gradients, largest)
    assert waiting(result) == idle


@pytest.mark.parametrize(("times", "want"), [("1,1,1,4", 40), ("1,2,4", 30)])
def test_d3_bsp_beside_it(times: str, want: int) -> None:
    assert run(times, Bsp(), 40).gradients == want


def test_d3_first_closings() -> None:
    result = run("1,1,1,4", Delay(0.0, 3), 4, log=True)

    closings = [(e.seconds, dict(e.staleness)) for e in result.log if isinstance(e, Close)]
    fast = {"w0": 0, "w1": 0, "w2": 0}
    assert closings == [(1, fast), (2, fast), (3, fast), (4, {**fast, "w3": 3})]


def test_d4_equal_workers_out_of_phase_under_asp() -> None:
    result = run("4,4,4,4", Asp(), 16, phases=(0, 1, 2, 3), log=True)

    taus = [tau for e in result.log if isinstance(e, Close) for tau in e.staleness.values()]
    assert taus == [0, 1, 2, *[3] * (len(taus) - 3)]
    assert len(taus) == 13


@pytest.mark.parametrize(("workers", "backup"), [(10, 0), (11, 1), (12, 2), (4, 0), (5, 1)])
def test_d6_first_rounds_with_backup_workers(workers: int, backup: int) -> None:
    """The mean over many first rounds of exponential steps; seeded, so that it cannot fail by chance."""
    seconds = [
        run(f"{workers}:exponential(1)", Backup(backup), 1000, rounds=1, seed=seed).seconds for seed in range(300)
    ]

    error = statistics.stdev(seconds) / len(seconds) ** 0.5
    assert abs(statistics.mean(seconds) - expected_round_seconds(workers, workers - backup)) < 3 * error


@pytest.mark.parametrize("mode", [Bsp(), Ssp(1), Delay(0.0, 3), Delay(None, None), Backup(0)])
def test_d8_who_dies_with_the_least_clock_holds_the_others_for_one_lease_only(mode: Synchronization) -> None:
    result = run("1,1,1,4", mode, 60, events=(Failure(9, "w3"),), lease=5.0, log=True)

    times = [seconds for seconds, worker, _ in starts(result) if worker == "w0"]
    assert max(b - a for a, b in pairwise(times)) <= 6 + 5
    # From then on it holds nobody: a start each second.
    assert [t for t in times if t > 14] == list(range(15, 61))
    assert iterations(result)[3] == 2


def test_e2_descent_with_a_step_of_delay_by_two_workers_under_asp() -> None:
    """Two workers half a step out of phase: every gradient but the first is one version old."""
    result = run("2,2", Asp(normalization=Normalization.ARRIVED), 21, phases=(0, 1), log=True)

    values = [1.0]
    for entry in result.log:
        if isinstance(entry, Close):
            (tau,) = entry.staleness.values()
            values.append(values[-1] - 0.5 * entry.scale * values[entry.version - tau])
    assert values[:11] == [1, 0.5, 0, -0.25, -0.25, -0.125, 0, 0.0625, 0.0625, 0.03125, 0]
