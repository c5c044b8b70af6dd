"""Progress and manifests of checkpoints for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from heterotrain.checkpoint.manifest import Manifest
from heterotrain_core.layout import TensorKind, TensorSpec
from heterotrain_core.progress import Progress
from heterotrain_core.run_values import Manifest as Model
from heterotrain_core.synchronization import Bsp
from heterotrain_core.types import Plan, Share

UID = "1f3a9c2b-0000-4000-8000-000000000000"
GROUP = '{"lr": 0.1}'
MODEL = Model(
    (
        TensorSpec("weight", (3, 4), "F32", TensorKind.PARAMETER, 0, aliases=("tied",)),
        TensorSpec("bias", (4,), "F64", TensorKind.PARAMETER, 0),
    ),
    "AdamW",
    (GROUP,),
    20,
)


def make_progress(version: int = 5, **changes: Any) -> Progress:
    return replace(
        Progress(
            version=version,
            epoch=1,
            used=((0, 8), (12, 16)),
            manifest=MODEL,
            groups=(GROUP,),
            plan=Plan(3, {"a-0": Share(5, 2), "b-0": Share(3)}, "by hand"),
            synchronization=Bsp(),
            global_batch_size=8,
            seed=7,
            training_seconds=12.5,
            evaluation_seconds=1.5,
            reported={"accuracy": 0.5},
            schedule_step=4,
        ),
        **changes,
    )


def make_checkpoint(version: int = 5, term: int = 1, uid: str = UID, **changes: Any) -> Manifest:
    return Manifest(job_name="fashion", job_uid=uid, term=term, files=(), progress=make_progress(version, **changes))
