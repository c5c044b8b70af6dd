"""Requests as the coordinator takes them, and its replies as answers. Pure."""

from __future__ import annotations

from heterotrain_core.sync_settings import to_fields
from heterotrain_operator.job.decision import ApplyPlan, ScaleGroup, SendCommand
from heterotrain_operator.job.observed import Answer
from heterotrain_operator.job.sync_change import words_of
from heterotrain_rpc import control_pb2
from heterotrain_rpc.plans import plan_message


def as_plan(request: ApplyPlan) -> control_pb2.Plan:
    """The plan; the coordinator numbers it and keeps the shares of workers that are not named, and mode and bounds
    where the request has none.
    """
    wanted = request.synchronization
    synchronization = None if wanted is None else to_fields(wanted)
    return plan_message(request.shares, request.micro_batches, reason=request.reason, synchronization=synchronization)


def as_command(request: SendCommand) -> control_pb2.CommandRequest:
    """The command; raises `ValueError` for one that the protocol does not have."""
    match request.command:
        case "stop":
            return control_pb2.CommandRequest(stop=control_pb2.Stop(reason=request.reason))
        case "checkpoint":
            return control_pb2.CommandRequest(checkpoint=control_pb2.Checkpoint())
        case "drain":
            return control_pb2.CommandRequest(drain=control_pb2.Drain(worker=request.worker))
        case other:
            raise ValueError(f"command must be stop, checkpoint or drain, not {other!r}")


def as_scaling(request: ScaleGroup) -> control_pb2.CommandRequest:
    """The wish for so many workers in a group."""
    return control_pb2.CommandRequest(scale=control_pb2.Scale(group=request.group, replicas=request.replicas))


def scaling_answer(request: ScaleGroup, reply: control_pb2.CommandReply) -> Answer:
    """What became of it."""
    workers = "1 worker" if request.replicas == 1 else f"{request.replicas} workers"
    done = f"group {request.group} shall have {workers}"
    return Answer(request.request_id, reply.accepted, reply.reason or (done if reply.accepted else "refused"))


def verdict_answer(request: ApplyPlan, verdict: control_pb2.PlanVerdict) -> Answer:
    """What became of a plan: from which round it is in force, or who refused it and why."""
    if verdict.accepted:
        message = f"plan {verdict.generation} is in force from round {verdict.effective_round}"
        if request.synchronization is not None:
            message += f": {words_of(request.synchronization)}"
        return Answer(request.request_id, True, message)
    refusals = [f"{refusal.worker or 'the coordinator'}: {refusal.reason}" for refusal in verdict.refusals]
    return Answer(request.request_id, False, "; ".join(refusals) or "the plan was refused without a reason")


def reply_answer(request: SendCommand, reply: control_pb2.CommandReply) -> Answer:
    """What became of a command."""
    done = f"{request.command} was accepted" + (f": {reply.path}" if reply.path else "")
    return Answer(request.request_id, reply.accepted, reply.reason or (done if reply.accepted else "refused"))
