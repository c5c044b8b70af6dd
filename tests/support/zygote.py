"""Starts processes in milliseconds: forked from one that has loaded already what takes them seconds to load.

Run as a script, with the names of the modules to load, it obeys one JSON object a line on standard input; the `Zygote`
class is its other end. The forked processes are ordinary ones: own environment, own standard streams (files), an
interpreter that ends as usual.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

OF_A_JOB = (
    "torch",
    "heterotrain.coordinator.coordinator",
    "heterotrain.job",
    "heterotrain.joining",
    "heterotrain.ps.service",
)
OF_THE_OPERATOR = ("kopf.cli", "heterotrain_operator.running")
"""Not its handlers: each process registers its own."""
READ_THE_ENVIRONMENT = ("kubernetes.config.kube_config", "kubernetes.aio.config.kube_config")
"""When they are loaded: where the kubeconfig is."""
ONE_THREAD_AND_FORKS = {"OMP_NUM_THREADS": "1", "GRPC_ENABLE_FORK_SUPPORT": "false"}
"""Read when PyTorch and gRPC are loaded, which is before `heterotrain.join` could set the latter itself."""

ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class Process:
    """A started process; its streams are files."""

    zygote: Zygote
    pid: int
    stdout: Path
    stderr: Path

    def poll(self) -> int | None:
        """Exit code (negative: the signal), or `None` while it runs."""
        code: int | None = self.zygote.ask({"poll": self.pid})
        return code

    def wait(self, seconds: float) -> int:
        """Exit code; fails with what the process said last if it does not end in time."""
        return until(self.poll, seconds, lambda: f"does not end: {self.stderr.read_text()[-2000:]}")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Zygote:
    """The process that others are forked from, with `modules` loaded."""

    def __init__(self, modules: Sequence[str] = OF_A_JOB) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *modules], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | ONE_THREAD_AND_FORKS,
        )  # fmt: skip
        self._one_at_a_time = threading.Lock()

    def start(self, argv: Sequence[str], environment: Mapping[str, str], folder: Path, name: str) -> Process:
        """Run ``argv`` (``-m module …`` or ``script …``) with exactly this environment."""
        out, err = folder / f"{name}.out", folder / f"{name}.err"
        for path in (out, err):
            path.write_text("")
        order = {"argv": list(argv), "env": dict(environment), "stdout": str(out), "stderr": str(err)}
        return Process(self, self.ask(order), out, err)

    def ask(self, order: object) -> Any:
        """Give an order, return the answer; any thread may."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._one_at_a_time:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def until(look: Callable[[], ValueT | None], seconds: float, complaint: Callable[[], str]) -> ValueT:
    """What `look` finds, as soon as it finds something."""
    deadline = time.monotonic() + seconds
    while (found := look()) is None:
        assert time.monotonic() < deadline, complaint()
        time.sleep(0.02)
    return found


def _become(order: dict[str, Any]) -> None:
    # The streams' objects stay, the files below them change.
    for descriptor, path in ((0, os.devnull), (1, order["stdout"]), (2, order["stderr"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(order["env"])
    for module in READ_THE_ENVIRONMENT:
        if module in sys.modules:
            importlib.reload(sys.modules[module])
    argv = order["argv"]
    if argv[0] == "-m":
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = argv
        runpy.run_path(argv[0], run_name="__main__")


def _main() -> None:
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # forked processes neither copy nor, at their end, collect what is loaded here
    for line in iter(sys.stdin.readline, ""):
        order = json.loads(line)
        if "poll" in order:
            pid, status = os.waitpid(order["poll"], os.WNOHANG) if order["poll"] not in _ended else (0, 0)
            if pid:
                _ended[pid] = os.waitstatus_to_exitcode(status)
            answer: int | None = _ended.get(order["poll"])
        else:
            answer = os.fork()
            if answer == 0:
                _become(order)
                return
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    os._exit(0)  # nothing to tidy up; libraries would complain about what is frozen


_ended: dict[int, int] = {}

if __name__ == "__main__":
    _main()
