"""Processes forked from one that uses gRPC: the loader's."""

from __future__ import annotations

import gc
import os
from functools import cache


@cache
def leave_inherited_alone() -> None:
    """From now on, forked processes never collect what they inherited. Again: no effect.

    What is garbage in this process at the moment of a fork is garbage in the other one too, and its finalizers act on
    threads that are not there: gRPC's waited for one of its own for ever, in a collection in the middle of the
    loader's start. Frozen objects cost a short-lived process nothing, and their memory stays shared.
    """
    os.register_at_fork(after_in_child=gc.freeze)
