"""The processes of a lab run: started with their logs, waited for, ended. None outlives the block that started it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heterotrain_operator.local import launcher
from heterotrain_operator.local.supervisor import read_tail

POLL_SECONDS: Final = 0.1
STOP_SECONDS: Final = 10.0
TAIL_BYTES: Final = 2000


class RunFailedError(RuntimeError):
    """A process of a run ended with a failure, or too late; the text has the last words of its log."""


@dataclass(frozen=True, slots=True)
class Program:
    """One process to start."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    log: Path


class Running:
    """Processes that live."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self._programs = programs
        self.processes: list[subprocess.Popen[bytes]] = []

    def check(self) -> None:
        """Raises `RunFailedError` if one of them has ended."""
        for process, program in zip(self.processes, self._programs, strict=True):
            if process.poll() is not None:
                raise RunFailedError(_failure(program, process.returncode))

    @contextmanager
    def only(self, index: int) -> Iterator[None]:
        """All others stand still meanwhile."""
        others = [process for i, process in enumerate(self.processes) if i != index]
        for process in others:
            process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in others:
                process.send_signal(signal.SIGCONT)


@contextmanager
def running(programs: Sequence[Program]) -> Iterator[Running]:
    """Start all of them; on leaving all are ended.

    The kernel kills them if this process dies (`heterotrain_operator.local.launcher`).
    """
    made = Running(programs)
    try:
        made.processes.extend(map(_start, programs))
        yield made
    finally:
        _end(made.processes)


def finished(program: Program, seconds: float, *, good: Sequence[int] = (0,)) -> None:
    """Run a program to its end. Raises `RunFailedError` if that is late, or its exit code not `good`."""
    process = _start(program)
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        raise RunFailedError(f"not over after {seconds:.0f} s: {_words(program)}") from None
    finally:
        _end([process])
    if code not in good:
        raise RunFailedError(_failure(program, code))


def _start(program: Program) -> subprocess.Popen[bytes]:
    launched = [program.arguments[0], "-I", "-S", launcher.__file__, str(os.getpid())]
    with program.log.open("wb") as log:
        return subprocess.Popen(
            [*launched, *program.arguments],
            env=dict(program.environment), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip


def wait_until(condition: Callable[[], bool], check: Callable[[], None], seconds: float, what: str) -> None:
    """Wait for `condition`; `check` raises if that is vain. Raises `RunFailedError` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        check()
        if time.monotonic() > deadline:
            raise RunFailedError(f"{what}: not there after {seconds:.0f} s")
        time.sleep(POLL_SECONDS)


def free_port() -> int:
    """A port that nobody listens at on the loopback interface."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _failure(program: Program, code: int) -> str:
    return f"{' '.join(program.arguments[1:])} ended with code {code}: {_words(program)}"


def _words(program: Program) -> str:
    return read_tail(program.log, TAIL_BYTES).strip() or f"no word in {program.log}"
