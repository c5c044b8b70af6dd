"""Session messages ↔ values of the state machine. Pure; raises `ValueError` for what cannot be understood."""

from __future__ import annotations

from heterotrain.coordinator.synchronization import message_of as synchronization_message
from heterotrain.tensor_messages import tensor_message, tensor_of
from heterotrain_core import run_effects as out
from heterotrain_core import run_events as ev
from heterotrain_core.event_log import printable
from heterotrain_core.memory import MemoryUse
from heterotrain_core.run_values import Clip, Manifest, Timings, Traffic
from heterotrain_core.types import EpochEnd, Grant, Plan, Share, TrainingEnd
from heterotrain_rpc import control_pb2, session_pb2

ERROR_LIMIT = 8000
"""Characters of a worker's error that are kept: its end."""
WORD_LIMIT = 253
"""Characters of a name; a DNS name has no more."""


def event_of(worker: str, message: session_pb2.WorkerMessage) -> ev.WorkerEvent:  # noqa: PLR0911, PLR0912  # a case each
    """What a worker says, after it has joined."""
    match message.WhichOneof("body"):
        case "done":
            return done_of(worker, message.done)
        case "heartbeat":
            beat = message.heartbeat
            return ev.Heartbeat(worker, beat.version if beat.HasField("version") else None)
        case "manifest":
            return ev.ManifestGiven(worker, manifest_of(message.manifest))
        case "initial_values_pushed":
            return ev.InitialValuesPushed(worker)
        case "start":
            return ev.Started(worker, message.start.epochs)
        case "plan_answer":
            answer = message.plan_answer
            return ev.PlanAnswered(worker, answer.generation, answer.accepted, answer.reason)
        case "evaluation_call":
            call = message.evaluation_call
            return ev.EvaluationCalled(worker, call.call, call.dataset_size, call.version)
        case "evaluation_part":
            part = message.evaluation_part
            return ev.EvaluationPart(worker, part.call, dict(part.sums), part.seconds)
        case "report":
            return ev.Reported(worker, dict(message.report.values))
        case "failure":
            failure = message.failure
            lines = failure.error[-ERROR_LIMIT:].splitlines()
            return ev.WorkerFailed(
                worker, "\n".join(map(printable, lines)), word(failure.lost_shard), failure.too_many_samples
            )
        case "leaving":
            return ev.Leaving(worker)
        case "goodbye":
            return ev.SaidGoodbye(worker)
        case other:
            raise ValueError(f"unexpected message {other or 'without a body'}")


def word(text: str) -> str:
    """A name that a peer gives itself: on one line, without control characters, of bounded length."""
    return printable(text[:WORD_LIMIT])


def done_of(worker: str, done: session_pb2.Done) -> ev.Done:
    """A worker's report of one iteration."""
    t = done.timings
    return ev.Done(
        worker=worker,
        term=done.term,
        iteration=done.iteration,
        base_version=done.base_version,
        samples=done.samples,
        refusal=(done.refusal or "not finite") if done.refused else None,
        groups=tuple(done.groups),
        clip=Clip(done.max_norm, done.norm_type if done.HasField("norm_type") else 2.0)
        if done.HasField("max_norm")
        else None,
        absent=frozenset(done.absent),
        timings=Timings(
            data=t.data_seconds,
            compute=t.compute_seconds,
            push=t.push_seconds,
            pull=t.pull_seconds,
            step=t.step_seconds,
            receive=t.receive_seconds,
            other=t.other_seconds,
            cpu=t.cpu_seconds,
        ),
        traffic=Traffic(max(0, done.pushed_bytes), max(0, done.pulled_bytes)),
        memory=MemoryUse(done.memory.samples, done.memory.peak_bytes, done.memory.limit_bytes),
    )


def manifest_of(message: session_pb2.Manifest) -> Manifest:
    """A model as a worker describes it."""
    tensors = tuple(map(tensor_of, message.tensors))
    smallest = message.smallest_batch or 1
    return Manifest(tensors, message.optimizer, tuple(message.groups), message.dataset_size, smallest)


def manifest_message(manifest: Manifest) -> session_pb2.Manifest:
    """The inverse of `manifest_of`."""
    return session_pb2.Manifest(
        tensors=map(tensor_message, manifest.tensors),
        optimizer=manifest.optimizer,
        groups=manifest.groups,
        dataset_size=manifest.dataset_size,
        smallest_batch=manifest.smallest_batch,
    )


def plan_message(plan: Plan) -> control_pb2.Plan:
    """A plan as it is proposed."""
    synchronization = None if plan.synchronization is None else synchronization_message(plan.synchronization)
    return control_pb2.Plan(
        generation=plan.generation, shares=share_messages(plan), reason=plan.reason, synchronization=synchronization
    )


def share_messages(plan: Plan) -> list[control_pb2.PlanShare]:
    """All shares of a plan."""
    return [
        control_pb2.PlanShare(worker=name, samples=share.samples, micro_batch=share.micro_batch)
        for name, share in plan.shares.items()
    ]


def shares_of(message: control_pb2.Plan) -> dict[str, Share]:
    """Shares by worker; raises `ValueError` if a worker is named twice."""
    shares = {s.worker: Share(s.samples, s.micro_batch if s.HasField("micro_batch") else None) for s in message.shares}
    if len(shares) != len(message.shares):
        raise ValueError("shares: a worker is named twice; give each worker one share")
    return shares


def message_of(message: out.Message, term: int) -> session_pb2.CoordinatorMessage:
    """What a worker is told (all but the welcome, which holds what only the shell knows)."""
    match message:
        case out.Work():
            return _work(message, term)
        case out.ManifestAccepted():
            accepted = session_pb2.ManifestAccepted(
                push_initial_values=message.push_initial_values, version=message.version
            )
            return session_pb2.CoordinatorMessage(manifest_accepted=accepted)
        case out.PlanProposal():
            proposal = session_pb2.PlanProposal(plan=plan_message(message.plan))
            return session_pb2.CoordinatorMessage(plan_proposal=proposal)
        case out.EvaluationWork():
            work = session_pb2.EvaluationWork(call=message.call, start=message.start, stop=message.stop)
            return session_pb2.CoordinatorMessage(evaluation_work=work)
        case out.EvaluationOutcome():
            outcome = session_pb2.EvaluationOutcome(call=message.call, sums=message.sums, samples=message.samples)
            return session_pb2.CoordinatorMessage(evaluation_outcome=outcome)
        case out.Welcome():
            raise ValueError("a welcome is made by the session")


def _work(work: out.Work, term: int) -> session_pb2.CoordinatorMessage:
    step, dropped = work.schedule_step, work.dropped
    match work.item:
        case Grant() as grant:
            message = session_pb2.GrantMessage(
                term=term,
                iteration=grant.iteration,
                version=grant.version,
                epoch=grant.ranges[0].epoch,
                ranges=[session_pb2.Range(epoch=r.epoch, start=r.start, stop=r.stop) for r in grant.ranges],
                micro_batch=grant.micro_batch,
                plan_generation=grant.plan_generation,
                schedule_step=step,
                dropped=dropped,
            )
            return session_pb2.CoordinatorMessage(grant=message)
        case EpochEnd(epoch=epoch, version=version):
            end = session_pb2.EpochEndMessage(
                term=term, epoch=epoch, version=version, schedule_step=step, dropped=dropped
            )
            return session_pb2.CoordinatorMessage(epoch_end=end)
        case TrainingEnd(version=version, reason=reason):
            last = session_pb2.TrainingEndMessage(
                term=term, version=version, reason=reason, schedule_step=step, dropped=dropped
            )
            return session_pb2.CoordinatorMessage(training_end=last)
