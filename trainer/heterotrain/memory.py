"""Memory that batches need: which errors say that one does not fit, and what those that fit take."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final, Protocol

import torch

from heterotrain.allocator import give_back
from heterotrain_core.memory import COLD_STEPS, NO_MEMORY_USE, TRUSTED, MemoryUse, are_apart

FIRST_LOOKS: Final = 8
LOOK_EACH: Final = 16
MUCH_SMALLER: Final = 0.5
"""Part of the largest batch that memory is kept for; for batches below it letting go is worth its cost."""

_WORDS: Final = ("out of memory", "can't allocate memory", "cannot allocate memory")
"""Of PyTorch's RuntimeErrors: of its CPU allocator, and of libraries below it."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that an allocation failed. A process that its kernel kills for its memory raises nothing."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _WORDS)


class MemoryProbe(Protocol):
    """Peak memory between two calls, in bytes."""

    limit: int
    """What there is at most; 0: not known."""
    counts_kept: bool
    """Whether memory that is kept for larger batches counts into the peaks of smaller ones."""

    def begin(self) -> None:
        """Forget the peak so far."""
        ...

    def peak(self) -> int:
        """Since `begin`; 0: not known."""
        ...

    def let_go(self) -> None:
        """Batches are so much smaller from now on that what only larger ones needed shall not be kept any more."""
        ...


class DeviceMemory:
    """Of a CUDA device, what PyTorch allocates there."""

    counts_kept = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.limit = torch.cuda.get_device_properties(device).total_memory

    def begin(self) -> None:
        """Forget the peak so far."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        """Since `begin`."""
        return torch.cuda.max_memory_allocated(self._device)

    def let_go(self) -> None:
        """PyTorch tells what is allocated, not what it keeps."""


class ProcessMemory:
    """Of this process, what it has resident; the limit is that of its control group, else the machine's memory.

    Without the files of Linux, or the right to them, nothing is known. Processes of a `DataLoader` do not count.
    """

    counts_kept = True

    def __init__(self, root: Path = Path("/")) -> None:
        self._process = root / "proc" / "self"
        self.limit = _memory_limit(root)

    def begin(self) -> None:
        """Forget the peak so far."""
        try:
            (self._process / "clear_refs").write_text("5", encoding="ascii")
        except OSError:
            self.limit = 0  # the peak of the whole life says nothing of one batch

    def peak(self) -> int:
        """Since `begin`; 0: not known."""
        return _kibibytes(self._process / "status", "VmHWM:") if self.limit else 0

    def let_go(self) -> None:
        """What the allocator keeps is resident, and would be told as the smaller batches' need."""
        give_back()


def probe_of(device: torch.device) -> MemoryProbe:
    """The probe of what a batch needs on `device`."""
    return DeviceMemory(device) if device.type == "cuda" else ProcessMemory()


class PeakWatch:
    """Chooses the steps to look at: the first with a size, then each so many, since a look takes some 100 µs.

    What is kept for larger batches counts into the peaks of smaller ones, so these are not looked at. Letting it go has
    its pages made anew in the steps that follow, which takes up to half of a step and looks like a slower worker. So it
    is not done for one grant alone, as the last one of an epoch is, and only for batches that are much smaller, or the
    second size that a memory model needs (`heterotrain_core.memory.Peaks`).
    """

    def __init__(self, probe: MemoryProbe) -> None:
        self._probe = probe
        self._seen: Counter[int] = Counter()
        self._looking = False
        self._kept = 0
        """Largest batch whose memory may still be kept."""
        self._largest = 0
        """Batch of the grant."""

    def expect(self, largest: int) -> None:
        """The next grant is computed in batches of at most so many samples."""
        before, self._largest = self._largest, largest
        if not self._probe.counts_kept:
            return
        if self._is_worth_it(max(before, largest)):
            self._probe.let_go()
            self._kept = largest
        self._kept = max(self._kept, largest)

    def _is_worth_it(self, largest: int) -> bool:
        if largest >= self._kept:
            return False
        known = [size for size, seen in self._seen.items() if seen >= COLD_STEPS + TRUSTED]
        is_second = are_apart((largest, self._kept)) and not are_apart(known)
        return is_second or largest < MUCH_SMALLER * self._kept

    def begin(self, samples: int) -> None:
        """So many samples are computed at once now."""
        self._looking = self._probe.limit > 0 and self._largest >= self._kept and self._is_due(samples)
        if self._looking:
            self._probe.begin()

    def _is_due(self, samples: int) -> bool:
        self._seen[samples] += 1
        seen = self._seen[samples]
        return seen <= FIRST_LOOKS or seen % LOOK_EACH == 0

    def end(self, samples: int) -> MemoryUse:
        """They are computed."""
        return MemoryUse(samples, self._probe.peak(), self._probe.limit) if self._looking else NO_MEMORY_USE


def _memory_limit(root: Path) -> int:
    machine = _kibibytes(root / "proc" / "meminfo", "MemTotal:")
    groups = root / "sys" / "fs" / "cgroup"
    limits = [_number(groups / "memory.max"), _number(groups / "memory" / "memory.limit_in_bytes")]
    return min((limit for limit in (*limits, machine) if limit > 0), default=0)


def _number(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # not there, or ``max``
        return 0


def _kibibytes(path: Path, name: str) -> int:
    """The value of a line ``name  123 kB``, in bytes; 0 if there is none."""
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(name)), 0)
