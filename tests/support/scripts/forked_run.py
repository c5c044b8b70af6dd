"""``forked_run.py FOLDER ARGUMENT…``: ``heterotrain ARGUMENT…`` in FOLDER, whose job's processes are forked.

For a `support.zygote`, where how a job's processes start is not what a test is about. Before anything else runs this
process forks a starter, which has loaded what they need and forks one for each order of the runner; all else, from
their sessions to the signal that ends them with the runner, is as `heterotrain_operator.local.supervisor.spawn` has it.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import json
import os
import runpy
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterotrain_operator import cli
from heterotrain_operator.local import supervisor
from heterotrain_operator.local.launcher import PR_SET_PDEATHSIG


class Starter:
    """The runner's end of the starter."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._answers = orders.makefile("r")

    def ask(self, order: object) -> int:
        """Give an order, return the answer."""
        self._orders.sendall(json.dumps(order).encode() + b"\n")
        return int(self._answers.readline())

    async def spawn(self, command: supervisor.Command) -> supervisor.Spawned:
        """In place of `supervisor.spawn`; programs other than Python, and what has a limit of memory, are started."""
        if command.arguments[0] != sys.executable or command.memory_limit_bytes is not None:
            return await _spawn(command)
        command.log.touch()  # the runner reads it from now on
        order = {
            "argv": command.arguments, "env": dict(command.environment), "folder": str(command.folder),
            "log": str(command.log),
        }  # fmt: skip
        return Forked(self, self.ask(order))


@dataclass(frozen=True)
class Forked:
    """A process that the starter forked."""

    starter: Starter
    pid: int

    async def wait(self) -> int:
        """Exit code, once it has ended."""
        loop, ended, descriptor = asyncio.get_running_loop(), asyncio.Event(), os.pidfd_open(self.pid)
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        return self.starter.ask({"wait": self.pid})


_spawn = supervisor.spawn


def fork_to_order(orders: socket.socket, runner: int) -> dict[str, Any]:
    """Fork for each order until the runner ends. Returns in what was forked, with its order."""
    _end_with(runner)
    for line in orders.makefile("r"):
        order: dict[str, Any] = json.loads(line)
        if "wait" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1])
        else:
            starter, (begun, begin) = os.getpid(), os.pipe()
            answer = os.fork()
            if answer == 0:
                orders.close()
                os.setsid()
                _end_with(starter)
                os.write(begin, b".")
                os.close(begin)
                return order
            os.close(begin)
            os.read(begun, 1)  # a signal to its group finds it from now on
            os.close(begun)
        orders.sendall(f"{answer}\n".encode())
    os._exit(0)


def _end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def become(order: dict[str, Any]) -> None:
    """Run what was ordered, as an interpreter that has just started."""
    argv = order["argv"]
    _write_to(order["log"])
    sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.orig_argv[:] = argv
    paths = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    sys.path[:0] = paths
    if any(Path(path, "sitecustomize.py").exists() for path in paths):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")
    if argv[1] == "-m":
        sys.path.insert(0, order["folder"])
        sys.argv = argv[2:]
        runpy.run_module(argv[2], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(argv[1]).parent))
        sys.argv = argv[1:]
        runpy.run_path(argv[1], run_name="__main__")


def _write_to(path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def main() -> None:
    """Run as a script."""
    near, far = socket.socketpair()
    runner = os.getpid()
    if os.fork() == 0:
        near.close()
        become(fork_to_order(far, runner))
        return
    far.close()
    os.chdir(sys.argv[1])
    _write_to("output")
    supervisor.spawn = Starter(near).spawn
    cli.main(sys.argv[2:])


if __name__ == "__main__":
    main()
