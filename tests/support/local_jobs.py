"""Runs jobs with the fakes in place of shards and coordinator; everything else is real."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

FAKES = Path(__file__).parents[1] / "component" / "local" / "fakes"
RUN_WITH_FAKES = """
import sys
from dataclasses import replace
from pathlib import Path
from heterotrain_operator import cli
from heterotrain_operator.local.process_plan import ProcessPlan

fakes = Path(sys.argv[1])
real_ps, real_coordinator = ProcessPlan.ps_command, ProcessPlan.coordinator_command
ProcessPlan.ps_command = lambda plan, *rest: replace(
    real_ps(plan, *rest), arguments=[sys.executable, str(fakes / "ps.py")])
ProcessPlan.coordinator_command = lambda plan, *rest: replace(
    real_coordinator(plan, *rest), arguments=[sys.executable, str(fakes / "coordinator.py")])
cli.main(sys.argv[2:])
"""


def write_job(folder: Path, *, name: str = "tiny", args: Sequence[str] = ("work",), **spec: Any) -> Path:
    """Write a manifest whose workers run the fake script."""
    document = {
        "apiVersion": "heterotrain.io/v1alpha1",
        "kind": "HeteroTrainJob",
        "metadata": {"name": name},
        "spec": {
            "image": "x",
            "command": ["python", str(FAKES / "worker.py")],
            "args": list(args),
            "globalBatchSize": 8,
            "parameterServers": {"replicas": 2},
            "workers": [{"name": "cpu", "replicas": 2}],
            **spec,
        },
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


RUN = "import sys; from heterotrain_operator import cli; cli.main(sys.argv[2:])"


def start(folder: Path, *arguments: str, real: bool = False) -> subprocess.Popen[str]:
    """Start ``heterotrain`` with its home and its working directory in `folder`; `real`: nothing is replaced."""
    return subprocess.Popen(
        [sys.executable, "-c", RUN if real else RUN_WITH_FAKES, str(FAKES), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder,
        env={**os.environ, "HETEROTRAIN_HOME": str(folder / "home")},
    )  # fmt: skip


def heterotrain(folder: Path, *arguments: str, real: bool = False, timeout_seconds: float = 100.0) -> tuple[int, str]:
    """Run ``heterotrain`` to its end; returns exit code and output."""
    process = start(folder, *arguments, real=real)
    try:
        output, _ = process.communicate(timeout=timeout_seconds)
    finally:
        process.kill()
    return process.returncode, output
