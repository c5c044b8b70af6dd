"""Which errors say that a batch did not fit and what the exit hook does about them; what batches that fit take."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from heterotrain.exits import ExitWatch
from heterotrain.memory import PeakWatch, ProcessMemory, is_out_of_memory
from heterotrain_core.memory import NO_MEMORY_USE


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


def test_the_peak_of_this_process_is_that_of_a_batch_and_forgotten_before_the_next() -> None:
    probe = ProcessMemory()
    held = 64 * 2**20
    probe.begin()
    without = probe.peak()
    torch.ones(held, dtype=torch.uint8)  # gone at once
    with_it = probe.peak()
    probe.begin()

    assert 0 < without < with_it <= probe.limit
    assert with_it - without > held / 2
    assert probe.peak() < without + held / 2


@pytest.mark.parametrize(
    ("files", "want"),
    [
        pytest.param({"proc/meminfo": "MemTotal:  8 kB\n"}, 8192, id="the machine's"),
        pytest.param(
            {"proc/meminfo": "MemTotal:  8 kB\n", "sys/fs/cgroup/memory.max": "4096\n"},
            4096,
            id="the group's, version 2",
        ),
        pytest.param(
            {"proc/meminfo": "MemTotal:  8 kB\n", "sys/fs/cgroup/memory.max": "max\n"}, 8192, id="a group without one"
        ),
        pytest.param(
            {
                "proc/meminfo": "MemTotal:  8 kB\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            8192,
            id="a group without one, version 1",
        ),
        pytest.param({}, 0, id="no Linux"),
    ],
)
def test_the_limit_is_the_smallest_of_group_and_machine(tmp_path: Path, files: dict[str, str], want: int) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    probe = ProcessMemory(tmp_path)

    assert probe.limit == want
    probe.begin()  # not there to be written in
    assert probe.peak() == 0


class CountedProbe:
    def __init__(self, limit: int = 1000, *, counts_kept: bool = True) -> None:
        self.limit, self.begun, self.let_gone, self.counts_kept = limit, 0, 0, counts_kept

    def let_go(self) -> None:
        self.let_gone += 1

    def begin(self) -> None:
        self.begun += 1

    def peak(self) -> int:
        return 10 * self.begun


def test_the_first_batches_of_a_size_are_looked_at_and_then_now_and_then() -> None:
    watch, looked = PeakWatch(CountedProbe()), []
    for samples in [8] * 40 + [4]:
        watch.begin(samples)
        looked.append(watch.end(samples).samples)

    assert looked == [8] * 8 + [0] * 7 + [8] + [0] * 15 + [8] + [0] * 8 + [4]


@pytest.mark.parametrize(
    ("grants", "want", "looked_at"),
    [
        pytest.param((8, 16, 16), (0, 0, 0), (8, 16, 16), id="larger ones"),
        pytest.param((16, 7, 7, 7), (0, 0, 1, 1), (16, 0, 7, 7), id="much smaller ones that last"),
        pytest.param((16, 7, 3, 4), (0, 0, 1, 1), (16, 0, 3, 4), id="whatever they are"),
        pytest.param((16, 3, 16, 3, 16), (0, 0, 0, 0, 0), (16, 0, 16, 0, 16), id="the last grants of epochs"),
        pytest.param((16, 14, 14, 14), (0, 0, 0, 0), (16, 0, 0, 0), id="somewhat smaller ones"),
        pytest.param((16, 11, 11, 11), (0, 0, 1, 1), (16, 0, 11, 11), id="a second size"),
        pytest.param(
            (16,) * 5 + (9,) * 6 + (16, 11, 11),
            (0,) * 6 + (1,) * 8,
            (16,) * 5 + (0,) + (9,) * 5 + (16, 0, 0),
            id="a third size, once two are known",
        ),
        pytest.param((16, 14, 3, 14, 3, 3), (0, 0, 0, 0, 0, 1), (16, 0, 0, 0, 0, 3), id="both"),
    ],
)
def test_what_larger_batches_needed_is_let_go_for_much_smaller_ones_that_last(
    grants: tuple[int, ...], want: tuple[int, ...], looked_at: tuple[int, ...]
) -> None:
    probe = CountedProbe()
    watch, let_gone, looked = PeakWatch(probe), [], []
    for largest in grants:
        watch.expect(largest)
        watch.begin(largest)
        let_gone.append(probe.let_gone)
        looked.append(watch.end(largest).samples)

    assert (tuple(let_gone), tuple(looked)) == (want, looked_at)


def test_where_only_what_is_in_use_counts_every_size_is_looked_at_and_nothing_let_go() -> None:
    probe = CountedProbe(counts_kept=False)
    watch, looked = PeakWatch(probe), []
    for largest in (64, 40, 40, 8, 8):
        watch.expect(largest)
        watch.begin(largest)
        looked.append(watch.end(largest).samples)

    assert (looked, probe.let_gone) == ([64, 40, 40, 8, 8], 0)


def test_without_a_limit_nothing_is_looked_at() -> None:
    probe = CountedProbe(limit=0)
    watch = PeakWatch(probe)
    watch.begin(8)
    assert (watch.end(8), probe.begun) == (NO_MEMORY_USE, 0)
