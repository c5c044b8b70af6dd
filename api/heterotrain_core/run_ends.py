"""A job's end from outside: whose fault a worker's failure is, and what is answered once all is over. Pure."""

from __future__ import annotations

from heterotrain_core import run_effects as out
from heterotrain_core import run_events as ev
from heterotrain_core.run_values import Outcome, RunFault, RunReason


def answer_after_end(event: ev.RunEvent, outcome: Outcome) -> list[out.Effect]:
    """What is still answered once a job has ended; everything else comes too late to matter."""
    why = f"the job is over: {outcome.message}"
    match event:
        case ev.Joined():
            return [out.RefuseJoin(event.worker, why)]
        case ev.PlanRequested():
            return [out.AnswerPlan(event.request, event.generation, refusals=(out.Refusal("", why),))]
        case ev.DrainCommanded() | ev.ScaleCommanded() | ev.CheckpointCommanded():
            return [out.AnswerCommand(event.request, False, why)]
        case _:
            return []


def fault_of(failed: ev.WorkerFailed) -> RunFault:
    """Why a job fails whose worker says that it has failed: by its own error, or for want of a shard."""
    line = _last_line(failed.error)
    if failed.lost_shard:
        # The coordinator need not know yet that the shard is gone; the worker is not to blame.
        who = f"parameter server {failed.lost_shard} is lost to worker {failed.worker}"
        return RunFault(RunReason.SHARD_FAILED, f"{who}: {line}")
    return RunFault(RunReason.WORKER_FAILED, f"worker {failed.worker} failed: {line}")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "without a message"
