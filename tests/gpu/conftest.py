from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.gpu import Spawner


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is in this folder is skipped where there is no GPU."""
    if torch.cuda.is_available():
        return
    without = pytest.mark.skip(reason="needs an NVIDIA GPU; torch.cuda.is_available() is False")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(without)


@pytest.fixture
def spawner() -> Spawner:
    return Spawner()
