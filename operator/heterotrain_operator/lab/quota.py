"""CPU quotas of lab workers by control groups, version 1 or 2. What to write is found by pure functions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PERIOD_MICROSECONDS: Final = 20_000
"""Short, so that a step is many periods: with the usual 100 ms a short step runs free and then stalls
(algorithms.md 4.3)."""


class NoQuotasError(RuntimeError):
    """There are no CPU quotas to be had; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Controller:
    """Where control groups for the CPU are made."""

    version: int
    folder: Path
    """Of the group below which ours are made."""

    def settings(self, cores: float) -> dict[str, str]:
        """File → content, in the order in which they are to be written, for a quota of `cores`."""
        quota = max(1000, round(cores * PERIOD_MICROSECONDS))
        if self.version == 2:
            return {"cpu.max": f"{quota} {PERIOD_MICROSECONDS}"}
        return {"cpu.cfs_period_us": str(PERIOD_MICROSECONDS), "cpu.cfs_quota_us": str(quota)}


def find_controller(mounts: str, groups: str) -> Controller | None:
    """The CPU controller of this process, from ``/proc/self/mounts`` and ``/proc/self/cgroup``.

    Version 1 counts where both are mounted: a controller can only be in one of them.
    """
    paths = {}
    for line in groups.splitlines():
        _, names, path = line.split(":", 2)
        paths.update(dict.fromkeys(names.split(","), path))
    version_2 = None
    for line in mounts.splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup" and "cpu" in options.split(",") and "cpu" in paths:
            return Controller(1, _below(where, paths["cpu"]))
        if kind == "cgroup2" and "" in paths:
            version_2 = Controller(2, _below(where, paths[""]))
    return version_2


def _below(mount: str, path: str) -> Path:
    folder = Path(mount) / path.lstrip("/")
    # In a container the path may be the host's, which is not mounted here.
    return folder if folder.is_dir() else Path(mount)


def own_controller(proc: Path = Path("/proc/self")) -> Controller:
    """That of this process. Raises `NoQuotasError`."""
    files = proc / "mounts", proc / "cgroup"
    controller = find_controller(*(f.read_text() for f in files)) if all(f.exists() for f in files) else None
    if controller is None:
        raise NoQuotasError("level 3 needs control groups with the CPU controller, and none are mounted; use --level 2")
    return controller


@contextmanager
def quota_groups(controller: Controller, cores: Sequence[float], name: str) -> Iterator[tuple[Path, ...]]:
    """A control group for each quota, named after `name`; gives their ``cgroup.procs`` files, which take process ids.

    On leaving the groups are taken away; all their processes must have ended. Raises `NoQuotasError`.
    """
    made: list[Path] = []
    try:
        _make(controller, cores, name, made)
        yield tuple(folder / "cgroup.procs" for folder in made)
    finally:
        for folder in made:
            folder.rmdir()


def _make(controller: Controller, cores: Sequence[float], name: str, made: list[Path]) -> None:
    try:
        if controller.version == 2:
            _enable(controller.folder)
        for worker, quota in enumerate(cores):
            folder = controller.folder / f"{name}-{worker}"
            folder.mkdir()
            made.append(folder)
            for file, content in controller.settings(quota).items():
                (folder / file).write_text(content)
    except OSError as error:
        raise NoQuotasError(
            f"level 3 needs CPU quotas, and {error.filename or controller.folder} cannot be written to: "
            f"{error.strerror}; {_remedy(error)}, or use --level 2"
        ) from None


def _enable(folder: Path) -> None:
    """Give the groups below a version 2 group the CPU controller."""
    if "cpu" not in (folder / "cgroup.controllers").read_text().split():
        raise OSError(0, "the CPU controller is not enabled for it", str(folder))
    if "cpu" not in (folder / "cgroup.subtree_control").read_text().split():
        (folder / "cgroup.subtree_control").write_text("+cpu")


def _remedy(error: OSError) -> str:
    if os.geteuid() != 0:
        return "run as root, or in a group that was delegated to you (systemd-run --user --scope -p Delegate=yes)"
    if isinstance(error, FileNotFoundError) or error.errno == 0:
        return "enable the CPU controller in the group above (echo +cpu > cgroup.subtree_control)"
    return "run outside of a container, or in one that may write to /sys/fs/cgroup, in a group without other processes"
