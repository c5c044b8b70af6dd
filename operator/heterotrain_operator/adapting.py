"""The adaptation loop of one job in the operator: fed with every state of its link, its newest decision told by passes.

Nothing of it is kept beyond this process: after a restart the plan in force stays, and the speeds are learned again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from heterotrain_api.status import MAX_DECISIONS
from heterotrain_core.adaptation.escalate import Step
from heterotrain_core.adaptation.loop import State, step
from heterotrain_core.adaptation.values import Action, Answer, Decision, Mode, NodeFact, Proposal
from heterotrain_operator.adaptation import (
    PlaceSeen,
    Told,
    answer_document,
    answer_of,
    answer_words,
    decision_document,
    gist,
    is_told,
    loop_settings,
    observation_of,
    plan_of,
    unanswered,
)
from heterotrain_operator.job.trainer_config import worker_configs
from heterotrain_operator.job.view import read_spec
from heterotrain_operator.metrics import Metrics
from heterotrain_rpc import control_pb2

logger = logging.getLogger(__name__)

Propose = Callable[[control_pb2.Plan, Callable[[control_pb2.PlanVerdict | str], None]], None]
"""Asks the coordinator; the second argument is called once, with its verdict or why there is none."""
_CHANGING: Final = frozenset(Action) - {Action.NONE, Action.KEEP}


Facts = Callable[[PlaceSeen], NodeFact | None]
"""What the information service knows of the node below a pod."""


class JobLoop:
    """One job's loop. Used on the event loop only; nothing in it waits."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        facts: Facts = lambda _: None,
        metrics: Metrics | None = None,
        cpu: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`cpu`: processor time of this thread in seconds, for what a look costs."""
        self._clock = clock
        self._now = now
        self._facts = facts
        self._metrics = metrics
        self._cpu = cpu
        self._state: State | None = None
        """`None`: no manifest that can be read."""
        self._start_shares: Mapping[str, int] = {}
        self._places: Mapping[str, PlaceSeen] = {}
        self._irreplaceable: Mapping[str, str] = {}
        self.replacing: dict[str, PlaceSeen] = {}
        """Workers that are to be made again elsewhere, with where they run."""
        self._generation: int | None = None
        self._answer: Answer | None = None
        self._gist = ""
        self.decision: Decision | None = None
        """The newest one that says something; `None`: none yet, or the adaptation is off."""
        self.told: tuple[Told, ...] = ()
        """What the status is to tell, oldest first."""

    @property
    def may_replace(self) -> bool:
        """Whether the manifest lets it ask for another pod in a worker's place."""
        return self._state is not None and Step.REPLACE in self._state.settings.escalation

    def place(self, places: Mapping[str, PlaceSeen], irreplaceable: Mapping[str, str]) -> None:
        """Where the workers run, and which cannot be replaced and why, both by worker."""
        self._places, self._irreplaceable = places, irreplaceable
        # One that runs elsewhere has been replaced.
        self.replacing = {name: old for name, old in self.replacing.items() if places.get(name) in {None, old}}

    def follow(self, job: Mapping[str, Any]) -> None:
        """Act by the manifest as it is now; what was learned of the workers stays."""
        generation = job["metadata"].get("generation") or 0
        if generation == self._generation:
            return
        self._generation = generation
        parsed, faults = read_spec(job)
        if parsed is None or faults:
            return  # what runs goes on as before; the pass says what is wrong
        settings = loop_settings(parsed.spec)
        self._state = State(settings) if self._state is None else replace(self._state, settings=settings)
        self._start_shares = {worker.name: worker.share for worker in worker_configs(parsed.spec)}
        if settings.mode is Mode.OFF:
            self.decision = None

    def take(self, name: str, state: control_pb2.JobState, propose: Propose) -> bool:
        """A state of the job's coordinator has come; returns whether a pass has something new to tell."""
        if self._state is None:
            return False
        answer, self._answer = self._answer, None
        if answer is not None:
            self._tell_answer(name, answer, state.training_seconds)
        began = self._cpu()
        seen = observation_of(
            state, self._start_shares, answer=answer, nodes=self._nodes(), irreplaceable=self._irreplaceable
        )
        self._state, decision = step(self._state, seen, self._clock())
        if self._metrics is not None:
            self._metrics.looked(decision, self._cpu() - began)
        if decision.action is Action.NONE:
            return False
        news = _gist_of_conditions(decision) != _gist_of_conditions(self.decision)
        self.decision = decision
        if is_told(decision, self._gist):
            self._gist = gist(decision)
            self._keep(decision_document(decision, seconds=state.training_seconds))
            level = logging.INFO if decision.action in _CHANGING or decision.verified is not None else logging.DEBUG
            logger.log(level, "Job %s: adaptation: %s.", name, decision.reason)
        if decision.replace in self._places:
            self.replacing[decision.replace] = self._places[decision.replace]
        if decision.proposal is not None:
            self._propose(decision.proposal, propose)
        return news

    def _nodes(self) -> dict[str, NodeFact]:
        known = ((worker, self._facts(place)) for worker, place in self._places.items() if place.node)
        return {worker: fact for worker, fact in known if fact is not None}

    def _keep(self, document: Mapping[str, Any]) -> None:
        told = tuple(told for told in self.told if not told.is_look)
        self.told = (*told, Told(self._now(), document))[-MAX_DECISIONS:]

    def _tell_answer(self, name: str, answer: Answer, seconds: float) -> None:
        self._keep(answer_document(answer, seconds=seconds))
        level = logging.WARNING if answer.refusals else logging.INFO
        logger.log(level, "Job %s: adaptation: %s.", name, answer_words(answer))
        if self._metrics is not None:
            self._metrics.answered(answer)

    def _propose(self, proposal: Proposal, propose: Propose) -> None:
        def answered(verdict: control_pb2.PlanVerdict | str) -> None:
            self._answer = unanswered(proposal, verdict) if isinstance(verdict, str) else answer_of(verdict)

        propose(plan_of(proposal), answered)


def _gist_of_conditions(decision: Decision | None) -> object:
    """What of a decision changes a condition's status or reason, and so is worth a pass at once."""
    if decision is None:
        return None
    known = all(row.seconds_per_sample > 0 for row in decision.workers)
    findings = frozenset((found.worker, found.kind) for found in decision.found)
    doing = decision.action if decision.action in {Action.RECOMMEND, Action.REPLACE, Action.GIVE_UP} else None
    return known, decision.gain <= decision.band, doing, findings
