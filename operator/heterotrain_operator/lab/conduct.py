"""One `heterotrain lab`: passes over all runs, interleaved, so that what changes on the machine meets all alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final

from heterotrain_operator.lab.document import Failed, Result, RunFigures, Speeds, document, lines
from heterotrain_operator.lab.figures import best_share
from heterotrain_operator.lab.measure import SINGLE_SECONDS, Lab, measure_run, measure_speeds
from heterotrain_operator.lab.plots import draw
from heterotrain_operator.lab.processes import RunFailedError
from heterotrain_operator.lab.quota import own_controller, quota_groups
from heterotrain_operator.lab.variants import Variant

DOCUMENT_FILE: Final = "lab.json"
REPORT_FILE: Final = "lab.md"


def conduct(
    lab: Lab, variants: Sequence[Variant], seeds: int, *, machine_cores: int, name: str, say: Callable[[str], None]
) -> Result:
    """Measure everything; each seed is a pass: the speeds, then every variant once, beginning with another one.

    At level 3 the speeds are measured between all runs, and a run's ideal is the mean of those around it: a machine
    that others share is faster in one minute and slower in the next. Paced speeds do not change.

    `name`: of the control groups, unique on this machine. A run that fails is in the result. Raises `NoQuotasError`,
    and `RunFailedError` if the speeds cannot be measured.
    """
    speeds: list[Speeds] = []
    runs: list[RunFigures | Failed] = []
    quotas = quota_groups(own_controller(), lab.quotas, name) if lab.level == 3 else nullcontext(())
    with quotas as groups:
        lab = replace(lab, groups=groups)
        for seed in range(seeds):
            if not speeds or lab.level != 3:
                speeds.append(_speeds(lab, seed, 0, say))
            for place, variant in enumerate(rotated(variants, seed), start=1):
                run = _measure(lab, variant, seed, speeds[-1])
                if lab.level == 3:
                    speeds.append(_speeds_after(lab, seed, place, speeds[-1], say))
                    run = between(run, *speeds[-2:])
                say(f"seed {seed}: {_gist(run)}")
                runs.append(run)
    order = [variant.name for variant in variants]
    return Result(
        setup=lab.setup,
        level=lab.level,
        batch=lab.batch,
        seconds=lab.seconds,
        warm_up_seconds=lab.warm_up_seconds,
        machine_cores=machine_cores,
        quotas=lab.quotas if lab.level == 3 else (),
        speeds=speeds,
        best_share_of_ideal=best_share(lab.setup, lab.batch, speeds[0].together),
        runs=sorted(runs, key=lambda run: order.index(run.name)),
    )


def rotated(variants: Sequence[Variant], by: int) -> tuple[Variant, ...]:
    """The same ones, beginning with another."""
    first = by % len(variants) if variants else 0
    return (*variants[first:], *variants[:first])


def write(result: Result, folder: Path) -> dict[str, object]:
    """Write document, table and pictures into the folder; returns the document."""
    told = document(result)
    (folder / DOCUMENT_FILE).write_text(json.dumps(told, indent=1) + "\n")
    pictures = draw(result, folder)
    table = ["```", *lines(told), "```", "", *(f"![{name}]({name})" for name in pictures)]
    (folder / REPORT_FILE).write_text("\n".join([f"# {result.setup.name}, level {result.level}", "", *table, ""]))
    return told


def between(run: RunFigures | Failed, before: Speeds, after: Speeds) -> RunFigures | Failed:
    """A run with the ideal of the machine as it was around it; `run` has that of before."""
    if isinstance(run, Failed):
        return run
    moved = sum(after.together) / sum(before.together)
    return replace(run, ideal_samples_per_second=run.ideal_samples_per_second * (1 + moved) / 2)


def _speeds(lab: Lab, seed: int, place: int, say: Callable[[str], None]) -> Speeds:
    say(f"seed {seed}: speeds without communication")
    single = seed == place == 0 and lab.seconds >= SINGLE_SECONDS
    speeds = measure_speeds(lab, seed, place, single=single)
    say(f"seed {seed}: {' + '.join(f'{v:,.1f}' for v in speeds.together)} samples/s")
    return speeds


def _speeds_after(lab: Lab, seed: int, place: int, before: Speeds, say: Callable[[str], None]) -> Speeds:
    """The speeds after a run; those of `before` if they cannot be measured, rather than losing all runs so far."""
    try:
        return _speeds(lab, seed, place, say)
    except RunFailedError as error:
        say(f"seed {seed}: speeds not measured, those from before are taken: {error}")
        return replace(before, single=())


def _measure(lab: Lab, variant: Variant, seed: int, speeds: Speeds) -> RunFigures | Failed:
    try:
        return measure_run(lab, variant, seed, speeds.together)
    except RunFailedError as error:
        return Failed(name=variant.name, seed=seed, error=str(error))


def _gist(run: RunFigures | Failed) -> str:
    if isinstance(run, Failed):
        return f"{run.name} failed: {run.error}"
    return f"{run.name}: {run.samples_per_second:,.1f} samples/s, {run.share_of_ideal:.1%} of the ideal"
