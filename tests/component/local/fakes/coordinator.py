"""A coordinator without training. A worker has joined when ``joined`` lies in its credentials' folder, is done by
``done``.

It speaks the real control channel, with the real certificates, and leaves outcome and model as the real one does.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from heterotrain_api.contract import MODEL_FILE, Env
from heterotrain_api.trainer_config import TrainerConfig
from heterotrain_rpc import control_pb2
from heterotrain_rpc.authorization import Authorization
from heterotrain_rpc.certificates import Credentials
from heterotrain_rpc.channels import make_server, server_credentials
from heterotrain_rpc.control_pb2_grpc import CoordinatorServicer, add_CoordinatorServicer_to_server

CONFIG = TrainerConfig.model_validate_json(Path(os.environ[Env.CONFIG]).read_text())
CERTIFICATES = Path(os.environ[Env.CERTIFICATES]).parent


class Fake(CoordinatorServicer):
    def __init__(self) -> None:
        self.plan = {worker.name: worker.share for worker in CONFIG.workers}
        self.generation = 1
        self.stopped = asyncio.Event()
        self.version = 0

    def has(self, name: str, file: str) -> bool:
        return (CERTIFICATES / name / file).exists()

    def phase(self) -> control_pb2.Phase:
        if all(self.has(worker.name, "joined") for worker in CONFIG.workers):
            return control_pb2.PHASE_TRAINING
        return control_pb2.PHASE_WAITING

    def state(self) -> control_pb2.JobState:
        phase = self.phase()
        self.version += phase == control_pb2.PHASE_TRAINING
        return control_pb2.JobState(
            job_name=CONFIG.job_name, phase=phase, version=self.version, samples=8 * self.version, epochs=1,
            training_seconds=0.1 * self.version, samples_per_second=80.0, mean_samples_per_second=75.0,
            ideal_samples_per_second=100.0, reported={"accuracy": 0.5}, global_batch_size=CONFIG.global_batch_size,
            plan=control_pb2.PlanState(generation=self.generation),
            workers=[
                control_pb2.WorkerState(
                    name=worker.name, group=worker.group, share_wanted=self.plan[worker.name],
                    share_applied=self.plan[worker.name], samples_per_second=50.0,
                    phase=control_pb2.WORKER_PHASE_TRAINING
                    if self.has(worker.name, "joined")
                    else control_pb2.WORKER_PHASE_ABSENT,
                )
                for worker in CONFIG.workers
            ],
        )  # fmt: skip

    async def Watch(self, request: control_pb2.WatchRequest, context: Any) -> AsyncIterator[control_pb2.JobState]:  # noqa: N802
        while True:
            yield self.state()
            if request.once:
                return
            await asyncio.sleep(0.05)

    async def Apply(self, request: control_pb2.Plan, context: Any) -> control_pb2.PlanVerdict:  # noqa: N802
        wanted = {**self.plan, **{share.worker: share.samples for share in request.shares}}
        if sum(wanted.values()) != CONFIG.global_batch_size:
            refusals = [control_pb2.Refusal(reason=f"the shares sum to {sum(wanted.values())}")]
            return control_pb2.PlanVerdict(accepted=False, refusals=refusals)
        self.plan, self.generation = wanted, self.generation + 1
        return control_pb2.PlanVerdict(accepted=True, generation=self.generation, effective_round=self.version + 1)

    async def Command(self, request: control_pb2.CommandRequest, context: Any) -> control_pb2.CommandReply:  # noqa: N802
        match request.WhichOneof("command"):
            case "stop":
                self.stopped.set()
                return control_pb2.CommandReply(accepted=True)
            case "checkpoint":
                return control_pb2.CommandReply(accepted=True, path="/somewhere/model-3.safetensors")
            case _:
                known = request.drain.worker in self.plan
                return control_pb2.CommandReply(accepted=known, reason="" if known else "there is no such worker")


def leave(state: str, reason: str, message: str) -> None:
    (Path(CONFIG.output) / MODEL_FILE).write_bytes(b"weights")
    outcome = {
        "state": state,
        "reason": reason,
        "message": message,
        "rounds": 3,
        "samples": 24,
        "reported": {"accuracy": 0.75},
    }
    path = Path(os.environ[Env.TERMINATION_LOG])
    path.with_suffix(".new").write_text(json.dumps(outcome))
    path.with_suffix(".new").replace(path)


async def main() -> int:
    fake = Fake()
    server = make_server(Authorization(CONFIG.job_uid))
    add_CoordinatorServicer_to_server(fake, server)
    port = server.add_secure_port(
        "127.0.0.1:0", server_credentials(Credentials.read(Path(os.environ[Env.CERTIFICATES])))
    )
    await server.start()
    print(f"ready control={port}", flush=True)
    while True:
        await asyncio.sleep(0.05)
        if fake.stopped.is_set():
            leave("Stopped", "Stopped", "stopped by the user, model saved")
            code = 3
        elif all(fake.has(worker.name, "done") for worker in CONFIG.workers):
            leave("Succeeded", "EpochsCompleted", "all epochs are over")
            code = 0
        elif any(fake.has(worker.name, "lost") for worker in CONFIG.workers):
            leave("Failed", "WorkerLost", "a worker is lost")
            code = 1
        else:
            continue
        await server.stop(0.1)
        return code


raise SystemExit(asyncio.run(main()))
