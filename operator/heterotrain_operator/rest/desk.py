"""Where rules are kept that the API shows and changes, behind one interface; and the desk that keeps them in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from heterotrain_api.info_collection import CollectionRule
from heterotrain_api.info_rules import ProcessingRule
from heterotrain_api.validation import Fault, InvalidManifestError
from heterotrain_operator.info.loop import InfoService
from heterotrain_operator.info.rule_state import RuleKind
from heterotrain_operator.info.rules import compile_processing, rule_from_spec

MAX_COLLECTION_RULES: Final = 512
_NO_COMMANDS: Final = "commands are taken from rule files only: start the server with --allow-commands to change that"

Rule = CollectionRule | ProcessingRule


@dataclass(frozen=True, slots=True)
class RuleView:
    """A rule as the API shows it."""

    kind: RuleKind
    name: str
    generation: int
    """Grows with each change of the spec."""
    spec: Mapping[str, Any]
    """As its resource has it, with defaults in place."""


class NoSuchRuleError(Exception):
    """There is no rule of the kind and name."""


class RuleExistsError(Exception):
    """There is a rule of the kind and name already."""


class GenerationConflictError(Exception):
    """The rule is not the one that the caller has seen."""

    def __init__(self, present: int) -> None:
        super().__init__(f"the rule's generation is {present}")
        self.present: Final = present


class DeskUnavailableError(Exception):
    """Where rules are kept does not answer."""


class RuleDesk(Protocol):
    """All rules. What is written is in force soon after (locally at once); raises `DeskUnavailableError`."""

    def rules(self, kind: RuleKind) -> Sequence[RuleView]:
        """The rules of a kind, by name; from memory."""

    def get(self, kind: RuleKind, name: str) -> RuleView | None:
        """One rule; from memory."""

    async def create(self, kind: RuleKind, name: str, spec: object) -> RuleView:
        """Take up a new rule. Raises `RuleExistsError`, or `InvalidManifestError` with all that is wrong with it."""

    async def replace(self, kind: RuleKind, name: str, spec: object, generation: int) -> RuleView:
        """Change a rule whose generation is still the given one.

        Raises `NoSuchRuleError`, `GenerationConflictError`, `InvalidManifestError`.
        """

    async def delete(self, kind: RuleKind, name: str, generation: int | None) -> None:
        """Take a rule away; of this generation, if one is given. Raises as `replace`."""


def checked_rule(service: InfoService, kind: RuleKind, name: str, spec: object, no_commands: str | None) -> Rule:
    """A rule from its spec; raises `InvalidManifestError` with all that is wrong with it among the other rules.

    `no_commands`: why its source must be no command; `None`: it may be one.
    """
    rule = rule_from_spec(kind, name, spec)
    if isinstance(rule, ProcessingRule):
        reason = service.engine.refusal(compile_processing(rule))
        if reason is not None:
            raise InvalidManifestError([Fault("spec", reason)])
    elif rule.spec.source.command is not None and no_commands is not None:
        raise InvalidManifestError([Fault("spec.source.command", no_commands)])
    return rule


class LocalDesk:
    """Rules in memory: those of a file at first, then what the API makes of them. A change is in force at once."""

    def __init__(self, service: InfoService, rules: Iterable[Rule] = (), *, allow_commands: bool = False) -> None:
        """`rules` have no faults (`heterotrain_operator.info.rules.load_rules`); `allow_commands`: in later ones."""
        self._service = service
        self._allow_commands = allow_commands
        self._views: dict[RuleKind, dict[str, RuleView]] = {kind: {} for kind in RuleKind}
        for rule in rules:
            self._keep(rule, 1)

    def rules(self, kind: RuleKind) -> Sequence[RuleView]:
        """The rules of a kind, by name."""
        return [view for _, view in sorted(self._views[kind].items())]

    def get(self, kind: RuleKind, name: str) -> RuleView | None:
        """One rule."""
        return self._views[kind].get(name)

    async def create(self, kind: RuleKind, name: str, spec: object) -> RuleView:
        """See `RuleDesk`."""
        if name in self._views[kind]:
            raise RuleExistsError
        if kind is RuleKind.COLLECT and len(self._views[kind]) >= MAX_COLLECTION_RULES:
            raise InvalidManifestError([Fault("", f"there are {MAX_COLLECTION_RULES} collection rules: remove one")])
        return self._keep(self._checked(kind, name, spec), 1)

    async def replace(self, kind: RuleKind, name: str, spec: object, generation: int) -> RuleView:
        """See `RuleDesk`. The same spec again changes nothing."""
        present = self._present(kind, name, generation)
        rule = self._checked(kind, name, spec)
        if rule.to_document()["spec"] == present.spec:
            return present
        return self._keep(rule, present.generation + 1)

    async def delete(self, kind: RuleKind, name: str, generation: int | None) -> None:
        """See `RuleDesk`."""
        self._present(kind, name, generation)
        del self._views[kind][name]
        self._service.remove_rule(kind, name)

    def _present(self, kind: RuleKind, name: str, generation: int | None) -> RuleView:
        present = self._views[kind].get(name)
        if present is None:
            raise NoSuchRuleError
        if generation is not None and generation != present.generation:
            raise GenerationConflictError(present.generation)
        return present

    def _checked(self, kind: RuleKind, name: str, spec: object) -> Rule:
        return checked_rule(self._service, kind, name, spec, None if self._allow_commands else _NO_COMMANDS)

    def _keep(self, rule: Rule, generation: int) -> RuleView:
        metadata = rule.metadata.model_copy(update={"generation": generation})
        rule = rule.model_copy(update={"metadata": metadata})
        kind = RuleKind.COLLECT if isinstance(rule, CollectionRule) else RuleKind.PROCESS
        view = RuleView(kind, metadata.name, generation, rule.to_document()["spec"])
        self._service.set_rule(rule)
        self._views[kind][view.name] = view
        return view
