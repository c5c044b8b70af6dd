"""The lab's result as values, and as the JSON document that `heterotrain lab --json` prints. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import mean, median
from typing import Any, Final

from heterotrain_core.lab.setups import SetUp
from heterotrain_operator.lab.figures import TARGET_ACCURACY, PlanFigures, Recovery
from heterotrain_operator.local.report import balance_speed_up

TOLERANCE: Final = 0.03
"""Of the checks of the lab itself, in parts of the ideal (algorithms.md 4.3)."""
EQUAL_TOLERANCE: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """One run of one variant with one seed."""

    name: str
    seed: int
    samples_per_second: float
    """In the measured window."""
    ideal_samples_per_second: float
    """Of this run: as measured before it, at level 3 around it, less what its disturbances took."""
    ideal_within_samples_per_second: float | None = None
    """Level 3: of its quotas, at the processor time that samples took in its window."""
    with_start_samples_per_second: float
    """From the common begin to the window's end."""
    real_part: float
    """Real computing over paced time."""
    machine_busy: float
    """Part of this machine's processors in use by anybody, from the run's first process to its last."""
    shares: tuple[int, ...]
    """At the end."""
    cpu_beside_computing: Sequence[float] = ()
    """Seconds a step by worker, median; DDP: with its optimizer, at level 3 without what overlaps backward."""
    throughput: Sequence[tuple[float, float]] = ()
    shares_over_time: Sequence[Sequence[tuple[float, int]]] = ()
    accuracy: Sequence[tuple[float, float]] = ()
    disturbed: Sequence[tuple[float, float]] = ()
    plans: Sequence[PlanFigures] = ()
    recoveries: Sequence[Recovery] = ()
    seconds_to_target: float | None = None
    final_accuracy: float | None = None

    @property
    def share_of_ideal(self) -> float:
        """Reached of what was possible in it."""
        return self.samples_per_second / self.ideal_samples_per_second

    @property
    def share_of_ideal_within(self) -> float | None:
        """The same, whatever the processors' speed was before and after."""
        within = self.ideal_within_samples_per_second
        return None if within is None else self.samples_per_second / within

    def median_speed(self, warm_up_seconds: float) -> float:
        """Median over the pieces of the window, a sixtieth of the run each: a machine's bad moments do not move it."""
        pieces = [speed for seconds, speed in self.throughput if seconds >= warm_up_seconds]
        return median(pieces) if pieces else self.samples_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A run without figures."""

    name: str
    seed: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Of the workers without communication, measured in one pass."""

    together: tuple[float, ...]
    """All running at once: their sum is the ideal."""
    single: tuple[float, ...] = ()
    """Each running while the others do not; empty: not measured in this pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Everything of one `heterotrain lab`."""

    setup: SetUp
    level: int
    batch: int
    seconds: float
    warm_up_seconds: float
    machine_cores: int
    quotas: Sequence[float]
    """Level 3: cores, by worker."""
    speeds: Sequence[Speeds]
    """As they were measured: in each pass before its runs; at level 3 before the first run of all, and after each."""
    best_share_of_ideal: float
    runs: Sequence[RunFigures | Failed] = field(default_factory=tuple)

    @property
    def ideal(self) -> float:
        """Median over the measurements of the sum of the speeds of all workers running at once."""
        return median(sum(speeds.together) for speeds in self.speeds)

    @property
    def s_balance(self) -> float:
        """Of the measured speeds: the most that balance alone can give over equal shares."""
        together = [median(column) for column in zip(*(s.together for s in self.speeds), strict=True)]
        return balance_speed_up(together) or 1.0

    def of(self, name: str) -> list[RunFigures]:
        """The runs of a variant, a seed each."""
        return [run for run in self.runs if isinstance(run, RunFigures) and run.name == name]

    @property
    def names(self) -> list[str]:
        """Variants in their order."""
        return list(dict.fromkeys(run.name for run in self.runs))


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the lab itself: it holds where the lab measures what it says."""

    what: str
    expected: float
    tolerance: float
    measured: float

    @property
    def ok(self) -> bool:
        """It holds."""
        return abs(self.measured - self.expected) <= self.tolerance


def acceptance(result: Result) -> list[Check]:
    """What algorithms.md 4.3 (last paragraph) asks of the lab in this set-up, as far as its runs were made."""
    paced = sum(result.setup.speeds)
    held = Check("measured over paced speeds, sum", 1.0, TOLERANCE, result.ideal / paced)
    return [*([held] if result.level == 2 else []), *_equal_workers(result), *_equal_shares(result)]


def _equal_workers(result: Result) -> list[Check]:
    speeds = {
        name: median(run.samples_per_second for run in result.of(name)) for name in result.names if result.of(name)
    }
    if result.setup.name != "equal" or not speeds:
        return []
    middle = median(speeds.values())
    return [
        Check(f"{name} over the median of all runs (equal workers)", 1.0, EQUAL_TOLERANCE, speed / middle)
        for name, speed in speeds.items()
    ]


def _equal_shares(result: Result) -> list[Check]:
    equal = result.of("bsp-equal")
    unequal = result.setup == result.setup.undisturbed and result.setup.name != "equal"
    if not unequal or not equal or result.level != 2:
        return []
    what = "share of the ideal of BSP with equal shares, 1 / S_balance"
    return [Check(what, 1 / result.s_balance, TOLERANCE, median(run.share_of_ideal for run in equal))]


def document(result: Result) -> dict[str, Any]:
    """What is printed and written; `runs` has one entry a variant, medians over the seeds."""
    return {
        "setup": result.setup.name,
        "summary": result.setup.summary,
        "level": result.level,
        "batch": result.batch,
        "seconds": result.seconds,
        "warm_up_seconds": result.warm_up_seconds,
        "machine_cores": result.machine_cores,
        "quotas": list(result.quotas),
        "ideal_samples_per_second": result.ideal,
        "speeds_together": [list(speeds.together) for speeds in result.speeds],
        "speeds_single": [list(speeds.single) for speeds in result.speeds if speeds.single],
        "sum_of_single_speeds": next((sum(speeds.single) for speeds in result.speeds if speeds.single), None),
        "best_share_of_ideal": result.best_share_of_ideal,
        "s_balance": result.s_balance,
        "target_accuracy": TARGET_ACCURACY,
        "runs": [_variant(result, name) for name in result.names],
        "acceptance": [{**asdict(check), "ok": check.ok} for check in acceptance(result)],
    }


def _variant(result: Result, name: str) -> dict[str, Any]:
    runs = result.of(name)
    failed = [run for run in result.runs if isinstance(run, Failed) and run.name == name]
    entry: dict[str, Any] = {"name": name, "s_balance": result.s_balance}
    if failed:
        entry["errors"] = [{"seed": run.seed, "error": run.error} for run in failed]
    if not runs:
        return {**entry, "samples_per_second": 0.0, "share_of_ideal": 0.0}
    targets = [run.seconds_to_target for run in runs]
    reached = [seconds for seconds in targets if seconds is not None]
    errors = [plan.error for run in runs for plan in run.plans if plan.error is not None]
    return {
        **entry,
        "samples_per_second": median(run.samples_per_second for run in runs),
        "share_of_ideal": median(run.share_of_ideal for run in runs),
        "share_of_ideal_range": [min(r.share_of_ideal for r in runs), max(r.share_of_ideal for r in runs)],
        "share_of_ideal_within": _median([run.share_of_ideal_within for run in runs]),
        "median_samples_per_second": median(run.median_speed(result.warm_up_seconds) for run in runs),
        "with_start_samples_per_second": median(run.with_start_samples_per_second for run in runs),
        "seconds_to_target": median(reached) if len(reached) == len(runs) else None,
        "seconds_to_target_range": [min(reached), max(reached)] if reached else None,
        "final_accuracy": _median([run.final_accuracy for run in runs]),
        "real_part": mean(run.real_part for run in runs),
        "machine_busy": mean(run.machine_busy for run in runs),
        "plan_error": median(errors) if errors else None,
        "seeds": [_run(run) for run in runs],
    }


def _run(run: RunFigures) -> dict[str, Any]:
    entry = asdict(run)
    del entry["name"]
    entry["plans"] = [{**asdict(plan), "error": plan.error} for plan in run.plans]
    shares = {"share_of_ideal": run.share_of_ideal, "share_of_ideal_within": run.share_of_ideal_within}
    return {**entry, **shares}


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def lines(told: Mapping[str, Any]) -> list[str]:
    """The table, from a document."""
    single = told["sum_of_single_speeds"]
    quotas = f", quotas {' '.join(f'{q:.3g}' for q in told['quotas'])} of a core" if told["quotas"] else ""
    alone = "" if single is None else f"; each alone: {single:,.0f}"
    head = [
        f"{told['setup']} at level {told['level']}: {told['summary']}",
        f"batch {told['batch']}, windows of {told['seconds']:g} s after {told['warm_up_seconds']:g} s{quotas}",
        f"ideal {told['ideal_samples_per_second']:,.0f} samples/s (all at once, without communication{alone})",
        f"S_balance {told['s_balance']:.2f}, best whole shares {told['best_share_of_ideal']:.1%}",
        (
            "run              samples/s  of ideal    within      median  with start  to 85 %"
            "  accuracy  plan error  real part  machine"
        ),
    ]
    return [*head, *(_line(run) for run in told["runs"]), *(_check_line(check) for check in told["acceptance"])]


def _line(run: Mapping[str, Any]) -> str:
    if "seeds" not in run:
        return f"{run['name']:15}  failed: {run['errors'][0]['error'].splitlines()[0]}"
    target, accuracy, error = run["seconds_to_target"], run["final_accuracy"], run["plan_error"]
    within = run["share_of_ideal_within"]
    return (
        f"{run['name']:15}{run['samples_per_second']:11,.1f}{run['share_of_ideal']:10.1%}"
        f"{'-' if within is None else f'{within:.1%}':>10}"
        f"{run['median_samples_per_second']:12,.1f}"
        f"{run['with_start_samples_per_second']:12,.1f}{'-' if target is None else f'{target:.1f} s':>9}"
        f"{'-' if accuracy is None else f'{accuracy:.1%}':>10}{'-' if error is None else f'{error:.1%}':>12}"
        f"{run['real_part']:11.1%}{run['machine_busy']:9.1%}"
    )


def _check_line(check: Mapping[str, Any]) -> str:
    verdict = "holds" if check["ok"] else "DOES NOT HOLD: the machine is too busy, or the lab is wrong"
    return (
        f"check of the lab: {check['what']}: {check['measured']:.3f}, expected {check['expected']:.3f} "
        f"± {check['tolerance']:g}: {verdict}"
    )
