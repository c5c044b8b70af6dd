"""A parameter server; on ps-0 the update of version HELD_VERSION waits for the file HOLD/release.

It leaves the file HOLD/holding when it begins to wait.
"""

import os
import sys
import time
from pathlib import Path
from unittest.mock import patch

from heterotrain.ps.__main__ import main
from heterotrain.ps.store import ShardStore
from heterotrain.ps.values import CommitOrder

commit = ShardStore.commit


def held_commit(store: ShardStore, order: CommitOrder) -> int:
    """As `ShardStore.commit`, in the same thread, later."""
    if os.environ["HETEROTRAIN_NAME"] == "ps-0" and order.version == int(os.environ["HELD_VERSION"]):
        folder = Path(os.environ["HOLD"])
        (folder / "holding").touch()
        while not (folder / "release").exists():
            time.sleep(0.01)
    return commit(store, order)


with patch.object(ShardStore, "commit", held_commit):
    sys.exit(main())
