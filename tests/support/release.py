"""The operator's release, by helm: brought into another shape for some tests, and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from support.cluster import DEPLOYMENT, OPERATOR_NAMESPACE, run

CHART: Final = Path(__file__).parents[2] / "charts" / "heterotrain-operator"
RELEASE: Final = (DEPLOYMENT, "--namespace", OPERATOR_NAMESPACE)
"""The release and its Deployment have one name."""


def install(values: Path, *options: str) -> None:
    """Install or upgrade the release with these values, and wait until the operator is ready."""
    wait = ("--wait", "--timeout", "90s")
    run("helm", "upgrade", "--install", RELEASE[0], str(CHART), *RELEASE[1:], "--values", str(values), *wait, *options)


@contextmanager
def kept_values(folder: Path) -> Iterator[Path]:
    """A file with the values of the release, which is installed with them again afterwards."""
    file = folder / "values.yaml"
    file.write_text(run("helm", "get", "values", *RELEASE, "--output", "yaml"))
    try:
        yield file
    finally:
        install(file)
