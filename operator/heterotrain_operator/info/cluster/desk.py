"""The rules for the REST API, where they are resources: what it writes is what ``kubectl`` would write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from heterotrain_api.contract import API_VERSION
from heterotrain_api.validation import Fault, InvalidManifestError
from heterotrain_operator.errors import ApiError, ApiUnreachableError
from heterotrain_operator.info.cluster.book import RuleBook, view
from heterotrain_operator.info.cluster.door import RuleKube
from heterotrain_operator.info.loop import InfoService
from heterotrain_operator.info.rule_state import KINDS, RuleKind
from heterotrain_operator.kube import Json
from heterotrain_operator.rest.desk import (
    DeskUnavailableError,
    GenerationConflictError,
    NoSuchRuleError,
    RuleExistsError,
    RuleView,
    checked_rule,
)

ATTEMPTS: Final = 5
"""At a write: the status of a rule is written too, which makes what was read an old version."""
NO_COMMANDS: Final = "commands are not run in a cluster"


class ClusterDesk:
    """`heterotrain_operator.rest.desk.RuleDesk` over the API server."""

    def __init__(self, kube: RuleKube, book: RuleBook, service: InfoService) -> None:
        self._kube = kube
        self._book = book
        self._service = service

    def rules(self, kind: RuleKind) -> Sequence[RuleView]:
        """The rules of a kind, by name."""
        return self._book.views(kind)

    def get(self, kind: RuleKind, name: str) -> RuleView | None:
        """One rule."""
        entry = self._book.entry(kind, name)
        return None if entry is None else view(kind, entry.document)

    async def create(self, kind: RuleKind, name: str, spec: object) -> RuleView:
        """See `RuleDesk`."""
        self._check(kind, name, spec)
        manifest = {"apiVersion": API_VERSION, "kind": KINDS[kind], "metadata": {"name": name}, "spec": spec}
        with _desk_errors():
            try:
                made = await self._kube.create_rule(kind, manifest)
            except ApiError as error:
                if error.reason == "AlreadyExists":
                    raise RuleExistsError from error
                raise
        self._book.saw(kind, made)
        return view(kind, made)

    async def replace(self, kind: RuleKind, name: str, spec: object, generation: int) -> RuleView:
        """See `RuleDesk`. The same spec again changes nothing."""
        with _desk_errors():
            for _ in range(ATTEMPTS):
                present = await self._present(kind, name, generation)
                self._check(kind, name, spec)
                try:
                    changed = await self._kube.replace_rule(kind, {**present, "spec": spec})
                except ApiError as error:
                    if error.reason == "Conflict":
                        continue
                    raise
                self._book.saw(kind, changed)
                return view(kind, changed)
        raise DeskUnavailableError("the rule is written by others all the time")

    async def delete(self, kind: RuleKind, name: str, generation: int | None) -> None:
        """See `RuleDesk`."""
        with _desk_errors():
            for _ in range(ATTEMPTS):
                present = await self._present(kind, name, generation)
                try:
                    await self._kube.delete_rule(kind, name, None if generation is None else present)
                except ApiError as error:
                    if error.reason == "Conflict":
                        continue
                    if error.status == 404:
                        raise NoSuchRuleError from error
                    raise
                self._book.gone(kind, present)
                return
        raise DeskUnavailableError("the rule is written by others all the time")

    async def _present(self, kind: RuleKind, name: str, generation: int | None) -> Json:
        present = await self._kube.get_rule(kind, name)
        if present is None:
            raise NoSuchRuleError
        if generation is not None and present["metadata"]["generation"] != generation:
            raise GenerationConflictError(present["metadata"]["generation"])
        return present

    def _check(self, kind: RuleKind, name: str, spec: object) -> None:
        """All that is wrong, at once and in our words; the API server would say the same."""
        checked_rule(self._service, kind, name, spec, NO_COMMANDS)


@contextmanager
def _desk_errors() -> Iterator[None]:
    """What the API server refuses or leaves unanswered, as a desk says it."""
    try:
        yield
    except ApiError as error:
        raise _refusal(error) from error
    except ApiUnreachableError as error:
        raise DeskUnavailableError("the API server does not answer") from error


def _refusal(error: ApiError) -> Exception:
    if error.status in (400, 422):
        return InvalidManifestError([Fault("", error.message)])
    if error.status == 403:
        return DeskUnavailableError("the operator may not write rules: give its service account the chart's role")
    return DeskUnavailableError(f"the API server answers {error.status} {error.reason}")
