"""Which errors say that a batch did not fit, and what the exit hook does about them."""

from __future__ import annotations

import sys

import pytest
import torch

from heterotrain.exits import ExitWatch
from heterotrain.memory import is_out_of_memory


@pytest.mark.parametrize(
    ("error", "want"),
    [
        pytest.param(MemoryError(), True, id="Python's own, NumPy's too"),
        pytest.param(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True, id="of a device"),
        pytest.param(
            RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried"),
            True,
            id="of PyTorch's CPU allocator",
        ),
        pytest.param(RuntimeError("CUDA error: out of memory"), True, id="of the driver"),
        pytest.param(RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False, id="another fault"),
        pytest.param(ValueError("out of memory"), False, id="words of the script's own"),
    ],
)
def test_what_is_a_want_of_memory(error: BaseException, want: bool) -> None:
    assert is_out_of_memory(error) is want


@pytest.mark.parametrize(("handled", "told"), [(True, []), (False, ["MemoryError"])], ids=["it comes back", "it fails"])
def test_the_hook_asks_first_whether_the_script_comes_back(
    monkeypatch: pytest.MonkeyPatch, handled: bool, told: list[str]
) -> None:
    shown, asked, failures = [], [], []
    monkeypatch.setattr(sys, "excepthook", lambda *error: shown.append(error[0]))
    monkeypatch.setattr(sys, "exit", sys.exit)

    def on_error(error: BaseException) -> bool:
        asked.append(error)
        return handled

    watch = ExitWatch(lambda: None, failures.append, on_error)
    watch.install()
    error = MemoryError()
    sys.excepthook(MemoryError, error, None)
    watch.remove()

    assert (shown, asked, failures) == ([MemoryError], [error], told)
