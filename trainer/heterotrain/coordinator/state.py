"""The job's state as a message for `Watch`. Pure."""

from __future__ import annotations

from heterotrain.coordinator.messages import share_messages
from heterotrain.coordinator.synchronization import state_of
from heterotrain.coordinator.term import Past
from heterotrain_api.trainer_config import TrainerConfig
from heterotrain_core.run_state import RunView, WorkerView
from heterotrain_core.run_values import Phase, WorkerPhase
from heterotrain_core.telemetry import WINDOW, StepRecord
from heterotrain_rpc import control_pb2

MANY_WORKERS = 64
FEW_RECORDS = 8

_PHASES = {
    Phase.WAITING: control_pb2.PHASE_WAITING,
    Phase.TRAINING: control_pb2.PHASE_TRAINING,
    Phase.FINISHING: control_pb2.PHASE_FINISHING,
    Phase.SUCCEEDED: control_pb2.PHASE_SUCCEEDED,
    Phase.FAILED: control_pb2.PHASE_FAILED,
    Phase.STOPPED: control_pb2.PHASE_STOPPED,
}
_WORKER_PHASES = {
    WorkerPhase.ABSENT: control_pb2.WORKER_PHASE_ABSENT,
    WorkerPhase.JOINED: control_pb2.WORKER_PHASE_JOINED,
    WorkerPhase.TRAINING: control_pb2.WORKER_PHASE_TRAINING,
    WorkerPhase.FINISHED: control_pb2.WORKER_PHASE_FINISHED,
    WorkerPhase.LOST: control_pb2.WORKER_PHASE_LOST,
}


def job_state(view: RunView, config: TrainerConfig, past: Past) -> control_pb2.JobState:
    """The whole state."""
    return control_pb2.JobState(
        job_name=config.job_name,
        job_uid=config.job_uid,
        term=past.term,
        phase=_PHASES[view.phase],
        reason=view.reason,
        message=view.message,
        epoch=view.epoch,
        epochs=view.epochs,
        version=view.version,
        samples=view.samples,
        dataset_size=view.dataset_size,
        global_batch_size=config.global_batch_size,
        rounds_planned=view.rounds_planned,
        training_seconds=view.training_seconds,
        evaluation_seconds=view.evaluation_seconds,
        samples_per_second=view.samples_per_second,
        mean_samples_per_second=view.mean_samples_per_second,
        ideal_samples_per_second=view.ideal_samples_per_second,
        workers=[_worker_state(w, _records_each(len(view.workers))) for w in view.workers],
        plan=control_pb2.PlanState(
            generation=view.plan.generation,
            effective_round=view.plan_round,
            shares=share_messages(view.plan),
            reason=view.plan.reason,
            derived=view.plan.derived,
        ),
        reported=view.reported,
        events=[
            control_pb2.Event(
                sequence=e.sequence, seconds=e.seconds, warning=e.warning, reason=e.reason, message=e.message
            )
            for e in view.events
        ],
        shards=len(config.shards),
        round_seconds=view.round_seconds,
        pushed_bytes_per_sample=view.bytes_per_sample[0],
        pulled_bytes_per_sample=view.bytes_per_sample[1],
        model_path=view.model,
        synchronization=state_of(view.synchronization),
        restores=past.restores,
        rounds_lost=past.rounds_lost,
        checkpoint_version=view.checkpoint_version,
        groups=[control_pb2.GroupState(name=name, replicas=count) for name, count in view.groups.items()],
    )


def _records_each(num_workers: int) -> int:
    """Step records told of each worker: in large jobs the newest few, so that a state stays below 100 KB or so."""
    return WINDOW if num_workers <= MANY_WORKERS else FEW_RECORDS


def _worker_state(worker: WorkerView, records: int) -> control_pb2.WorkerState:
    return control_pb2.WorkerState(
        name=worker.name,
        group=worker.group,
        phase=_WORKER_PHASES[worker.phase],
        share_wanted=worker.share_wanted,
        share_applied=worker.share_applied,
        share_minimum=worker.bounds.minimum,
        share_maximum=worker.bounds.maximum,
        rounds=worker.rounds,
        samples=worker.samples,
        refused=worker.refused,
        samples_per_second=worker.samples_per_second,
        step_seconds=worker.timings.step,
        compute_seconds=worker.timings.compute,
        push_seconds=worker.timings.push,
        pull_seconds=worker.timings.pull,
        data_seconds=worker.timings.data,
        receive_seconds=worker.timings.receive,
        other_seconds=worker.timings.other,
        device=worker.device,
        host=worker.host,
        error=worker.error,
        micro_batch=worker.micro_batch or 0,
        incarnation=worker.incarnation,
        losses=worker.losses,
        recent=map(_step_record, worker.recent[-records:]),
    )


def _step_record(record: StepRecord) -> control_pb2.StepRecord:
    times = record.timings
    return control_pb2.StepRecord(
        sequence=record.sequence,
        samples=record.samples,
        data_seconds=times.data,
        compute_seconds=times.compute,
        push_seconds=times.push,
        pull_seconds=times.pull,
        step_seconds=times.step,
        receive_seconds=times.receive,
        other_seconds=times.other,
        cpu_seconds=times.cpu,
        ended_seconds=record.ended,
        withheld_seconds=record.withheld,
    )
