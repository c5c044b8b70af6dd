"""A plan that is being agreed: proposed to all live workers, in force when all accept, refused by one or by silence."""

from __future__ import annotations

from collections.abc import Iterable

from heterotrain_core.run_effects import AnswerPlan, Refusal
from heterotrain_core.types import Plan


class Negotiation:
    """One proposal, from its sending until `done`. Pure; `deadline` is an instant of the caller's clock."""

    def __init__(
        self, request: int, plan: Plan, workers: Iterable[str], *, deadline: float, deadline_seconds: float
    ) -> None:
        self.request = request
        self.plan = plan
        self.deadline = deadline
        self._deadline_seconds = deadline_seconds
        self._waiting = set(workers)
        self._refusals: list[Refusal] = []

    @property
    def done(self) -> bool:
        """Whether everybody has answered."""
        return not self._waiting

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """So far; without any, a plan that is `done` is agreed."""
        return tuple(sorted(self._refusals, key=lambda r: r.worker))

    def answer(self, worker: str, *, generation: int, accepted: bool, reason: str) -> None:
        """Take an answer; late answers to an older proposal change nothing."""
        if generation != self.plan.generation or worker not in self._waiting:
            return
        self._waiting.remove(worker)
        if not accepted:
            self._refusals.append(Refusal(worker, reason or "refused without a reason"))

    def expire(self) -> None:
        """The deadline is over: who has not answered refuses."""
        reason = f"did not answer within {self._deadline_seconds:g} s"
        self._refusals += [Refusal(w, reason) for w in self._waiting]
        self._waiting.clear()

    def refused(self, *more: Refusal) -> AnswerPlan:
        """The verdict, given the refusals so far and `more`."""
        return AnswerPlan(self.request, self.plan.generation, refusals=(*more, *self.refusals))
