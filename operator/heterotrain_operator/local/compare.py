"""Runs held side by side, from the ``report.json`` that each left: who was faster, by how much, and with what result.

Pure. The common measure is the time for the same number of samples, which all runs have trained: means over runs of
unlike length would compare starts with ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from heterotrain_operator.local.report import balance_speed_up, pictures, table

DOUBTFUL: Final = 0.25
"""By how much S_balance may miss what was asked for, in parts of it. On quiet machines it was 16 % off."""


class CompareError(ValueError):
    """A report cannot be compared; the text says what is wrong with it."""


Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Moment(BaseModel):
    """What is read of a history's point: see `heterotrain_operator.local.watch.HistoryPoint`."""

    model_config = ConfigDict(frozen=True)

    seconds: Amount
    samples: Amount
    samples_per_second: Amount
    ideal_samples_per_second: Amount
    shares: Mapping[str, int]


class PacedWorker(BaseModel):
    """A worker, as far as its pace goes."""

    model_config = ConfigDict(frozen=True)

    stretch: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None


class PlanInForce(BaseModel):
    """The last plan."""

    model_config = ConfigDict(frozen=True)

    generation: Annotated[int, Field(ge=0)]


class RunReport(BaseModel):
    """What is read of a ``report.json``."""

    model_config = ConfigDict(frozen=True)

    job: str
    state: str
    samples: Amount
    training_seconds: Amount
    samples_per_second: Amount
    ideal_samples_per_second: Amount
    s_balance: Amount | None
    reported: Mapping[str, float | None]
    workers: Sequence[PacedWorker]
    plan: PlanInForce
    history: Sequence[Moment]

    @model_validator(mode="after")
    def _has_trained(self) -> RunReport:
        if not self.samples or not self.training_seconds or not self.history:
            raise ValueError("the run has trained nothing that could be compared")
        return self


@dataclass(frozen=True, slots=True)
class Run:
    """A run under the name that it has in the comparison."""

    name: str
    report: RunReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run's figures; speeds in samples/s."""

    name: str
    state: str
    first_shares: tuple[int, ...]
    last_shares: tuple[int, ...]
    plans: int
    """Plans after the first, of whatever origin."""
    samples_per_second: float
    ideal: float
    s_balance: float | None
    paced_balance: float | None
    """What S_balance must be by the speeds that ``--speeds`` asked for; `None`: it was not given."""
    seconds: float
    """Of training until `Comparison.samples`."""
    speed_up: float
    """Against the first run: its seconds over these."""
    reported: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """All runs, held at the number of samples that the shortest of them trained."""

    samples: float
    rows: tuple[Row, ...]


def read_report(text: str) -> RunReport:
    """Read a ``report.json``. Raises `CompareError` with the first fault."""
    try:
        return RunReport.model_validate_json(text)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, fault["loc"]))
        raise CompareError(f"{where}: {fault['msg']}" if where else fault["msg"]) from None


def compare(runs: Sequence[Run]) -> Comparison:
    """Hold `runs` side by side; the first is what the others are measured against."""
    samples = min(run.report.samples for run in runs)
    first = seconds_until(runs[0].report, samples)
    return Comparison(samples, tuple(_row(run, samples, first) for run in runs))


def seconds_until(report: RunReport, samples: float) -> float:
    """Seconds of training until so many samples were trained, between the points of the history by a straight line."""
    points = [(point.samples, point.seconds) for point in report.history]
    samples_before, seconds_before = 0.0, 0.0
    for trained, seconds in [*points, (report.samples, report.training_seconds)]:
        if trained >= samples:
            part = (samples - samples_before) / (trained - samples_before)
            return seconds_before + part * (seconds - seconds_before)
        samples_before, seconds_before = trained, seconds
    return report.training_seconds


def _row(run: Run, samples: float, first_seconds: float) -> Row:
    report = run.report
    seconds = seconds_until(report, samples)
    return Row(
        name=run.name,
        state=report.state,
        first_shares=tuple(report.history[0].shares.values()),
        last_shares=tuple(report.history[-1].shares.values()),
        plans=max(report.plan.generation - 1, 0),
        samples_per_second=report.samples_per_second,
        ideal=report.ideal_samples_per_second,
        s_balance=report.s_balance,
        paced_balance=_paced_balance(report),
        seconds=seconds,
        speed_up=first_seconds / seconds if seconds else math.nan,
        reported=report.reported,
    )


def _paced_balance(report: RunReport) -> float | None:
    stretches = [worker.stretch for worker in report.workers]
    return balance_speed_up([1 / stretch for stretch in stretches if stretch is not None]) if all(stretches) else None


def doubts(comparison: Comparison) -> Iterator[str]:
    """What speaks against the figures, a sentence a run."""
    for row in comparison.rows:
        if row.paced_balance is None or row.s_balance is None:
            continue
        if abs(row.s_balance - row.paced_balance) > DOUBTFUL * row.paced_balance:
            yield (
                f"{row.name}: the speeds asked for did not hold. By them S_balance is {row.paced_balance:.2f}, by what "
                f"the workers did {row.s_balance:.2f}: other work on this machine had a hand in it."
            )


def markdown(comparison: Comparison, plots: Sequence[str] = ()) -> str:
    """Return the comparison as a table, with the pictures beneath it."""
    names = sorted({name for row in comparison.rows for name in row.reported})
    base = comparison.rows[0].name
    columns = ("", *(row.name for row in comparison.rows))
    figures: list[tuple[str, list[str]]] = [
        ("state", [row.state for row in comparison.rows]),
        ("shares at first", [_shares(row.first_shares) for row in comparison.rows]),
        ("shares at last", [_shares(row.last_shares) for row in comparison.rows]),
        ("changes of the plan", [str(row.plans) for row in comparison.rows]),
        ("samples/s", [f"{row.samples_per_second:,.0f}" for row in comparison.rows]),
        ("ideal: sum of own speeds, samples/s", [f"{row.ideal:,.0f}" for row in comparison.rows]),
        ("share of ideal", [_part(row) for row in comparison.rows]),
        ("S_balance: what balance alone can give", [_times(row.s_balance) for row in comparison.rows]),
        (f"seconds for {comparison.samples:,.0f} samples", [f"{row.seconds:.1f}" for row in comparison.rows]),
        (f"times as fast as {base}", [_times(row.speed_up) for row in comparison.rows]),
        *((name, [_value(row.reported.get(name)) for row in comparison.rows]) for name in names),
    ]
    lines = ["# " + " and ".join(row.name for row in comparison.rows), ""]
    lines += table(columns, [(name, *cells) for name, cells in figures])
    if found := list(doubts(comparison)):
        lines += ["", *(f"- {doubt}" for doubt in found)]
    if plots:
        lines += ["", "## Plots", "", *pictures(plots)]
    return "\n".join([*lines, ""])


def _shares(shares: Sequence[int]) -> str:
    return "/".join(map(str, shares))


def _part(row: Row) -> str:
    return f"{row.samples_per_second / row.ideal:.1%}" if row.ideal else "unknown"


def _times(value: float | None) -> str:
    return "unknown" if value is None or math.isnan(value) else f"{value:.2f}"


def _value(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"
