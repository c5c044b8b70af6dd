"""``heterotrain sync show`` and ``sync set``: how the workers of a running job wait for each other."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any, Final

import typer

from heterotrain_api.contract import ExitCode
from heterotrain_api.v1alpha1 import MAX_REPLICAS
from heterotrain_core.sync_settings import SyncSettings, from_fields, settings_of, to_fields
from heterotrain_core.synchronization import SyncMode, describe
from heterotrain_operator.commands.connect import coordinator_of, patience, state_of
from heterotrain_operator.commands.errors import CommandError
from heterotrain_operator.commands.place import ContextOption, NamespaceOption, Place, remote
from heterotrain_operator.commands.plan import refusal_lines
from heterotrain_operator.commands.synchronization import SynchronizationOptions, change_of
from heterotrain_operator.local.report import synchronization_document
from heterotrain_rpc import control_pb2
from heterotrain_rpc.fields import given_fields
from heterotrain_rpc.plans import plan_message

app = typer.Typer(help="Show or change how the workers of a running job wait for each other.", no_args_is_help=True)
NOTHING_GIVEN: Final = "say what to change, for example --staleness-bound 1"
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Name of a running job.")]


@app.command()
def show(
    job: JobArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Show the mode, the bound in force and how stale gradients were. Of a job on a cluster: as its status says."""
    place = Place(namespace, context)
    if place.given:
        remote().show_sync(place, job, as_json=as_json)
        return
    state = state_of(job).synchronization
    if as_json:
        typer.echo(json.dumps(synchronization_document(state), indent=2))
        return
    for line in lines(state):
        typer.echo(line)


@app.command(name="set")
def set_(  # noqa: PLR0917  # a command: its options are given by name
    job: JobArgument,
    mode: Annotated[SyncMode | None, typer.Option(help="Another mode, with its own defaults.")] = None,
    staleness_bound: Annotated[
        str | None, typer.Option(metavar="N|none", help="SSP: iterations ahead; Delay: rounds. none: no bound.")
    ] = None,
    delay_window: Annotated[
        str | None, typer.Option(metavar="SECONDS|none", help="Delay: how long a round stays open; none: for all.")
    ] = None,
    dssp: Annotated[str | None, typer.Option(metavar="LOWER,RANGE", help="DSSP: its bounds.")] = None,
    discount: Annotated[
        str | None, typer.Option(metavar="A|none|inverse|staleness-aware", help="Factor on stale gradients.")
    ] = None,
    normalization: Annotated[str | None, typer.Option(metavar="target|arrived", help="Divisor of weights.")] = None,
    backup: Annotated[
        int | None, typer.Option(min=0, max=MAX_REPLICAS, metavar="K", help="Backup: workers not waited for.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Kept with the plan, for whoever reads it later.")] = "set by the user",
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the workers' agreement.")] = 60.0,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Change mode, bound or window: agreed by all workers as a plan, or refused with the reason (exit code 1).

    What is not given stays. A lowered bound is in force when the gradients beyond it are in; another mode begins when
    everything granted before is committed.
    """
    place = Place(namespace, context)
    if place.given:
        _set_remotely(
            place, job, reason, timeout, mode=mode, staleness_bound=staleness_bound, delay_window=delay_window,
            dssp=dssp, discount=discount, normalization=normalization, backup=backup,
        )  # fmt: skip
        return
    if not any_given(mode, staleness_bound, delay_window, dssp, discount, normalization, backup):
        raise CommandError(NOTHING_GIVEN, ExitCode.INVALID)
    state = state_of(job)
    now = from_fields(given_fields(state.synchronization.wanted))
    options = SynchronizationOptions(
        mode=mode or now.mode, staleness_bound=staleness_bound, delay_window=delay_window, dssp=dssp,
        discount=discount, normalization=normalization, backup=backup,
    )  # fmt: skip
    try:
        wanted = changed(now, options)
        words = describe(wanted.synchronization())
    except ValueError as error:
        raise CommandError(str(error), ExitCode.INVALID) from None
    plan = plan_message(reason=reason, synchronization=to_fields(wanted), generation=state.plan.generation + 1)
    with coordinator_of(job) as stub, patience(job, "the change", timeout):
        verdict = stub.Apply(plan, timeout=timeout)
    if not verdict.accepted:
        raise CommandError("\n".join(refusal_lines(verdict)))
    typer.echo(f"plan {verdict.generation}: {words}")


def _set_remotely(place: Place, job: str, reason: str, timeout: float, **options: Any) -> None:
    """The operator knows the mode in force: it completes what is given, or says what does not fit."""
    try:
        change = change_of(**options)
    except ValueError as error:
        raise CommandError(str(error), ExitCode.INVALID) from None
    if not change:
        raise CommandError(NOTHING_GIVEN, ExitCode.INVALID)
    remote().set_sync(place, job, change, reason=reason, timeout_seconds=timeout)


def any_given(*options: object) -> bool:
    """Whether there is anything to change."""
    return any(option is not None for option in options)


def changed(now: SyncSettings, options: SynchronizationOptions) -> SyncSettings:
    """Settings after a change; of another mode what is not given has that mode's default. Raises `ValueError`."""
    parsed = settings_of(options.parse())
    if options.mode is not now.mode:
        return parsed
    result = now
    if options.staleness_bound is not None:
        result = replace(result, staleness_bound=parsed.staleness_bound)
    if options.delay_window is not None:
        result = replace(result, delay_window_seconds=parsed.delay_window_seconds)
    if options.dssp is not None:
        result = replace(result, dssp_lower=parsed.dssp_lower, dssp_range=parsed.dssp_range)
    if options.discount is not None:
        result = replace(result, discount=parsed.discount, discount_exponent=parsed.discount_exponent)
    if options.normalization is not None:
        result = replace(result, normalization=parsed.normalization)
    if options.backup is not None:
        result = replace(result, backup_workers=parsed.backup_workers)
    return result


def lines(state: control_pb2.SynchronizationState) -> list[str]:
    """Mode and bounds in words, then the staleness seen."""
    wanted = from_fields(given_fields(state.wanted)).synchronization()
    found = [describe(wanted)]
    if state.mode != wanted.mode:
        found.append(f"still {state.mode}, until everything granted before is committed")
    in_force = state.bound_in_force if state.HasField("bound_in_force") else None
    if state.mode == wanted.mode and in_force != wanted.bound:
        found.append(f"bound in force: {'none' if in_force is None else in_force}, until gradients beyond it are in")
    gradients = sum(state.staleness.values())
    seen = ", ".join(f"{tau}: {state.staleness[tau]}" for tau in sorted(state.staleness))
    found.append(f"{gradients} gradients, at most {state.largest_staleness} versions stale ({seen})")
    return found
