from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.zygote import OF_A_JOB, Zygote

LONGEST = (
    "lab/test_lab.py", "examples/test_inference_dispatch.py", "checkpoint/test_kill.py", "test_membership.py",
    "local/test_run.py", "rest/test_fuzz.py", "local/test_memory.py", "trainer/test_ends.py",
    "rest/test_accelerator.py",
)  # fmt: skip
"""Files whose tests come first, so that no process of pytest is left with one of them when the others have ended."""
APART = ("local/test_membership.py", "local/test_run.py", "trainer/test_ends.py")
"""Files with so many long tests that they are dealt out one by one; all others stay together, with their fixtures."""

OF_THE_RUNNER = ("heterotrain_operator.cli", "matplotlib.figure", "matplotlib.backends.backend_agg")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order and groups for ``pytest -n ... --dist loadgroup --no-loadscope-reorder``."""
    items.sort(key=lambda item: next((i for i, file in enumerate(LONGEST) if file in item.nodeid), len(LONGEST)))
    for item in items:
        file = item.nodeid.partition("::")[0]
        if not file.endswith(APART):
            item.add_marker(pytest.mark.xdist_group(file))


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """What the processes of real jobs are forked from, and their runners."""
    made = Zygote((*OF_A_JOB, *OF_THE_RUNNER))
    yield made
    made.close()
