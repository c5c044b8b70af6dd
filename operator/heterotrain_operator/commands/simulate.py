"""``heterotrain simulate``: the synchronisation policies in virtual time, before a job is run."""

from __future__ import annotations

import gc
import json
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from heterotrain_api.contract import ExitCode
from heterotrain_api.v1alpha1 import MAX_BATCH
from heterotrain_core.simulate import simulate as run_simulation
from heterotrain_core.simulate_times import Constant, StepTimes, Trace, parse_step_times
from heterotrain_core.simulate_values import (
    ENDLESS,
    Failure,
    Join,
    Link,
    SimulatedWorker,
    Simulation,
    SimulationResult,
)
from heterotrain_core.synchronization import Backup, Synchronization, SyncMode
from heterotrain_operator.commands.errors import CommandError
from heterotrain_operator.commands.replay import modes_of, read_terms, recorded_workers, refuse_others, replayed
from heterotrain_operator.commands.simulated import Cost, print_result, result_document
from heterotrain_operator.commands.synchronization import SynchronizationOptions, parse_pair
from heterotrain_operator.text_file import TextError, read_text

MAX_TRACE_BYTES: Final = 256 * 2**20


def simulate(  # noqa: PLR0917  # a command: its options are given by name
    step_times: Annotated[
        str | None,
        typer.Option(
            "--step-times",
            "--times",
            metavar="SECONDS,…",
            help="Step times, one a worker: 1,1,1,4, or COUNT:DISTRIBUTION such as 100:uniform(1,4), "
            "10:spread(1,4), 4:exponential(2), 4:lognormal(1,0.3), 8:spikes(1,4,0.05).",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='Recorded step times instead: JSON, {"worker": [seconds, …], …}.'),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A job's recording (`heterotrain run --record`), or its report folder: tell the policy again what it "
            "was told. With --mode: another mode with its step times and shares instead.",
        ),
    ] = None,
    mode: Annotated[
        SyncMode | None, typer.Option(case_sensitive=False, help="Mode of synchronisation.  [default: BSP]")
    ] = None,
    until: Annotated[float | None, typer.Option(min=0, metavar="SECONDS", help="Virtual time.  [default: 100]")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="End after so many rounds (versions).")] = None,
    staleness_bound: Annotated[
        str | None,
        typer.Option("--staleness-bound", "--bound", metavar="N|none", help="SSP: iterations; Delay: rounds; both: 3."),
    ] = None,
    delay_window: Annotated[
        str | None,
        typer.Option("--delay-window", "--window", metavar="SECONDS|none", help="Delay; none waits for all.  [0.05]"),
    ] = None,
    dssp: Annotated[str | None, typer.Option(metavar="LOWER,RANGE", help="DSSP, in iterations.  [2,8]")] = None,
    discount: Annotated[
        str | None,
        typer.Option(
            metavar="none|inverse|A|staleness-aware",
            help="Weight of stale gradients: (1+tau)^-A; inverse is 1; Delay: inverse, others: none.",
        ),
    ] = None,
    normalization: Annotated[
        str | None, typer.Option(metavar="target|arrived", help="Divide weights by the batch or by what arrived.")
    ] = None,
    backup: Annotated[int | None, typer.Option(min=0, help="Backup: number of backup workers.  [1]")] = None,
    shares: Annotated[
        str | None, typer.Option(metavar="N,…", help="Samples an iteration, by worker.  [1 each]")
    ] = None,
    dataset_size: Annotated[int | None, typer.Option(min=1, help="Samples of an epoch.  [endless]")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="With --dataset-size.  [default: 1]")] = None,
    phases: Annotated[
        str | None, typer.Option(metavar="SECONDS,…", help="How much longer each worker's first step takes.")
    ] = None,
    link: Annotated[
        str | None, typer.Option(metavar="DELTA,BYTES/S", help="Fixed seconds of a transmission, bandwidth.")
    ] = None,
    model_bytes: Annotated[
        float | None, typer.Option(min=0, help="Bytes pulled and pushed a step, with --link.  [default: 0]")
    ] = None,
    fail: Annotated[
        list[str] | None, typer.Option(metavar="WORKER@TIME", help="A worker falls silent; may be repeated.")
    ] = None,
    join: Annotated[
        list[str] | None, typer.Option(metavar="WORKER@TIME", help="A worker comes (back); may be repeated.")
    ] = None,
    lease: Annotated[
        float | None,
        typer.Option(min=0, help="With --fail: seconds until a silent worker counts as lost.  [default: 15]"),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the random step times.  [default: 0]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    log: Annotated[bool, typer.Option("--log", help="List all starts and closings too.")] = False,
) -> None:
    """Simulate a mode of synchronisation: workers are named w0, w1, … (or as in the trace).

    The policy is the one that jobs run; times are virtual, so that thousands of workers take seconds.
    """
    options = SynchronizationOptions(
        mode=mode or SyncMode.BSP,
        staleness_bound=staleness_bound,
        delay_window=delay_window,
        dssp=dssp,
        discount=discount,
        normalization=normalization,
        backup=backup,
    )
    recorded = None
    if replay is not None:
        if step_times is not None or trace is not None:
            raise CommandError("--replay has the step times: leave --step-times and --trace out", ExitCode.INVALID)
        recorded = read_terms(replay)[-1]
        if mode is None:
            refuse_others(
                options, until=until, rounds=rounds, shares=shares, phases=phases, link=link, fail=fail, join=join,
                dataset_size=dataset_size, epochs=epochs, model_bytes=model_bytes, lease=lease, seed=seed,
            )  # fmt: skip
            _show(f"replay of {modes_of(recorded)}", partial(replayed, recorded), as_json=as_json, log=log)
            return
        if shares is not None or phases is not None:
            raise CommandError("--replay has shares and phases: leave --shares and --phases out", ExitCode.INVALID)
        dataset_size = dataset_size or recorded.beginning.dataset_size
        epochs = epochs or recorded.beginning.epochs
    with _said_by_user():
        _refuse_without_meaning(
            epochs=epochs, dataset_size=dataset_size, model_bytes=model_bytes, link=link, lease=lease, fail=fail
        )
        workers = _workers(step_times, trace, shares, phases) if recorded is None else recorded_workers(recorded)
        end = until if until is not None else (100.0 if rounds is None and dataset_size is None else float("inf"))
        simulation = Simulation(
            workers=workers,
            synchronization=_synchronization(options, len(workers)),
            until_seconds=end,
            rounds=rounds,
            dataset_size=dataset_size or ENDLESS,
            epochs=epochs or 1,
            link=_link(link),
            model_bytes=model_bytes or 0.0,
            events=(
                *(Failure(seconds, worker) for worker, seconds in map(_at, fail or ())),
                *(Join(seconds, worker) for worker, seconds in map(_at, join or ())),
            ),
            lease_seconds=15.0 if lease is None else lease,
            seed=seed or 0,
            keep_log=log,
        )
    _show(simulation.synchronization.mode, partial(run_simulation, simulation), as_json=as_json, log=log)


def _show(mode: str, run: Callable[[], SimulationResult], *, as_json: bool, log: bool) -> None:
    result, cost = _measured(run)
    if as_json:
        typer.echo(json.dumps(result_document(mode, result, cost, log=log), indent=2))
    else:
        print_result(Console(), mode, result, cost, log=log)


def _measured(run: Callable[[], SimulationResult]) -> tuple[SimulationResult, Cost]:
    # Nothing of a simulation is cyclic: the collector would only walk over millions of live values.
    collecting = gc.isenabled()
    gc.disable()
    began = time.perf_counter()
    try:
        result = run()
    finally:
        if collecting:
            gc.enable()
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    mebibytes = peak / 2**20 if sys.platform == "darwin" else peak / 2**10
    return result, Cost(seconds, result.arrivals / max(seconds, 1e-9), mebibytes)


def _synchronization(options: SynchronizationOptions, num_workers: int) -> Synchronization:
    wanted = options.parse()
    if isinstance(wanted, Backup) and wanted.workers >= num_workers:
        given = "1, as it is if not given" if options.backup is None else str(wanted.workers)
        raise ValueError(f"--backup {given}: must be below the number of workers, {num_workers}")
    return wanted


def _refuse_without_meaning(
    *,
    epochs: int | None,
    dataset_size: int | None,
    model_bytes: float | None,
    link: str | None,
    lease: float | None,
    fail: list[str] | None,
) -> None:
    if epochs is not None and dataset_size is None:
        raise ValueError("--epochs means nothing in an endless training: give --dataset-size too")
    if model_bytes is not None and link is None:
        raise ValueError(
            "--model-bytes mean nothing to links that take no time: give --link too, for example 0.001,1e8"
        )
    if lease is not None and not fail:
        raise ValueError("--lease means nothing if nobody falls silent: give --fail too, for example w0@10")


def _workers(
    step_times: str | None, trace: Path | None, shares: str | None, phases: str | None
) -> tuple[SimulatedWorker, ...]:
    if (step_times is None) == (trace is None):
        raise ValueError("give one of --step-times, for example --step-times 1,1,1,4, --trace FILE or --replay FILE")
    times = (
        _read_trace(trace)
        if trace is not None
        else {f"w{i}": steps for i, steps in enumerate(parse_step_times(step_times or ""))}
    )
    num_workers = len(times)
    samples = _numbers("--shares", shares, num_workers, 1)
    delays = _numbers("--phases", phases, num_workers, 0)
    if not all(1 <= share <= MAX_BATCH and share.is_integer() for share in samples):
        raise ValueError(f"--shares must be whole numbers from 1 to {MAX_BATCH}, one a worker")
    if not all(0 <= delay < math.inf for delay in delays):
        raise ValueError("--phases must be at least 0 s and finite, one a worker")
    return tuple(
        SimulatedWorker(name, steps, int(share), phase)
        for (name, steps), share, phase in zip(times.items(), samples, delays, strict=True)
    )


def _numbers(option: str, text: str | None, count: int, default: float) -> list[float]:
    if text is None:
        return [float(default)] * count
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} {text}: write numbers separated by commas, one a worker") from None
    if len(numbers) != count:
        raise ValueError(f"{option} has {len(numbers)} numbers for {count} workers")
    return numbers


def _read_trace(path: Path) -> dict[str, StepTimes]:
    try:
        document = json.loads(read_text(path, MAX_TRACE_BYTES), object_pairs_hook=_each_once)
    except OSError as error:
        raise ValueError(f"--trace {path}: cannot be read: {error.strerror}") from None
    except TextError as error:
        raise ValueError(f"--trace {path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"--trace {path}: is not JSON that can be taken: {error}") from None
    if not isinstance(document, dict) or not document:
        raise ValueError(f'--trace {path}: must be a JSON object such as {{"gpu-0": [0.25, 0.26], "cpu-0": [1.1]}}')
    times: dict[str, StepTimes] = {}
    for name, seconds in document.items():
        numbers = seconds if isinstance(seconds, list) else [seconds]
        if not name.isprintable() or not name:
            raise ValueError(f"--trace {path}: {name!r} is no name of a worker: write one with characters to be seen")
        if not all(isinstance(s, int | float) and not isinstance(s, bool) for s in numbers):
            raise ValueError(f"--trace {path}: {name} must have a list of seconds")
        try:
            times[name] = Trace(tuple(map(float, numbers))) if len(numbers) != 1 else Constant(float(numbers[0]))
        except (ValueError, OverflowError) as error:
            raise ValueError(f"--trace {path}: {name}: {error}") from None
    return times


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("it names a worker twice")
    return document


def _link(text: str | None) -> Link:
    return Link() if text is None else Link(*parse_pair("--link", text))


def _at(text: str) -> tuple[str, float]:
    worker, _, seconds = text.rpartition("@")
    try:
        return worker, float(seconds)
    except ValueError:
        raise ValueError(f"{text}: write an event as worker@seconds, for example w3@10") from None


@contextmanager
def _said_by_user() -> Iterator[None]:
    """Show faults of options as what they are."""
    try:
        yield
    except ValueError as error:
        raise CommandError(str(error), ExitCode.INVALID) from None
