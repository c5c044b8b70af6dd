"""Jobs with workers on CUDA and on the CPU: the same training as the script alone on one processor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from support.gpu import SHARES, Spawner, largest_difference, run_alone, run_job

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("on_cuda", "options", "tolerance"),
    [
        (["a-0"], {"DTYPE": "float64"}, 1e-9),
        (["a-0"], {"DTYPE": "float64", "OPTIMIZER": "AdamW"}, 1e-9),
        (["a-0"], {}, 1e-4),
        (["b-0", "c-0"], {}, 1e-4),
        (["a-0", "b-0", "c-0"], {"DTYPE": "float64"}, 1e-9),
        (["a-0"], {"DTYPE": "float64", "LAYOUT": "channels_last"}, 1e-9),
    ],
    ids=[
        "float64, SGD", "float64, AdamW", "float32", "float32, two workers on one GPU", "all workers on one GPU",
        "channels last",
    ],
)  # fmt: skip
def test_a_job_on_unlike_devices_equals_the_script_alone_on_the_cpu(
    spawner: Spawner, tmp_path: Path, on_cuda: Sequence[str], options: dict[str, str], tolerance: float
) -> None:
    want = run_alone(spawner, tmp_path / "alone", "CPU", **options)
    job = run_job(spawner, tmp_path / "job", on_cuda, **options)
    assert {name: job.printed[name]["device"] for name in SHARES} == {
        name: "cuda:0" if name in on_cuda else "cpu" for name in SHARES
    }
    differences = {name: largest_difference(model, want) for name, model in job.models.items()}
    print(f"{on_cuda} {options}: {differences}")
    assert all(difference <= tolerance for difference in differences.values()), differences
    assert largest_difference(job.model, want) <= tolerance


def test_loader_processes_and_pinned_memory_change_no_bit(spawner: Spawner, tmp_path: Path) -> None:
    plain = run_job(spawner, tmp_path / "plain").result.model.read_bytes()
    piped = run_job(spawner, tmp_path / "piped", LOADERS="2", PIN="1").result.model.read_bytes()
    assert plain == piped


def test_dropout_on_cuda_depends_on_the_grant_alone(spawner: Spawner, tmp_path: Path) -> None:
    first = run_job(spawner, tmp_path / "first", DROPOUT="0.5").result.model.read_bytes()
    drawing = run_job(spawner, tmp_path / "drawing", DROPOUT="0.5", DRAWS="77").result.model.read_bytes()
    without = run_job(spawner, tmp_path / "without").result.model.read_bytes()
    assert first == drawing
    assert first != without


def test_what_overflows_in_half_precision_is_discarded_alone(spawner: Spawner, tmp_path: Path) -> None:
    job = run_job(spawner, tmp_path / "job", own={"AMP": "fp16", "OVERFLOW": "5"})
    assert {w.name: w.refused for w in job.state.workers} == {"a-0": 1, "b-0": 0, "c-0": 0}
    assert (job.state.version, job.state.samples) == (24, 360)
    assert job.printed["a-0"]["scales"] == [1024.0] * 5 + [512.0] * 19
    assert all(bool(torch.isfinite(value).all()) for value in job.model.values())
    plain = run_job(spawner, tmp_path / "plain")
    assert job.printed["a-0"]["accuracy"] >= plain.printed["a-0"]["accuracy"] - 0.05


def test_half_precision_on_cuda_beside_full_precision_trains_as_well(spawner: Spawner, tmp_path: Path) -> None:
    plain = run_alone(spawner, tmp_path / "alone", "CPU")
    for amp in ("fp16", "bf16"):
        job = run_job(spawner, tmp_path / amp, own={"AMP": amp})
        difference = largest_difference(job.model, plain)
        print(f"{amp}: {difference}")
        assert {w.refused for w in job.state.workers} == {0}
        assert 1e-6 < difference < 0.1


def test_a_compiled_model_is_trained(spawner: Spawner, tmp_path: Path) -> None:
    want = run_alone(spawner, tmp_path / "alone", "CPU")
    job = run_job(spawner, tmp_path / "job", own={"COMPILE": "1"})
    assert largest_difference(job.model, want) <= 1e-3
