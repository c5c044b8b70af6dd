"""Where a command's job is: on this machine, or on a cluster by ``-n NAMESPACE`` or ``--context CONTEXT``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import typer

from heterotrain_operator.commands.errors import CommandError
from heterotrain_rpc import control_pb2

NamespaceOption = Annotated[
    str | None,
    typer.Option("--namespace", "-n", metavar="NAMESPACE", help="The job is on a cluster, in this namespace."),
]
ContextOption = Annotated[
    str | None,
    typer.Option(metavar="CONTEXT", help="The job is on the cluster of this context of the kubeconfig."),
]


@dataclass(frozen=True, slots=True)
class Place:
    """Where on a cluster; without a namespace, the one of the context."""

    namespace: str | None
    context: str | None

    @property
    def given(self) -> bool:
        """Whether a cluster was chosen at all."""
        return self.namespace is not None or self.context is not None


class Remote(Protocol):
    """What `heterotrain_operator.commands.cluster` can do."""

    def show(self, place: Place, name: str, *, as_json: bool) -> None:
        """``plan show``."""

    def set_plan(
        self,
        place: Place,
        name: str,
        shares: Sequence[control_pb2.PlanShare],
        *,
        reason: str,
        timeout_seconds: float,
    ) -> None:
        """``plan set``."""

    def show_sync(self, place: Place, name: str, *, as_json: bool) -> None:
        """``sync show``."""

    def explain(self, place: Place, name: str, generation: int | None, *, as_json: bool) -> None:
        """``explain``."""

    def set_sync(
        self, place: Place, name: str, change: Mapping[str, Any], *, reason: str, timeout_seconds: float
    ) -> None:
        """``sync set``."""

    def command(self, place: Place, name: str, word: str, *, worker: str = "", timeout_seconds: float) -> None:
        """``drain``, ``checkpoint``."""

    def scale(self, place: Place, name: str, replicas: Mapping[str, int]) -> None:
        """``scale``."""

    def stop(self, place: Place, name: str, *, now: bool, timeout_seconds: float) -> None:
        """``stop``."""

    def logs(self, place: Place, name: str, process: str | None, *, follow: bool) -> None:
        """``logs``."""

    def documents(self, place: Place, *, everywhere: bool) -> list[dict[str, Any]]:
        """``list``."""
        ...


def remote() -> Remote:
    """The commands for a cluster; raises `CommandError` where their packages are not installed."""
    try:
        from heterotrain_operator.commands import cluster
    except ModuleNotFoundError as error:
        message = f"jobs on a cluster need the package {error.name}: pip install 'heterotrain[operator]'"
        raise CommandError(message) from None
    return cluster
