"""Whole jobs with nothing replaced: the real shards, coordinator and workers. Slow: each process imports torch."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors import safe_open

from support.local_jobs import heterotrain

pytestmark = pytest.mark.timeout(240)

SCRIPT = """
import sys
import os
import torch
from torch import nn
import heterotrain

data = torch.utils.data.TensorDataset(torch.arange(40.0).reshape(20, 2) / 40, torch.arange(20) % 2)
session = heterotrain.join(batch_size=8, seed=3)
torch.manual_seed(0)
model, optimizer, loader = session.prepare(nn.Linear(2, 2), torch.optim.SGD, data, lr=0.1)
for epoch in session.epochs(3):
    for inputs, labels in loader:
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    if sys.argv[1:] == [os.environ.get("HETEROTRAIN_NAME"), str(epoch)]:
        raise ValueError("no such column: price")
    session.report(last_epoch=float(epoch))
"""


def write_real_job(folder: Path, *args: str) -> Path:
    (folder / "tiny_training.py").write_text(SCRIPT)
    document: dict[str, Any] = {
        "apiVersion": "heterotrain.io/v1alpha1",
        "kind": "HeteroTrainJob",
        "metadata": {"name": "real"},
        "spec": {
            "image": "x",
            "command": ["python", "-m", "tiny_training"],
            "args": list(args),
            "globalBatchSize": 8,
            "seed": 3,
            "adaptation": {"mode": "Off"},
            "parameterServers": {"replicas": 2},
            "workers": [{"name": "big", "batch": {"initial": 5}}, {"name": "small"}],
        },
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_model_is_trained_and_every_sample_is_seen_once_an_epoch(tmp_path: Path) -> None:
    job = write_real_job(tmp_path)
    code, output = heterotrain(
        tmp_path, "run", str(job), "--report", "out", "--log-samples", real=True, timeout_seconds=200
    )
    assert code == 0, output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["state"], report["rounds"], report["samples"], report["last_epoch"]) == ("Succeeded", 9, 60, 2.0)
    assert [(w["name"], w["share"], w["samples"] > 0) for w in report["workers"]] == [
        ("big-0", 5, True),
        ("small-0", 3, True),
    ]
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as model:
        assert sorted(model.keys()) == ["bias", "weight"]
    seen: Counter[tuple[str, str]] = Counter()
    for path in (tmp_path / "out" / "logs").glob("*.samples"):
        for line in path.read_text().splitlines():
            epoch, _, *indices = line.split()
            seen.update((epoch, index) for index in indices)
    assert seen == Counter({(str(epoch), str(index)): 1 for epoch in range(3) for index in range(20)})


def test_a_worker_that_raises_is_named_with_its_last_line(tmp_path: Path) -> None:
    job = write_real_job(tmp_path, "small-0", "1")
    code, output = heterotrain(tmp_path, "run", str(job), "--report", "out", real=True, timeout_seconds=200)
    assert code == 1, output
    failure = next(line for line in output.splitlines() if line.startswith("Job failed: "))
    assert failure.startswith("Job failed: worker small-0 "), output
    assert failure.endswith(": ValueError: no such column: price"), output
    assert json.loads((tmp_path / "out" / "report.json").read_text())["state"] == "Failed"
