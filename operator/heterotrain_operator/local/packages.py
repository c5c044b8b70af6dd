"""What a job needs of this Python beyond our own packages: asked before anything is started."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

TRAINER_PACKAGES: Final = ("torch", "safetensors", "numpy")
"""What the extra ``trainer`` brings: parameter servers and workers import it, the runner does not."""


def missing_for_training() -> str | None:
    """Say what is missing, and what to do, if processes of a job could not start with this interpreter; `None`: they
    can. Nothing is imported.
    """
    missing = [name for name in TRAINER_PACKAGES if find_spec(name) is None]
    if not missing:
        return None
    packages = f"package {missing[0]}, which is" if len(missing) == 1 else f"packages {', '.join(missing)}, which are"
    return f"running a job on this machine needs the {packages} not installed: pip install 'heterotrain[trainer]'"
