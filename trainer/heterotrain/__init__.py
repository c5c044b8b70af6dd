"""Train one PyTorch model on machines that are not alike: a script's `join`, and the processes of a job.

Importing the package alone is cheap: PyTorch is loaded with `join` and `Session`, which the coordinator never needs.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from heterotrain.errors import HeterotrainError, PeerLostError, UsageError

if TYPE_CHECKING:
    from heterotrain.joining import join
    from heterotrain.session import Session

__version__ = version("heterotrain")

__all__ = ["HeterotrainError", "PeerLostError", "Session", "UsageError", "__version__", "join"]

_HOMES = {"join": "heterotrain.joining", "Session": "heterotrain.session"}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
