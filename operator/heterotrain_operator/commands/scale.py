"""``heterotrain scale``: more or fewer workers in the groups of a running job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer

from heterotrain_api.contract import ExitCode
from heterotrain_api.v1alpha1 import MAX_REPLICAS
from heterotrain_operator.commands.connect import command
from heterotrain_operator.commands.errors import CommandError
from heterotrain_operator.commands.place import ContextOption, NamespaceOption, Place, remote
from heterotrain_operator.commands.plan import JobArgument
from heterotrain_rpc import control_pb2

_DIGITS: Final = 20
"""Of a number that are read; one so long is too large in any case."""


def scale(
    job: JobArgument,
    groups: Annotated[
        list[str], typer.Argument(metavar="GROUP=REPLICAS...", help="How many workers groups shall have, e.g. cpu=4.")
    ],
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the answer.")] = 60.0,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Give groups of a running job another number of workers: new ones join, those that are too many leave.

    On a cluster this is an edit of spec.workers[].replicas; the answer then is that of the API server.
    """
    wanted = parse_groups(groups)
    place = Place(namespace, context)
    if place.given:
        remote().scale(place, job, wanted)
        return
    for group, replicas in wanted.items():
        command(job, control_pb2.CommandRequest(scale=control_pb2.Scale(group=group, replicas=replicas)), timeout)
        typer.echo(f"group {group} has {replicas} workers from now on; see `heterotrain plan show {job}`")


def parse_groups(words: Sequence[str]) -> Mapping[str, int]:
    """Read ``GROUP=REPLICAS`` words; raises `CommandError` naming one that is none."""
    wanted: dict[str, int] = {}
    for word in words:
        group, sign, number = word.partition("=")
        if not (group and sign and number.isascii() and number.isdecimal() and number.strip("0")):
            raise CommandError(
                f"{word[:40]}: write GROUP=REPLICAS with at least 1 worker, e.g. cpu=4", ExitCode.INVALID
            )
        if len(number) > _DIGITS or int(number) > MAX_REPLICAS:
            raise CommandError(f"{word[:40]}: a group has at most {MAX_REPLICAS} workers", ExitCode.INVALID)
        if group in wanted:
            raise CommandError(f"group {group} is given twice", ExitCode.INVALID)
        wanted[group] = int(number)
    return wanted
