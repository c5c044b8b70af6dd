"""``heterotrain explain``: why the shares of a job are what they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from heterotrain_operator.commands.connect import find_job
from heterotrain_operator.commands.errors import CommandError
from heterotrain_operator.commands.jobs import FinishedJobArgument
from heterotrain_operator.commands.place import ContextOption, NamespaceOption, Place, remote
from heterotrain_operator.explain import NothingToExplainError, Record, chain, read_records
from heterotrain_operator.explain import explain as explanation
from heterotrain_operator.local.job_folder import DECISIONS_FILE


def explain(
    job: FinishedJobArgument,
    generation: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The plan of this number; without it the newest, and now.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON.")] = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Say why the shares of a job are what they are: samples, speeds, findings, plan, answer, outcome.

    Of a job on a cluster: as far as its status keeps the decisions (the newest twelve).
    """
    place = Place(namespace, context)
    if place.given:
        remote().explain(place, job, generation, as_json=as_json)
        return
    path = Path(find_job(job).entry.report) / DECISIONS_FILE
    if not path.exists():
        raise CommandError(
            f"job {job} has no record of decisions ({path}): its adaptation is off, or training has not begun"
        )
    try:
        with path.open(encoding="utf-8") as file:
            records = read_records(file)
    except ValueError as error:
        raise CommandError(f"{path}: is no record of decisions, or is damaged: {error}") from None
    print_chain(records, generation, as_json=as_json)


def print_chain(records: Sequence[Record], generation: int | None, *, as_json: bool) -> None:
    """Print what belongs to a plan; raises `CommandError` if there is nothing."""
    try:
        found = chain(records, generation)
    except NothingToExplainError as error:
        raise CommandError(str(error)) from None
    typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(explanation(found)))
