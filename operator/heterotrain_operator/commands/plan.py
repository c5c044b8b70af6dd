"""``heterotrain plan show`` and ``plan set``: the shares of a running job."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer
from google.protobuf.json_format import MessageToDict

from heterotrain_api.contract import ExitCode
from heterotrain_api.v1alpha1 import MAX_BATCH
from heterotrain_operator.commands.connect import coordinator_of, patience, state_of
from heterotrain_operator.commands.errors import CommandError
from heterotrain_operator.commands.place import ContextOption, NamespaceOption, Place, remote
from heterotrain_operator.local.progress import headline, make_console, worker_table
from heterotrain_rpc import control_pb2

app = typer.Typer(help="Show or change the shares of a running job.", no_args_is_help=True)
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Name of a running job.")]
_SHARE: Final = re.compile(r"(?P<worker>[^=\s]+)=(?P<samples>[0-9]+)(?:/(?P<micro_batch>[0-9]+))?")
_DIGITS: Final = 20
"""Of a number that are read; one so long is too large in any case."""


@app.command()
def show(
    job: JobArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole state as JSON.")] = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Show each worker's share and speed, and the plan in force. Of a job on a cluster: as its status says."""
    place = Place(namespace, context)
    if place.given:
        remote().show(place, job, as_json=as_json)
        return
    state = state_of(job)
    if as_json:
        typer.echo(json.dumps(state_document(state), indent=2))
        return
    console = make_console()
    console.print(headline(state), soft_wrap=True)
    console.print(worker_table(state))
    console.print(plan_line(state.plan), soft_wrap=True)


@app.command(name="set")
def set_(  # noqa: PLR0917  # a command: its options are given by name
    job: JobArgument,
    shares: Annotated[
        list[str],
        typer.Argument(
            metavar="WORKER=SHARE…",
            help="Samples a round, e.g. cpu-0=96; cpu-0=96/32 also sets the micro-batch. "
            "Workers that are not named keep their share.",
        ),
    ],
    reason: Annotated[str, typer.Option(help="Kept with the plan, for whoever reads it later.")] = "set by the user",
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait until the plan is in force.")] = 60.0,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Propose new shares: in force for all workers from one round on, or refused with the reason (exit code 1)."""
    wanted, place = parse_shares(shares), Place(namespace, context)
    if place.given:
        remote().set_plan(place, job, wanted, reason=reason, timeout_seconds=timeout)
        return
    plan = control_pb2.Plan(shares=wanted, reason=reason)
    with coordinator_of(job) as stub, patience(job, "the plan", timeout):
        verdict = stub.Apply(plan, timeout=timeout)
    if not verdict.accepted:
        raise CommandError("\n".join(refusal_lines(verdict)))
    typer.echo(f"plan {verdict.generation} is in force from round {verdict.effective_round}")


def parse_shares(texts: Sequence[str]) -> list[control_pb2.PlanShare]:
    """Read ``worker=samples`` or ``worker=samples/micro-batch``; raises `CommandError`."""
    shares: dict[str, control_pb2.PlanShare] = {}
    for text in texts:
        match = _SHARE.fullmatch(text)
        if match is None:
            raise CommandError(f"{text}: write a share as worker=samples, for example cpu-0=96", ExitCode.INVALID)
        worker = match["worker"]
        if worker in shares:
            raise CommandError(f"{text}: {worker} is named twice", ExitCode.INVALID)
        if max(len(number or "") for number in match.group("samples", "micro_batch")) > _DIGITS:
            raise CommandError(f"{text[:40]}: a share has at most {MAX_BATCH} samples", ExitCode.INVALID)
        micro_batch = int(match["micro_batch"]) if match["micro_batch"] else None
        if max(int(match["samples"]), micro_batch or 0) > MAX_BATCH:
            raise CommandError(f"{text}: a share has at most {MAX_BATCH} samples", ExitCode.INVALID)
        shares[worker] = control_pb2.PlanShare(worker=worker, samples=int(match["samples"]), micro_batch=micro_batch)
    return list(shares.values())


def refusal_lines(verdict: control_pb2.PlanVerdict) -> list[str]:
    """Return who refused a plan and why, a line each."""
    refusals = [f"{refusal.worker or 'the coordinator'}: {refusal.reason}" for refusal in verdict.refusals]
    return ["the plan was refused; nothing changed", *refusals]


def plan_line(plan: control_pb2.PlanState) -> str:
    """Return where the plan in force comes from."""
    origin = "made by the coordinator" if plan.derived else plan.reason or "the start shares of the manifest"
    return f"plan {plan.generation}, in force from round {plan.effective_round}: {origin}"


def state_document(state: control_pb2.JobState) -> dict[str, Any]:
    """Return the state with the field names of ``control.proto``."""
    return MessageToDict(state, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
