"""``python -m heterotrain.lab TASK [WORKER]``: one worker of a run; ``… accuracy TASK``: its accuracies, as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from heterotrain.allocator import keep_freed_memory
from heterotrain.lab.accuracy import accuracies
from heterotrain.lab.loops import alone, in_job, under_ddp
from heterotrain_api.contract import Env
from heterotrain_core.lab.task import Kind, Task


def main(arguments: list[str]) -> None:
    """Do what the words say. In a job the worker is told by the environment."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as `heterotrain.join` does: what is compared with it has the same
    if arguments[0] == "accuracy":
        sys.stdout.write(json.dumps(accuracies(Task.from_json(Path(arguments[1]).read_text()))))
        return
    task = Task.from_json(Path(arguments[0]).read_text())
    worker = int(arguments[1] if len(arguments) > 1 else os.environ[Env.NAME].rpartition("-")[2])
    if task.groups:
        # The process itself: whoever started it need not know of the lab. Takes all its threads along.
        task.groups[worker].write_text(str(os.getpid()))
    match task.kind:
        case Kind.JOB:
            in_job(task, worker)
        case Kind.DDP:
            under_ddp(task, worker)
        case Kind.SOLO:
            alone(task, worker)


if __name__ == "__main__":
    main(sys.argv[1:])
