"""Lets a process of a job die at a place that is set beforehand. Python imports this in every process whose PYTHONPATH
has this folder; in all but the one that is to die it does nothing.

``FAULT=<process>:<place>:<version>`` and ``FAULT_FILE=<file>``: made, with its process id, when the process dies, so
that it dies once. The signal is SIGKILL; ``FAULT_SIGNAL`` names another. Places: ``push`` (a shard, with a gradient
received and no answer), ``commit`` (a shard, in the middle of an update), ``checkpoint`` (shard 0, with a checkpoint
half written), ``coordinator`` (between two rounds); of a worker ``worker-pull``, ``worker-compute``, ``worker-push``
(one shard has the gradient), ``worker-done`` (the coordinator has been told), and ``worker-cut``, which does not end
it: from a push on, nothing that it sends or is sent is forwarded any more (`cut`).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

_MODULES = {"coordinator": "heterotrain.coordinator"}


def _die() -> None:
    try:
        with Path(os.environ["FAULT_FILE"]).open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.Signals[os.environ.get("FAULT_SIGNAL", "SIGKILL")])


def _before(owner: Any, name: str, due: Any) -> None:
    """Die before `owner.name` does its work, once `due` (called with the same arguments) says so."""
    real = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if due(*args, **kwargs):
            _die()
        return real(*args, **kwargs)

    setattr(owner, name, wrapped)


def _install() -> None:
    process, place, text = os.environ["FAULT"].split(":")
    version = int(text)
    if os.environ.get("HETEROTRAIN_NAME") != process or Path(os.environ["FAULT_FILE"]).exists():
        return
    if place.startswith("worker-"):
        _install_in_worker(place, version)
        return
    if _MODULES.get(place, "heterotrain.ps") not in sys.orig_argv:
        return
    match place:
        case "push":
            from heterotrain.ps.store import ShardStore

            _before(ShardStore, "received", lambda _store, key, *_: key.iteration >= version)
        case "commit":
            from heterotrain.ps.part import Part

            _before(Part, "update", lambda _part, _source, _target, order: order.version >= version)
        case "checkpoint":
            from heterotrain.checkpoint.disk import Disk

            _before(
                Disk, "write", lambda _disk, path, _: path.name == "shard-0001.safetensors" and _later(path, version)
            )
        case "coordinator":
            from heterotrain_core.run import TrainingRun

            _before(TrainingRun, "handle", lambda _run, event, _: getattr(event, "version", -1) == version)


def _install_in_worker(place: str, version: int) -> None:
    from heterotrain.rounds import Rounds
    from heterotrain.shards import Shards
    from heterotrain.stream import SessionStream

    match place:
        case "worker-pull":
            _before(Shards, "pull", lambda _shards, _term, number, **_: number >= version)
        case "worker-compute":
            _before(Rounds, "hand_out", lambda _rounds, batch, _: batch.iteration >= version)
        case "worker-push":
            _before(Shards, "_push", lambda _shards, link, key, _: key.iteration >= version and link.name == "ps-1")
        case "worker-done":
            _after_done(SessionStream, version)
        case "worker-cut":
            import cut

            cut.install(Shards, version, Path(os.environ["FAULT_FILE"]))


def _after_done(stream: Any, version: int) -> None:
    """Die when the message has left for the coordinator, as far as that can be known."""
    real = stream.send_first

    def send_first(self: Any, message: Any) -> None:
        real(self, message)
        if message.HasField("done") and message.done.iteration >= version:
            time.sleep(0.05)
            _die()

    stream.send_first = send_first


def _later(path: Path, version: int) -> bool:
    return int(path.parent.name.split("-")[1]) >= version


if "FAULT" in os.environ:
    _install()
