"""Lets a process of a job die at a place that is set beforehand. Python imports this in every process whose PYTHONPATH
has this folder; in all but the one that is to die it does nothing.

``FAULT=<process>:<place>:<version>`` and ``FAULT_FILE=<file>``: made when the process dies, so that it dies once. The
signal is SIGKILL; ``FAULT_SIGNAL`` names another. Places: ``push`` (a shard, with a gradient received and no answer),
``commit`` (a shard, in the middle of an update), ``checkpoint`` (shard 0, with a checkpoint half written),
``coordinator`` (between two rounds).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

_MODULES = {"coordinator": "heterotrain.coordinator"}


def _die() -> None:
    try:
        with Path(os.environ["FAULT_FILE"]).open("x"):
            pass
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
    module = _MODULES.get(place, "heterotrain.ps")
    if os.environ.get("HETEROTRAIN_NAME") != process or module not in sys.orig_argv:
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


def _later(path: Path, version: int) -> bool:
    return int(path.parent.name.split("-")[1]) >= version


if "FAULT" in os.environ:
    _install()
