"""An arena that lies apart from the memory that the transport reads and writes, as on CUDA: every copy is made.

Both lie on the CPU here; that the device's side is right is for the tests in tests/gpu to say.
"""

from __future__ import annotations

import pytest
import torch

from heterotrain import arena
from support.bound import Bound, check_pushes, check_receives


def apart(num_bytes: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(num_bytes, dtype=torch.uint8), torch.zeros(num_bytes, dtype=torch.uint8, device=device)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> tuple[Bound, Bound]:
    """Of an arena apart from its host memory, and of one that is host memory."""
    plain = Bound("cpu")
    monkeypatch.setattr(arena, "_twins", apart)
    return Bound("cpu"), plain


def test_initial_values_and_pushes_are_brought_to_host_memory(pair: tuple[Bound, Bound]) -> None:
    check_pushes(*pair)


def test_a_version_that_was_received_is_brought_to_the_model(pair: tuple[Bound, Bound]) -> None:
    check_receives(*pair)
