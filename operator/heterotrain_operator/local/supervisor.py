"""Starts, watches and ends the processes of a local job. Each is a session and process group of its own.

Nothing outlives the runner: the kernel kills what it started (`launcher`), and a guard process kills the rest of their
groups (`guard`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

import psutil

from heterotrain_operator.job.last_words import last_words
from heterotrain_operator.local import guard, launcher
from heterotrain_operator.local.cause import Exit, Kind, MemoryExcess

LOG_TAIL_BYTES: Final = 64 * 1024
MEMORY_INTERVAL_SECONDS: Final = 0.5
_STANDALONE: Final = (sys.executable, "-I", "-S")
"""A bare interpreter: no site packages, no user settings, some 10 ms to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A process to start."""

    name: str
    kind: Kind
    arguments: Sequence[str]
    environment: Mapping[str, str]
    """The whole of it: nothing is inherited."""
    folder: Path
    """Working directory."""
    log: Path
    """Takes standard output and error."""
    memory_limit_bytes: int | None = None
    """Of the process and all that it starts; more than this, and it is killed."""


class Spawned(Protocol):
    """A process that leads a session of its own."""

    @property
    def pid(self) -> int:
        """Also that of its group."""
        ...

    async def wait(self) -> int:
        """Exit code, once it has ended; negative: the signal."""
        ...


async def spawn(command: Command) -> Spawned:
    """Start the process, which the kernel will kill with this one."""
    with command.log.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *_STANDALONE, launcher.__file__, str(os.getpid()), *command.arguments,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            cwd=command.folder, env=dict(command.environment), start_new_session=True,
        )  # fmt: skip


class _Process:
    """A process that was started; one task waits for its end."""

    def __init__(self, command: Command, process: Spawned) -> None:
        self.command = command
        self.process = process
        self.told = False
        self.excess: MemoryExcess | None = None
        self.exit: Exit | None = None
        self.waiter: asyncio.Task[None] | None = None

    @property
    def group(self) -> int:
        return self.process.pid

    def signal(self, number: int) -> None:
        if self.exit is None:
            _signal_group(self.group, number)


class Supervisor:
    """The processes of one job. An asynchronous context manager: on the way out, everything that it started is
    ended.
    """

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        """Set when a process has ended; whoever waits for it clears it."""
        self._processes: dict[str, _Process] = {}
        self._guard: subprocess.Popen[bytes] | None = None
        self._memory_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start the guard."""
        self._guard = subprocess.Popen(  # noqa: ASYNC220  # a fork and an exec, before anything else runs
            [*_STANDALONE, guard.__file__], stdin=subprocess.PIPE, start_new_session=True
        )
        self._memory_task = asyncio.create_task(self._watch_memory())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Kill what still runs, then let the guard go."""
        self.kill()
        await self._wait(5.0)
        if self._memory_task is not None:
            self._memory_task.cancel()
            await asyncio.gather(self._memory_task, return_exceptions=True)
        if self._guard is not None:
            self._guard.communicate()

    @property
    def exits(self) -> tuple[Exit, ...]:
        """What has ended, in the order of starting."""
        return tuple(process.exit for process in self._processes.values() if process.exit is not None)

    @property
    def running(self) -> tuple[str, ...]:
        """Names of what has not ended."""
        return tuple(name for name, process in self._processes.items() if process.exit is None)

    async def start(self, command: Command) -> None:
        """Start a process; its end shows in `exits`, also if the command cannot be found."""
        started = _Process(command, await spawn(command))
        self._processes[command.name] = started
        self._tell_guard("+", started.group)
        started.waiter = asyncio.create_task(self._wait_for(started))

    async def stop(self, grace_seconds: float) -> None:
        """Ask everything to end, wait for at most `grace_seconds`, kill the rest."""
        for process in self._processes.values():
            process.told = process.told or process.exit is None
            process.signal(signal.SIGTERM)
        await self._wait(grace_seconds)
        self.kill()
        await self._wait(5.0)

    def kill(self) -> None:
        """End everything at once."""
        for process in self._processes.values():
            process.told = process.told or process.exit is None
            process.signal(signal.SIGKILL)

    async def _wait(self, seconds: float) -> None:
        waiters = [
            process.waiter
            for process in self._processes.values()
            if process.waiter is not None and process.exit is None
        ]
        if waiters:
            await asyncio.wait(waiters, timeout=seconds)

    async def _wait_for(self, started: _Process) -> None:
        code = await started.process.wait()
        # What it had started in turn (loader processes) does no more good, and would outlive the job.
        _signal_group(started.group, signal.SIGKILL)
        self._tell_guard("-", started.group)
        command = started.command
        started.exit = Exit(
            name=command.name, kind=command.kind, code=code, seconds=time.monotonic(),
            last_line=last_words(read_tail(command.log, LOG_TAIL_BYTES)), excess=started.excess, told=started.told,
        )  # fmt: skip
        self.changed.set()

    async def _watch_memory(self) -> None:
        while True:
            await asyncio.sleep(MEMORY_INTERVAL_SECONDS)
            for process in [process for process in self._processes.values() if process.exit is None]:
                limit = process.command.memory_limit_bytes
                if limit is None:
                    continue
                held = await asyncio.to_thread(resident_bytes, process.process.pid, limit)
                if held > limit and process.exit is None:
                    process.excess = MemoryExcess(held_bytes=held, limit_bytes=limit)
                    process.signal(signal.SIGKILL)

    def _tell_guard(self, sign: str, group: int) -> None:
        if self._guard is None or self._guard.stdin is None:
            raise RuntimeError("the supervisor is not entered")
        try:
            self._guard.stdin.write(f"{sign}{group}\n".encode())
            self._guard.stdin.flush()
        except BrokenPipeError:
            # Somebody killed the guard; the kernel's death signal still holds for what we start.
            return


def resident_bytes(pid: int, limit: int) -> int:
    """Return the memory that a process and its descendants hold; 0 if it is gone.

    The sum of resident sizes counts shared pages once a process; only if it is above `limit` is the dearer, exact
    proportional size read.
    """
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    resident = sum(_size(process, exact=False) for process in tree)
    return sum(_size(process, exact=True) for process in tree) if resident > limit else resident


def _size(process: psutil.Process, *, exact: bool) -> int:
    try:
        if exact and hasattr(process.memory_full_info(), "pss"):
            return int(process.memory_full_info().pss)
        return int(process.memory_info().rss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


def read_tail(path: Path, size: int) -> str:
    """Return the last `size` bytes of a file as text; empty if there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return
