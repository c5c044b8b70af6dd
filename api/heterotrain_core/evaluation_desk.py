"""Evaluations of a running job: whom they wait for, and who can never come. Pure."""

from __future__ import annotations

from heterotrain_core.evaluation import EvaluationBoard
from heterotrain_core.members import Member, Members
from heterotrain_core.rounds import Rounds
from heterotrain_core.run_effects import Effect
from heterotrain_core.run_events import EvaluationCalled, EvaluationPart
from heterotrain_core.run_values import RunFault, RunReason, WorkerPhase
from heterotrain_core.telemetry import RoundTelemetry
from heterotrain_core.types import Plan


class EvaluationDesk:
    """The board of evaluations, fed with the job's members. Raises `RunFault` when the scripts do not agree.

    `rounds` is `None` before training.
    """

    def __init__(self, members: Members, totals: RoundTelemetry) -> None:
        self._members = members
        self._totals = totals
        self._board = EvaluationBoard()

    def came(self, worker: str) -> None:
        """A worker has joined while others are training."""
        self._board.came(worker)

    def at_epoch_end(self, worker: str) -> None:
        """A worker holds the version of an epoch's end."""
        self._board.at_epoch_end(worker)

    def left(self, worker: str) -> None:
        """A worker's script has ended; raises `RunFault` in the middle of an evaluation."""
        self._board.left(worker)

    def lost(self, worker: str, rounds: Rounds | None, plan: Plan, now: float) -> list[Effect]:
        """A worker is gone; others do its part, and nobody waits for it."""
        effects: list[Effect] = [*self._board.lost(worker)]
        return [*effects, *self._share_out(rounds, plan, now)] if self._board.callers else effects

    def called(self, event: EvaluationCalled, rounds: Rounds | None, plan: Plan, now: float) -> list[Effect]:
        """A worker's script has reached an evaluation."""
        alone = self._board.call(event.worker, event.call, event.dataset_size, event.version)
        return [*alone, *self._share_out(rounds, plan, now)]

    def part(self, event: EvaluationPart, now: float) -> list[Effect]:
        """A worker's sums."""
        outcome = self._board.part(event.worker, event.call, event.sums, event.seconds)
        if outcome and not self._board.busy:
            self._totals.evaluation_ends(now)
        return [*outcome]

    def check_not_stuck(self, rounds: Rounds) -> None:
        """Raise `RunFault` if workers wait in an evaluation for others that can never come."""
        callers = self._board.callers
        if not callers:
            return
        waiting = frozenset(m.ordinal for m in self._members if m.name in callers)
        pair = rounds.stuck(waiting, frozenset(m.ordinal for m in self._expected(rounds)))
        if pair is not None:
            other, caller = (rounds.name_of(i) for i in pair)
            raise RunFault(
                RunReason.SCRIPTS_DIFFER,
                f"worker {caller} calls session.evaluate in round {rounds.policy.version} while worker {other} "
                "waits for its gradient: all workers must evaluate at the same places of the script",
            )

    def _expected(self, rounds: Rounds | None) -> list[Member]:
        """Workers that are waited for; before training, those that have not joined yet as well."""
        if rounds is None:
            return [m for m in self._members if m.phase is not WorkerPhase.FINISHED]
        return [m for m in self._members if m.present and not self._board.is_behind(m.name)]

    def _share_out(self, rounds: Rounds | None, plan: Plan, now: float) -> list[Effect]:
        expected = self._expected(rounds)
        names = [m.name for m in expected]
        if not self._board.callers.issuperset(names):
            if rounds is not None:
                self.check_not_stuck(rounds)
            return []
        speeds = {m.name: m.telemetry.own_speed() for m in expected}
        work = self._board.share_out(names, speeds, plan.samples)
        if work:
            self._totals.evaluation_begins(now)
        return [*work]
