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
from heterotrain_core.replay import simulated_workers
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
from heterotrain_core.synchronization import Synchronization, SyncMode
from heterotrain_operator.commands.errors import CommandError
from heterotrain_operator.commands.replay import modes_of, read_terms, refuse_others, replayed
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
    epochs: Annotated[int, typer.Option(min=1, help="With --dataset-size.")] = 1,
    phases: Annotated[
        str | None, typer.Option(metavar="SECONDS,…", help="How much longer each worker's first step takes.")
    ] = None,
    link: Annotated[
        str | None, typer.Option(metavar="DELTA,BYTES/S", help="Fixed seconds of a transmission, bandwidth.")
    ] = None,
    model_bytes: Annotated[float, typer.Option(min=0, help="Bytes pulled and pushed a step.")] = 0.0,
    fail: Annotated[
        list[str] | None, typer.Option(metavar="WORKER@TIME", help="A worker falls silent; may be repeated.")
    ] = None,
    join: Annotated[
        list[str] | None, typer.Option(metavar="WORKER@TIME", help="A worker comes (back); may be repeated.")
    ] = None,
    lease: Annotated[float, typer.Option(min=0, help="Seconds until a silent worker counts as lost.")] = 15.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the random step times.")] = 0,
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
                dataset_size=dataset_size, model_bytes=model_bytes or None,
            )  # fmt: skip
            _show(f"replay of {modes_of(recorded)}", partial(replayed, recorded), as_json=as_json, log=log)
            return
        if shares is not None or phases is not None:
            raise CommandError("--replay has shares and phases: leave --shares and --phases out", ExitCode.INVALID)
        dataset_size = dataset_size or recorded.beginning.dataset_size
        epochs = max(epochs, recorded.beginning.epochs)
    with _said_by_user():
        workers = _workers(step_times, trace, shares, phases) if recorded is None else simulated_workers(recorded)
        end = until if until is not None else (100.0 if rounds is None and dataset_size is None else float("inf"))
        simulation = Simulation(
            workers=workers,
            synchronization=_synchronization(options, len(workers)),
            until_seconds=end,
            rounds=rounds,
            dataset_size=dataset_size or ENDLESS,
            epochs=epochs,
            link=_link(link),
            model_bytes=model_bytes,
            events=(
                *(Failure(seconds, worker) for worker, seconds in map(_at, fail or ())),
                *(Join(seconds, worker) for worker, seconds in map(_at, join or ())),
            ),
            lease_seconds=lease,
            seed=seed,
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
    if options.mode is SyncMode.BACKUP and (options.backup or 0) >= num_workers:
        raise ValueError(f"--backup {options.backup}: must be below the number of workers, {num_workers}")
    return options.parse()


def _workers(
    step_times: str | None, trace: Path | None, shares: str | None, phases: str | None
) -> tuple[SimulatedWorker, ...]:
    if (step_times is None) == (trace is None):
        raise ValueError("give either --step-times, for example --step-times 1,1,1,4, or --trace FILE")
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
        document = json.loads(read_text(path, MAX_TRACE_BYTES))
    except OSError as error:
        raise ValueError(f"--trace {path}: cannot be read: {error.strerror}") from None
    except TextError as error:
        raise ValueError(f"--trace {path}: {error}") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"--trace {path}: is not JSON that can be taken: {error}") from None
    if not isinstance(document, dict) or not document:
        raise ValueError(f'--trace {path}: must be a JSON object such as {{"gpu-0": [0.25, 0.26], "cpu-0": [1.1]}}')
    times: dict[str, StepTimes] = {}
    for name, seconds in document.items():
        numbers = seconds if isinstance(seconds, list) else [seconds]
        if not all(isinstance(s, int | float) for s in numbers):
            raise ValueError(f"--trace {path}: {name} must have a list of seconds")
        times[str(name)] = Trace(tuple(map(float, numbers))) if len(numbers) != 1 else Constant(float(numbers[0]))
    return times


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
