from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.zygote import OF_A_JOB, Zygote

OF_THE_RUNNER = ("heterotrain_operator.cli", "matplotlib.figure", "matplotlib.backends.backend_agg")


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """What the processes of real jobs are forked from, and their runners."""
    made = Zygote((*OF_A_JOB, *OF_THE_RUNNER))
    yield made
    made.close()
