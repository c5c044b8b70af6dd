"""Plans of a running job: proposed and agreed, or derived when a worker goes. One proposal at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

from heterotrain_core.event_log import EventLog
from heterotrain_core.least import raise_minimum, raise_shares
from heterotrain_core.members import Member
from heterotrain_core.memory import MemoryUse, Peaks
from heterotrain_core.negotiation import Negotiation
from heterotrain_core.plan import check_plan, complete_plan, derive_plan, joined_plan, reachable_total
from heterotrain_core.progress import Progress
from heterotrain_core.rounds import Rounds
from heterotrain_core.run_effects import AnswerCommand, AnswerPlan, Effect, PlanProposal, Refusal, Send
from heterotrain_core.run_events import DrainCommanded, PlanAnswered, PlanRequested
from heterotrain_core.run_values import RunConfig, RunFault, RunReason, WorkerSpec
from heterotrain_core.synchronization import Backup, Synchronization, describe
from heterotrain_core.types import Plan, Share

FIRST_GENERATION = 1
"""Generation of the plan that the configuration's start shares make."""


class PlanDesk:
    """Checks, proposes, puts in force. `start` is the plan before training; then the policy holds the newest.

    Raises `ValueError` if the configuration's start shares are no valid plan.
    """

    def __init__(self, config: RunConfig, log: EventLog, restored: Progress | None = None) -> None:
        """The plan of `restored` goes on if it fits the job's workers and batch as they are now."""
        self._config = config
        self._log = log
        self._bounds = {w.name: w.bounds for w in config.workers}
        self._negotiation: Negotiation | None = None
        self._past: dict[str, Share] = {}
        """What workers had that are out of the plan."""
        self._most_at_once: dict[str, int] = {}
        """Samples, of workers that ran out of memory."""
        self._peaks: dict[str, Peaks] = {}
        self._holds: dict[str, int] = {}
        """Samples at once, of workers whose memory model is known."""
        self.start = Plan(FIRST_GENERATION, {w.name: Share(w.share) for w in config.workers}, "start shares")
        # A group that was scaled down may have taken room with it.
        reached = reachable_total(list(self._bounds.values()), config.global_batch_size, config.batch_grain)
        faults = check_plan(
            self.start,
            bounds=self._bounds,
            grain=config.batch_grain,
            total=reached or config.global_batch_size,
            live=list(self._bounds),
            current_generation=0,
        )
        if faults:
            raise ValueError("start shares: " + "; ".join(str(f) for f in faults))
        if restored is not None:
            self.start = self._restored_plan(restored.plan, restored.synchronization)

    def _restored_plan(self, plan: Plan, synchronization: Synchronization) -> Plan:
        config, names = self._config, list(self._bounds)
        total, grain = config.global_batch_size, config.batch_grain
        faults = check_plan(plan, bounds=self._bounds, grain=grain, total=total, live=names, current_generation=0)
        if not faults:
            return replace(plan, synchronization=synchronization)
        # Other workers, another batch, or a worker that had left: its shares mean nothing now.
        return replace(self.start, generation=plan.generation + 1, synchronization=synchronization)

    @property
    def deadline(self) -> float | None:
        """When silence refuses the pending proposal."""
        return self._negotiation.deadline if self._negotiation is not None else None

    def requested(self, event: PlanRequested, rounds: Rounds | None, *, ending: bool, now: float) -> list[Effect]:
        """Propose what the operator asks for to all live workers, or refuse it."""
        current = rounds.policy.plan if rounds is not None else self.start
        plan = complete_plan(event.shares, current, generation=event.generation, reason=event.reason)
        shares = {name: self._in_parts(name, share) for name, share in plan.shares.items()}
        limited = sorted(
            n for n, share in shares.items() if share != plan.shares[n] and share.samples > (share.micro_batch or 0)
        )
        words = ", ".join(f"{name} in parts of {shares[name].micro_batch}" for name in limited)
        reason = f"{plan.reason}; {words}, all that memory holds at once" if limited else plan.reason
        plan = replace(plan, shares=shares, reason=reason, synchronization=event.synchronization)
        refusals: tuple[Refusal, ...]
        if rounds is None:
            refusals = (Refusal("", "training has not begun: propose the plan again when it has"),)
        elif ending:
            refusals = (Refusal("", "training is ending"),)
        elif self._negotiation is not None:
            pending = self._negotiation.plan.generation
            refusals = (Refusal("", f"plan {pending} is being agreed: propose again when that is settled"),)
        else:
            live = [rounds.name_of(i) for i in rounds.policy.live]
            refusals = self._faults(plan, live, current.generation)
            if not refusals:
                self._negotiation = Negotiation(
                    event.request,
                    plan,
                    live,
                    deadline=now + event.deadline_seconds,
                    deadline_seconds=event.deadline_seconds,
                )
                return [Send(name, PlanProposal(plan)) for name in live]
        self._log_refused(plan.generation, refusals, now)
        return [AnswerPlan(event.request, plan.generation, refusals=refusals)]

    def answered(self, event: PlanAnswered, rounds: Rounds | None, now: float) -> list[Effect]:
        """A worker accepts or refuses."""
        if self._negotiation is None or rounds is None:
            return []
        self._negotiation.answer(
            event.worker, generation=event.generation, accepted=event.accepted, reason=event.reason
        )
        return self._conclude(self._negotiation, rounds, now) if self._negotiation.done else []

    def timer(self, rounds: Rounds | None, now: float) -> list[Effect]:
        """Silence until the deadline refuses."""
        if self._negotiation is None or rounds is None or now < self._negotiation.deadline:
            return []
        self._negotiation.expire()
        return self._conclude(self._negotiation, rounds, now)

    def cancel(self, why: str, now: float) -> list[Effect]:
        """The pending proposal, if any, has lost its sense."""
        negotiation, self._negotiation = self._negotiation, None
        if negotiation is None:
            return []
        refusal = Refusal("", why)
        self._log_refused(negotiation.plan.generation, (refusal,), now)
        return [negotiation.refused(refusal)]

    def drain(self, event: DrainCommanded, member: Member | None, rounds: Rounds | None, now: float) -> list[Effect]:
        """Let one worker finish what it was granted; the others take over its share by a derived plan."""
        live = rounds.policy.live if rounds is not None else ()
        if member is None:
            why = f"unknown worker `{event.worker}`; the job's workers are {', '.join(self._bounds)}"
        elif rounds is None:
            why = "training has not begun"
        elif member.ordinal not in live or rounds.policy.end_reason is not None:
            why = f"worker {member.name} takes part in no further rounds already"
        elif len(live) == 1:
            why = f"worker {member.name} is the last one: stop the job instead"
        elif (plan := self._derive(rounds.policy.plan, member.name)) is None:
            why = "the minimum shares of the other workers exceed the global batch"
        else:
            return [*self._drained(member, plan, rounds, now), AnswerCommand(event.request, True)]
        return [AnswerCommand(event.request, False, why)]

    def leaves(self, member: Member, rounds: Rounds, now: float) -> list[Effect]:
        """A live worker finishes what it was granted and leaves, whoever is left."""
        return self._drained(member, self._derive(rounds.policy.plan, member.name), rounds, now)

    def _drained(self, member: Member, plan: Plan | None, rounds: Rounds, now: float) -> list[Effect]:
        effects = self.cancel(f"worker {member.name} is drained", now)
        self._remember(member.name, rounds.policy.plan)
        if plan is not None:
            effects += rounds.plan(plan, now)
        effects += rounds.drain(member.ordinal, now)
        words = plan.reason if plan is not None else "nobody else is there"
        self._log.add(RunReason.WORKER_DRAINED, f"worker {member.name} is drained: {words}", now)
        return effects

    def lower(self, worker: str, too_many: int) -> int:
        """Remember how many samples a worker could not hold at once; returns how many it computes at most from now on.

        Its share stays: it is computed in parts, whatever a plan says of them (algorithms.md C4).
        """
        most = max(1, too_many // 2)
        self._most_at_once[worker] = min(most, self._most_at_once.get(worker, most))
        return self._most_at_once[worker]

    def held(self, worker: str, use: MemoryUse) -> None:
        """What a step of a worker's took of its memory: later plans give it no more at once than it can hold."""
        holds = self._peaks.setdefault(worker, Peaks()).add(use)
        if holds is not None:
            self._holds[worker] = holds

    def _in_parts(self, worker: str, share: Share) -> Share:
        most = min((m for m in (self._most_at_once.get(worker), self._holds.get(worker)) if m), default=None)
        if most is None or (share.micro_batch is not None and share.micro_batch <= most):
            return share
        return replace(share, micro_batch=most)

    def add(self, spec: WorkerSpec) -> None:
        """Know one more worker."""
        self._bounds[spec.name] = spec.bounds

    def joined(
        self, member: Member, rounds: Rounds, speeds: Mapping[str, float], groups: Mapping[str, str], now: float
    ) -> list[Effect]:
        """A worker takes part from now on: give it a share by a derived plan.

        In proportion to `speeds` if they are known of all; else as much as the mean of its group (`groups`: by worker)
        or, without one, of all.
        """
        effects = self.cancel(f"worker {member.name} has joined", now)
        current, past = rounds.policy.plan, self._past.pop(member.name, None)
        others = {name: float(share.samples) for name, share in current.shares.items() if name != member.name}
        if all(speeds.get(name, 0.0) > 0.0 for name in (*others, member.name)):
            weights = {name: speeds[name] for name in (*others, member.name)}
        else:
            alike = [n for name, n in others.items() if groups[name] == member.spec.group] or [*others.values()]
            weights = {**others, member.name: max(1.0, fmean(alike)) if alike else 1.0}
        plan = joined_plan(
            current,
            member.name,
            weights,
            self._in_parts(member.name, past or Share(0)).micro_batch,
            bounds=self._bounds,
            total=self._config.global_batch_size,
            grain=self._config.batch_grain,
        )
        if plan is None:
            message = f"worker {member.name} has no share: the minimum shares of all exceed the global batch"
            self._log.add(RunReason.PLAN_REFUSED, message, now, warning=True)
            return effects
        self._log.add(RunReason.PLAN_DERIVED, f"plan {plan.generation}: {plan.reason}", now)
        return [*effects, *rounds.plan(plan, now)]

    def raise_minimums(self, least: int, now: float) -> bool:
        """Before training: the model needs `least` samples at once. False: the global batch is too small for that."""
        grain = self._config.batch_grain
        bounds = {name: raise_minimum(b, least, grain) for name, b in self._bounds.items()}
        total = sum(share.samples for share in self.start.shares.values())
        reason = f"no share is below {least} samples, which BatchNorm needs at once"
        plan = raise_shares(self.start, bounds, total, grain, reason)
        if plan is None:
            message = (
                f"the shares of all cannot be {least} samples or more, which BatchNorm needs at once: some workers go "
                "without in some rounds; take a larger globalBatchSize, or fewer workers"
            )
            self._log.add(RunReason.PLAN_REFUSED, message, now, warning=True)
            return False
        if plan is not self.start:
            self._log.add(RunReason.PLAN_DERIVED, f"plan {plan.generation}: {plan.reason}", now)
        self.start, self._bounds = plan, bounds
        return True

    def left_before_training(self, member: Member) -> None:
        """A worker left before the first round: the start plan is derived without it."""
        self._remember(member.name, self.start)
        self.start = self._derived(self.start, member.name)

    def left(self, member: Member, rounds: Rounds, *, ending: bool, now: float) -> list[Effect]:
        """A live worker is gone: the others take over its share if more rounds are to come."""
        effects = self.cancel(f"worker {member.name} has left", now)
        self._remember(member.name, rounds.policy.plan)
        if not ending and len(rounds.policy.live) > 1:
            plan = self._derived(rounds.policy.plan, member.name)
            effects += rounds.plan(plan, now)
            self._log.add(RunReason.PLAN_DERIVED, f"plan {plan.generation}: {plan.reason}", now)
        return effects

    def _remember(self, worker: str, plan: Plan) -> None:
        if worker in plan.shares:
            self._past[worker] = plan.shares[worker]

    def _faults(self, plan: Plan, live: list[str], generation: int) -> tuple[Refusal, ...]:
        batch, grain = self._config.global_batch_size, self._config.batch_grain
        # Workers that left may have taken room with them: then the round is as large as the others' bounds allow.
        total = reachable_total([self._bounds[name] for name in live], batch, grain) or batch
        faults = check_plan(
            plan, bounds=self._bounds, grain=grain, total=total, live=live, current_generation=generation
        )
        refusals = [Refusal(f.worker, f.message) for f in faults]
        wanted = plan.synchronization
        if isinstance(wanted, Backup) and wanted.workers >= len(live):
            refusals.append(
                Refusal("", f"{wanted.workers} backup workers of {len(live)} leave nobody to wait for: give fewer")
            )
        return tuple(refusals)

    def _conclude(self, negotiation: Negotiation, rounds: Rounds, now: float) -> list[Effect]:
        self._negotiation = None
        plan = negotiation.plan
        if negotiation.refusals:
            self._log_refused(plan.generation, negotiation.refusals, now)
            return [negotiation.refused()]
        effects = rounds.plan(plan, now)
        first = rounds.policy.plan_round
        parts = [plan.reason, describe(plan.synchronization) if plan.synchronization is not None else ""]
        words = "".join(f": {part}" for part in parts if part)
        self._log.add(RunReason.PLAN_AGREED, f"plan {plan.generation} is in force from round {first}{words}", now)
        return [*effects, AnswerPlan(negotiation.request, plan.generation, first)]

    def _derive(self, plan: Plan, gone: str) -> Plan | None:
        return derive_plan(
            plan,
            gone,
            bounds=self._bounds,
            total=self._config.global_batch_size,
            grain=self._config.batch_grain,
        )

    def _derived(self, plan: Plan, gone: str) -> Plan:
        derived = self._derive(plan, gone)
        if derived is None:
            message = f"worker {gone} ended early, and the minimum shares of the others exceed the global batch"
            raise RunFault(RunReason.SCRIPTS_DIFFER, message)
        return derived

    def _log_refused(self, generation: int, refusals: tuple[Refusal, ...], now: float) -> None:
        words = "; ".join(f"{r.worker}: {r.reason}" if r.worker else r.reason for r in refusals)
        self._log.add(RunReason.PLAN_REFUSED, f"plan {generation} is refused: {words}", now, warning=True)
