from __future__ import annotations

import pytest

from heterotrain.ps.optimizer import decode_group


@pytest.fixture(scope="session", autouse=True)
def optimizers_loaded() -> None:
    """The first optimizer that is made loads a large part of torch; no test is to be timed with that."""
    decode_group("SGD", "{}")
