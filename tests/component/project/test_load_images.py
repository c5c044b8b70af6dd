"""Images that do not get into a cluster's node: what is said of it."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "hack" / "load-images.py"
DOCKER = """#!/bin/sh
case "$*" in
    info*) echo {folder} ;;
    *content*) ;;
    *) echo 'no space left on device' >&2; exit 3 ;;
esac
"""


def test_an_import_that_ends_before_it_has_read_all_is_told_with_the_room_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(DOCKER.format(folder=tmp_path))
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    script: dict[str, Any] = runpy.run_path(str(SCRIPT))
    config, manifest = (script["in_memory"](content * 1_000_000, "x") for content in (b"c", b"m"))
    image = script["Image"]("docker.io/a:1", manifest, config, ())

    with pytest.raises(SystemExit, match=r"node-1: `ctr images import` failed with exit code 3.* GB free"):
        script["load"]("node-1", [image])
