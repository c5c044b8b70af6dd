"""Which device a worker computes on, and what it says when it cannot have the one asked for."""

from __future__ import annotations

import pytest
import torch

from heterotrain import UsageError
from heterotrain.joining import choose_device
from heterotrain.settings import Settings


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A build with CUDA on a machine with two devices; no call reaches a driver."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch, "zeros", lambda size, device: torch.ones(size))
    return monkeypatch


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        (Settings(device="CPU"), "cpu"),
        (Settings(device="CUDA"), "cuda:0"),
        (Settings(device="CUDA", cuda_ordinal=1), "cuda:1"),
        (Settings(device="CUDA", cuda_ordinal=4), "cuda:0"),
        (Settings(), "cuda:0"),
    ],
    ids=["CPU asked for", "the first on CUDA", "the second", "the fifth, of two devices", "alone, nothing asked for"],
)
def test_a_worker_takes_the_device_of_its_place(devices: pytest.MonkeyPatch, settings: Settings, want: str) -> None:
    assert choose_device(settings) == torch.device(want)


def test_alone_the_cpu_does_where_there_is_no_cuda(devices: pytest.MonkeyPatch) -> None:
    devices.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(Settings()) == torch.device("cpu")


@pytest.mark.parametrize(
    ("build", "visible", "message"),
    [
        (None, None, r"this PyTorch \(.*\) is built without CUDA; install a build with it, or use CPU"),
        ("13.0", None, "PyTorch finds no usable CUDA device; use a machine with one, or CPU"),
        ("13.0", "7", "no usable CUDA device among those that CUDA_VISIBLE_DEVICES='7' names; use a machine"),
    ],
    ids=["a build without CUDA", "no device", "the only devices are hidden"],
)
def test_cuda_that_cannot_be_had_is_refused_with_the_reason(
    devices: pytest.MonkeyPatch, build: str | None, visible: str | None, message: str
) -> None:
    devices.setattr(torch.cuda, "is_available", lambda: False)
    devices.setattr(torch.version, "cuda", build)
    if visible is None:
        devices.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        devices.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(UsageError, match=message):
        choose_device(Settings(device="CUDA"))


def test_a_device_that_computes_nothing_is_refused_with_the_first_line_of_the_reason(
    devices: pytest.MonkeyPatch,
) -> None:
    def fail(*size: int, device: torch.device) -> torch.Tensor:
        raise RuntimeError("CUDA error: no kernel image is available\nCompile with `TORCH_USE_CUDA_DSA`")

    devices.setattr(torch, "zeros", fail)
    with pytest.raises(UsageError) as caught:
        choose_device(Settings(device="CUDA"))
    assert str(caught.value) == (
        "cuda:0 cannot be used: RuntimeError: CUDA error: no kernel image is available;"
        " HETEROTRAIN_DEVICE=CPU (device: CPU in a job) computes without it"
    )
