"""Messages of the session (`session.proto`) from and to the values that the engine works with. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from heterotrain.engine import Setup, Update
from heterotrain.grants import Item
from heterotrain.tensor_messages import tensor_message
from heterotrain_core.run_values import Traffic
from heterotrain_core.types import EpochEnd, Grant, SampleRange, TrainingEnd
from heterotrain_rpc import control_pb2 as control
from heterotrain_rpc import session_pb2 as pb


def manifest_message(setup: Setup, groups: Sequence[str]) -> pb.Manifest:
    """The model as this worker describes it."""
    tensors = map(tensor_message, setup.tensors.specs)
    return pb.Manifest(
        tensors=tensors,
        optimizer=setup.optimizer_name,
        groups=groups,
        dataset_size=setup.dataset_size,
        smallest_batch=setup.smallest_batch,
    )


def item_of(message: pb.CoordinatorMessage) -> Item:
    """A grant or an end. Raises `ValueError` for any other message."""
    match message.WhichOneof("body"):
        case "grant":
            g = message.grant
            ranges = tuple(SampleRange(r.epoch, r.start, r.stop) for r in g.ranges)
            micro_batch = g.micro_batch if g.HasField("micro_batch") else None
            grant = Grant(
                worker=-1,
                iteration=g.iteration,
                version=g.version,
                ranges=ranges,
                micro_batch=micro_batch,
                plan_generation=g.plan_generation,
            )
            return Item(grant, g.schedule_step, g.dropped)
        case "epoch_end":
            e = message.epoch_end
            return Item(EpochEnd(-1, e.epoch, e.version), e.schedule_step, e.dropped)
        case "training_end":
            t = message.training_end
            return Item(TrainingEnd(-1, t.version, t.reason), t.schedule_step, t.dropped)
        case other:
            raise ValueError(f"{other} is neither a grant nor an end")


def done_message(
    term: int,
    update: Update,
    groups: Sequence[str],
    absent: Sequence[int],
    timings: pb.Timings,
    *,
    traffic: Traffic,
    refusal: str | None,
) -> pb.Done:
    """Say that the gradient is on all shards; `refusal` says which shard found what not finite."""
    done = pb.Done(
        term=term,
        iteration=update.grant.iteration,
        base_version=update.grant.version,
        samples=update.grant.samples,
        refused=refusal is not None,
        refusal=refusal or "",
        groups=groups,
        absent=absent,
        timings=timings,
        pushed_bytes=traffic.pushed,
        pulled_bytes=traffic.pulled,
    )
    if update.memory.samples:
        use = update.memory
        done.memory.CopyFrom(pb.MemoryUse(samples=use.samples, peak_bytes=use.peak, limit_bytes=use.limit))
    if update.clip is not None:
        done.max_norm = update.clip.max_norm
        done.norm_type = update.clip.norm_type
    return done


def judge_plan(name: str, welcome: pb.Welcome, plan: control.Plan) -> pb.PlanAnswer:
    """Worker `name`'s answer to a proposed plan: its own share must lie within the bounds that it joined with."""
    fault = _plan_fault(name, welcome, plan)
    return pb.PlanAnswer(generation=plan.generation, accepted=fault is None, reason=fault or "")


def _plan_fault(name: str, welcome: pb.Welcome, plan: control.Plan) -> str | None:
    mine = [share for share in plan.shares if share.worker == name]
    if len(mine) != 1:
        return f"the plan must have one share for {name}, not {len(mine)}"
    (share,) = mine
    low, high = welcome.share_minimum, welcome.share_maximum
    if not low <= share.samples <= high:
        return f"the share of {name} must be between {low} and {high} samples, not {share.samples}"
    if share.HasField("micro_batch") and share.micro_batch < 1:
        return f"the micro-batch of {name} must be at least 1 sample, not {share.micro_batch}"
    return None
