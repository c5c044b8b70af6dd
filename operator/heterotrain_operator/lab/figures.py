"""From traces and records to figures. Pure; times in seconds, speeds in samples/s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final

from heterotrain_core.lab.setups import SetUp
from heterotrain_core.lab.trace import Step, Trace, Window, capability, common_begin, samples_within
from heterotrain_core.shares import allocate

Curve = Sequence[tuple[float, float]]
TARGET_ACCURACY: Final = 0.85
RECOVERED: Final = 0.9
"""Part of the new ideal that counts as recovered."""
RECOVERY_ROUNDS: Final = 5
"""Rounds that it must hold for."""


def throughput(traces: Sequence[Trace], window: Window) -> float:
    """Of all workers together."""
    return sum(samples_within(trace, window) for trace in traces) / window.seconds


def possible(setup: SetUp, speeds: Sequence[float], traces: Sequence[Trace], window: Window) -> float:
    """The ideal of a run: the sum of the workers' speeds as they were in its window.

    `speeds`: measured without disturbance. A lasting slowdown counts for the time in which it held; bursts with their
    mean, since no schedule can know them.
    """
    mean_factor = setup.bursts.mean_factor if setup.bursts is not None else 1.0
    held = [speed * capability(trace, window) for speed, trace in zip(speeds, traces, strict=True)]
    return sum(held) / mean_factor


def ideal_within(quotas: Sequence[float], traces: Sequence[Trace], window: Window) -> float | None:
    """Level 3: what the quotas would give at the processor time that samples took within the window itself.

    A processor that others share is faster in one minute and slower in the next; speeds measured before the run do not
    know that. It knows nothing of what the run itself makes slower. `None`: nothing was computed, or at level 2.
    """
    speeds = []
    for quota, trace in zip(quotas, traces, strict=False):
        steps = [step for step in trace if window.begin <= step.begin and step.end <= window.end]
        spent = sum(step.computing_cpu for step in steps)
        if spent <= 0:
            return None
        speeds.append(quota * sum(step.samples for step in steps) / spent)
    return sum(speeds) or None


def best_share(setup: SetUp, batch: int, speeds: Sequence[float]) -> float:
    """What the best whole shares could reach under BSP of the ideal, in a set-up without disturbances.

    B / T_opt over the sum of the speeds (algorithms.md 4.2): below 1 by rounding and by the emulated links.
    """
    count = len(speeds)
    fixed = [setup.link(worker) for worker in range(count)]
    shares = allocate(fixed, [1 / speed for speed in speeds], batch, [1] * count, [batch] * count, 1)
    slowest = max(a + b / v for a, b, v in zip(fixed, shares, speeds, strict=True))
    return batch / slowest / sum(speeds)


def real_part(traces: Sequence[Trace]) -> float:
    """Real computing over paced time, of all steps; above 0.2 paced workers disturb each other."""
    steps = [step for trace in traces for step in trace]
    paced = sum(step.paced for step in steps)
    return sum(step.real for step in steps) / paced if paced > 0 else 0.0


def beside_computing(traces: Sequence[Trace]) -> list[float]:
    """CPU seconds of a step beside computing the gradient, median by worker: push, pull, messages, samples."""
    return [median(step.cpu - step.computing_cpu for step in trace if step.samples > 0) for trace in traces]


def curve(traces: Sequence[Trace], until: float, bins: int = 60) -> list[tuple[float, float]]:
    """Throughput over time, since the common begin: middle of each piece, samples/s."""
    begin = common_begin(traces)
    width = (until - begin) / bins
    windows = [Window(begin + i * width, begin + (i + 1) * width) for i in range(bins)]
    return [(w.begin - begin + width / 2, throughput(traces, w)) for w in windows]


def shares_over_time(trace: Trace, begin: float, until: float) -> list[tuple[float, int]]:
    """Time and samples of a worker's steps, where they change."""
    kept: list[tuple[float, int]] = []
    for step in trace:
        if step.end <= until and (not kept or kept[-1][1] != step.samples):
            kept.append((max(0.0, step.begin - begin), step.samples))
    return kept


def disturbance(setup: SetUp, traces: Sequence[Trace], until: float) -> list[tuple[float, float]]:
    """When the lasting slowdown of the set-up held in this run, since the common begin."""
    if setup.step_change is None:
        return []
    begin = common_begin(traces)
    slowed = [step for step in traces[setup.step_change.worker] if step.factor > 1]
    return [(slowed[0].begin - begin, min(until, slowed[-1].end) - begin)] if slowed else []


def time_to(accuracy: Curve, target: float = TARGET_ACCURACY) -> float | None:
    """First time of two measurements in a row that reach the target; `None`: not reached."""
    return next((t for (t, a), (_, b) in pairwise(accuracy) if min(a, b) >= target), None)


# The adaptation's record


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """A plan that came into force, and what its rounds took."""

    generation: int
    effective_round: int
    predicted_seconds: float
    measured_seconds: float | None
    """Median of its rounds; `None`: it had none."""
    shares: Mapping[str, int]
    reason: str

    @property
    def error(self) -> float | None:
        """Of the prediction, relative to what was measured."""
        if self.measured_seconds is None:
            return None
        return abs(self.predicted_seconds - self.measured_seconds) / self.measured_seconds


def plans(decisions: Sequence[Mapping[str, Any]], rounds: Trace) -> list[PlanFigures]:
    """Plans in force, oldest first. `rounds`: steps of a worker that took part in every round (BSP)."""
    proposed = {d["proposal"]["generation"]: d for d in decisions if d.get("proposal")}
    answers = [d["answer"] for d in decisions if d["action"] == "Answer"]
    agreed = [a for a in answers if not a["refusals"] and a["generation"] in proposed]
    ends = [*(a["effective_round"] for a in agreed), len(rounds)][1:]
    return [
        PlanFigures(
            generation=answer["generation"],
            effective_round=answer["effective_round"],
            predicted_seconds=proposed[answer["generation"]]["predicted_seconds"],
            measured_seconds=_median_round(rounds, answer["effective_round"], end),
            shares=proposed[answer["generation"]]["proposal"]["shares"],
            reason=proposed[answer["generation"]]["proposal"]["reason"],
        )
        for answer, end in zip(agreed, ends, strict=True)
    ]


def _median_round(rounds: Trace, first: int, end: int) -> float | None:
    # The first round of a plan is still pulled in the rhythm of the one before.
    lasted = [rounds[i].end - rounds[i - 1].end for i in range(max(1, first + 1), min(end, len(rounds)))]
    return median(lasted) if lasted else None


@dataclass(frozen=True, slots=True)
class Recovery:
    """From a change of speed to `RECOVERED` of the new ideal, held for `RECOVERY_ROUNDS` rounds."""

    step: int
    rounds: int | None
    """`None`: not within the run."""
    seconds: float | None
    plans: int
    """Changes of shares until the next change of speed."""


def recoveries(setup: SetUp, traces: Sequence[Trace], ideal: float, made: Sequence[PlanFigures]) -> list[Recovery]:
    """One for each change of the set-up's step change that the run reached. `ideal`: undisturbed."""
    change = setup.step_change
    if change is None:
        return []
    trace, part = traces[change.worker], setup.ratios[change.worker] / sum(setup.ratios)
    slowed = ideal * (1 - part + part / change.factor)
    found = []
    for step, new_ideal, end in ((change.first, slowed, change.last), (change.last, ideal, len(trace))):
        if step >= len(trace):
            continue
        rounds = _rounds_until(traces, trace[step:end], RECOVERED * new_ideal)
        found.append(
            Recovery(
                step=step,
                rounds=rounds,
                seconds=None if rounds is None else trace[step + rounds].begin - trace[step].begin,
                plans=sum(step <= plan.effective_round < end for plan in made),
            )
        )
    return found


def _rounds_until(traces: Sequence[Trace], steps: Sequence[Step], enough: float) -> int | None:
    for index in range(len(steps) - RECOVERY_ROUNDS):
        window = Window(steps[index].begin, steps[index + RECOVERY_ROUNDS].begin)
        if throughput(traces, window) >= enough:
            return index
    return None
