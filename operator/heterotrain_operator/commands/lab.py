"""``heterotrain lab``: unequal workers on this machine, and what each way to train makes of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from heterotrain_api.contract import ExitCode
from heterotrain_core.lab.setups import SETUPS, SetUp
from heterotrain_operator.commands.errors import CommandError
from heterotrain_operator.lab.conduct import DOCUMENT_FILE, REPORT_FILE, conduct, write
from heterotrain_operator.lab.document import Failed, lines
from heterotrain_operator.lab.measure import Lab
from heterotrain_operator.lab.processes import RunFailedError
from heterotrain_operator.lab.quota import NoQuotasError
from heterotrain_operator.lab.variants import VARIANTS, VariantError, parse_variants
from heterotrain_operator.local.packages import missing_for_training
from heterotrain_operator.local.process_plan import base_environment

DATA_FILE: Final = "train-images-idx3-ubyte.gz"
DEBIAN: Final = Path("/usr/share/datasets/fashion-mnist")
OUR_FILES: Final = (DOCUMENT_FILE, REPORT_FILE, "throughput.png", "shares.png", "accuracy.png")


def lab(  # noqa: PLR0917  # a command: its options are given by name
    setup: Annotated[str, typer.Argument(metavar="SETUP", help=f"One of: {', '.join(SETUPS)}.")],
    level: Annotated[
        int, typer.Option(min=2, max=3, help="2: steps padded by sleeping, anywhere. 3: CPU quotas (root, Linux).")
    ] = 2,
    seconds: Annotated[float, typer.Option(min=1, metavar="N", help="Measured window of each run.")] = 60.0,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Passes over all runs, a seed each.")] = 1,
    batch: Annotated[int, typer.Option(min=4, help="Global batch.")] = 256,
    cores: Annotated[
        float | None, typer.Option(min=0.05, help="Level 3: sum of all quotas.  [default: as the set-up has it, 1.5]")
    ] = None,
    warm_up: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Not measured, of each run.")] = 10.0,
    runs: Annotated[
        str | None, typer.Option(metavar="A,B,…", help=f"Which, in this order.  [default: {','.join(VARIANTS)}]")
    ] = None,
    accuracy: Annotated[bool, typer.Option(help="Measure the accuracies over time, after each run.")] = True,
    report: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for tables, plots and logs.  [lab-report/SETUP-LEVEL]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; progress goes to standard error.")] = False,
) -> None:
    """Measure one set-up of unequal workers: DDP, BSP, ASP, SSP and adaptation beside the ideal, in the same run.

    The ideal is the sum of the speeds of all workers running at once without communication. Exit code: 0, 1 a run
    failed, 2 an option is wrong or this machine has no CPU quotas.
    """
    chosen = _setup(setup, level)
    missing = missing_for_training()
    if missing is not None:
        raise CommandError(missing)
    # So that a lab that is told to end takes its processes and control groups away, as with Ctrl-C.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    folder = _fresh((report or Path("lab-report") / f"{setup}-{level}").absolute())
    try:
        variants = parse_variants(runs)
        room = Lab(
            setup=chosen,
            level=level,
            batch=batch,
            seconds=seconds,
            warm_up_seconds=warm_up,
            accuracy=accuracy,
            data=find_data(os.environ),
            folder=folder,
            python=sys.executable,
            environment=base_environment(os.environ, sys.executable),
            cores=_cores(cores, level, chosen),
        )
        result = conduct(
            room, variants, seeds, machine_cores=os.cpu_count() or 1, name=f"heterotrain-lab-{os.getpid()}", say=_say
        )
    except (VariantError, NoQuotasError) as error:
        raise CommandError(str(error), ExitCode.INVALID) from None
    except RunFailedError as error:
        raise CommandError(str(error)) from None
    told = write(result, folder)
    typer.echo(json.dumps(told, indent=1) if as_json else "\n".join([*lines(told), f"report: {folder}"]))
    if any(isinstance(run, Failed) for run in result.runs):
        raise typer.Exit(ExitCode.FAILED)


def find_data(environment: Mapping[str, str]) -> Path:
    """The folder of Fashion-MNIST's files: HETEROTRAIN_DATA, the cache, or Debian's package. Raises `CommandError`."""
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heterotrain" / "fashion-mnist"
    named = environment.get("HETEROTRAIN_DATA")
    places = [Path(named)] if named else [cache, DEBIAN]
    for place in places:
        if (place / DATA_FILE).exists():
            return place
    raise CommandError(
        f"no Fashion-MNIST in {', '.join(map(str, places))}: run `make data`, or name the folder of its idx.gz files "
        "in HETEROTRAIN_DATA",
        ExitCode.INVALID,
    )


def _setup(name: str, level: int) -> SetUp:
    if name not in SETUPS:
        raise CommandError(f"there is no set-up {name!r}; there are: {', '.join(SETUPS)}", ExitCode.INVALID)
    if SETUPS[name].noise and level == 3:
        raise CommandError(
            f"{name}: the steps of level 3 vary as the machine has it, not by 5 %; use --level 2, or the set-up ladder",
            ExitCode.INVALID,
        )
    return SETUPS[name]


def _cores(cores: float | None, level: int, setup: SetUp) -> float | None:
    if cores is None:
        return None
    if level != 3:
        raise CommandError("--cores: means something at level 3 only; leave it out, or add --level 3", ExitCode.INVALID)
    largest = cores * max(setup.quotas) / sum(setup.quotas)
    if largest > 1:
        raise CommandError(
            f"--cores {cores:g}: the fastest worker would need {largest:.2g} cores, and each has one thread; "
            f"at most {sum(setup.quotas) / max(setup.quotas):.3g}",
            ExitCode.INVALID,
        )
    return cores


def _fresh(folder: Path) -> Path:
    """The folder without what an earlier lab left in it; nothing else in it is touched."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in OUR_FILES:
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / "runs", ignore_errors=True)
    except OSError as error:
        raise CommandError(f"--report {folder}: cannot be written to: {error}", ExitCode.INVALID) from None
    return folder


def _say(line: str) -> None:
    typer.echo(line, err=True)
