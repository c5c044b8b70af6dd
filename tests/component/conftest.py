from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.zygote import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """What the processes of real jobs are forked from."""
    made = Zygote()
    yield made
    made.close()
