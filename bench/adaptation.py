"""What a look of the adaptation loop costs, in CPU time: jobs of 4 to 256 workers that each have done a step since.

The loop runs in the operator beside all else, so its promise is in CPU time: at most 20 ms for a job of 16 workers.
Usage: python bench/adaptation.py [--looks 20]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from builders_adaptation import Simulation, simulate, steady
from heterotrain_core.adaptation.loop import step
from heterotrain_core.shares import allocate
from heterotrain_operator.adaptation import observation_of
from heterotrain_rpc import control_pb2

WORKERS = (4, 16, 64, 256)
PROMISED_MILLISECONDS = 20.0
"""For 16 workers."""


def as_state(job: Simulation) -> control_pb2.JobState:
    """The job as its coordinator would tell it: large jobs with eight steps a worker."""
    kept = 20 if len(job.workers) <= 64 else 8
    workers = [
        control_pb2.WorkerState(
            name=worker.name,
            phase=control_pb2.WORKER_PHASE_TRAINING,
            share_minimum=worker.minimum,
            share_maximum=worker.maximum,
            recent=[
                control_pb2.StepRecord(
                    sequence=record.sequence,
                    samples=record.samples,
                    compute_seconds=record.timings.compute,
                    pull_seconds=record.timings.pull,
                    step_seconds=record.timings.step,
                    ended_seconds=record.ended,
                    withheld_seconds=record.withheld,
                )
                for record in list(worker.records)[-kept:]
            ],
        )
        for worker in job.workers
    ]
    shares = [control_pb2.PlanShare(worker=name, samples=share) for name, share in job.planned.items()]
    plan = control_pb2.PlanState(generation=job.generation, effective_round=job.effective, shares=shares)
    return control_pb2.JobState(phase=control_pb2.PHASE_TRAINING, version=job.version, plan=plan, workers=workers)


def milliseconds_per_look(workers: int, looks: int) -> tuple[float, float]:
    """Reading the state and one step of the loop: mean and longest, each look a window with a decision."""
    job = simulate([steady(0.01 * (1 + n % 7)) for n in range(workers)], batch=32 * workers, noise=0.05)
    job.run(60)
    times = []
    for _ in range(looks):
        job.run(1)
        state, now = as_state(job), job.now + job.settings.interval_seconds
        began = time.process_time()
        step(job.state, observation_of(state, job.start), now)
        times.append(1000 * (time.process_time() - began))
    return sum(times) / len(times), max(times)


def main() -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--looks", type=int, default=20)
    looks = parser.parse_args().looks
    print("workers   CPU ms a look   longest")
    for workers in WORKERS:
        mean, longest = milliseconds_per_look(workers, looks)
        held = f"   (promised: {PROMISED_MILLISECONDS:.0f})" if workers == 16 else ""
        print(f"{workers:7d}   {mean:13.2f}   {longest:7.2f}{held}")
    began = time.process_time()
    allocate(
        [0.01 * (n % 7) for n in range(1000)],
        [1e-3 * (1 + n % 13) for n in range(1000)],
        100_000,
        [1] * 1000,
        [4000] * 1000,
        1,
    )
    print(f"allocate, 1,000 workers, a batch of 100,000: {1000 * (time.process_time() - began):.1f} ms (promised: 50)")


if __name__ == "__main__":
    main()
