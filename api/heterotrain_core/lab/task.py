"""What a lab worker is told, as a JSON file: ``python -m heterotrain.lab FILE``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from heterotrain_core.lab.setups import SETUPS, SetUp

TRACE: Final = "trace-{worker}.txt"
SNAPSHOT_GLOB: Final = "snapshot-*.bin"
WORKER_GROUP: Final = "w"
"""Group of the workers in the lab's jobs: worker 0 is ``w-0``."""


class Kind(StrEnum):
    """How the workers train."""

    JOB = "job"
    """As workers of a job of ours."""
    DDP = "ddp"
    """PyTorch's DistributedDataParallel over gloo."""
    SOLO = "solo"
    """Each for itself, gradients only: no communication, no optimizer."""


class ModelName(StrEnum):
    """The lab's networks."""

    SMALL = "small"
    """20 thousand parameters: its computing is lost in the pacing of level 2."""
    LARGE = "large"
    """0.4 million parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run, the same file for all its workers. Workers are counted from 0."""

    kind: Kind
    setup: SetUp
    level: int
    """2: steps are padded by sleeping; 3: real computing under CPU quotas."""
    model: ModelName
    batch: int
    shares: tuple[int, ...]
    """Samples of a step, a worker each; for `Kind.JOB` the coordinator says."""
    seed: int
    data: Path
    """Folder of the idx files."""
    folder: Path
    """Takes traces and snapshots."""
    groups: tuple[Path, ...] = ()
    """Control group of each worker, at level 3: its file ``cgroup.procs``."""
    snapshot_seconds: float = 0.0
    """How often worker 0 keeps its parameters; 0: never."""

    def to_json(self) -> str:
        """What `from_json` reads."""
        document = asdict(self)
        document["setup"] = self.setup.name
        return json.dumps(document, default=str, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Raises `KeyError`, `TypeError` or `ValueError` for anything but what `to_json` gave."""
        document = json.loads(text)
        return cls(
            kind=Kind(document["kind"]),
            setup=SETUPS[document["setup"]],
            level=document["level"],
            model=ModelName(document["model"]),
            batch=document["batch"],
            shares=tuple(document["shares"]),
            seed=document["seed"],
            data=Path(document["data"]),
            folder=Path(document["folder"]),
            groups=tuple(map(Path, document["groups"])),
            snapshot_seconds=document["snapshot_seconds"],
        )

    def trace(self, worker: int) -> Path:
        """Where that worker's steps are written."""
        return self.folder / TRACE.format(worker=worker)
