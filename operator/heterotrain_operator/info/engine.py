"""The heart: takes samples up, keeps them, applies the processing rules to them. Skeleton of the interface."""

from __future__ import annotations

from collections.abc import Sequence

from heterotrain_core.info.rules import ProcessingRule
from heterotrain_core.info.values import Sample
from heterotrain_operator.info.events import EventLog
from heterotrain_operator.info.rule_state import RuleState
from heterotrain_operator.info.store import Store


class Engine:
    """Store, events and processing rules together; used on one event loop."""

    def __init__(self, store: Store, events: EventLog) -> None:
        self.store = store
        self.events = events

    def refusal(self, rule: ProcessingRule) -> str | None:
        """Why a new or changed rule cannot be obeyed beside the others (a cycle, an output that another rule has, a wrong
        parameter); `None` if it can."""
        raise NotImplementedError

    def set_rule(self, rule: ProcessingRule) -> RuleState:
        """Obey a new or changed rule from now on (its memory begins anew); a refused one gets `RuleState.error`."""
        raise NotImplementedError

    def remove_rule(self, name: str) -> None:
        """No new values of this rule; what it gave stays until it is too old."""
        raise NotImplementedError

    def ingest(self, samples: Sequence[Sample], now: float) -> dict[str, int]:
        """Store samples (pushed or collected) and apply rules; how many had which `store.Outcome`."""
        raise NotImplementedError

    def tick(self, now: float) -> float | None:
        """Apply the rules that are due by period; when the next one is, `None` if none has a period."""
        raise NotImplementedError

    def rules(self) -> dict[str, ProcessingRule]:
        """Rules in force or refused, by name."""
        raise NotImplementedError

    def states(self) -> dict[str, RuleState]:
        """How each processing rule does, by name."""
        raise NotImplementedError
