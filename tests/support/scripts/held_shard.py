"""A parameter server; on ps-0 the update of version HELD_VERSION waits for the file HOLD/release.

It leaves the file HOLD/holding when it begins to wait.
"""

import os
import sys
import time
from pathlib import Path
from unittest.mock import patch

import torch

from heterotrain.ps.__main__ import main
from heterotrain.ps.part import Part
from heterotrain.ps.values import CommitOrder

update = Part.update


def held_update(part: Part, source: torch.Tensor, target: torch.Tensor, order: CommitOrder) -> None:
    """As `Part.update`, in the same thread, later."""
    if os.environ["HETEROTRAIN_NAME"] == "ps-0" and order.version == int(os.environ["HELD_VERSION"]):
        folder = Path(os.environ["HOLD"])
        (folder / "holding").touch()
        while not (folder / "release").exists():
            time.sleep(0.01)
    update(part, source, target, order)


with patch.object(Part, "update", held_update):
    sys.exit(main())
