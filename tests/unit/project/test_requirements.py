"""What goes into the images: every version exact and with its hashes, and no image with the other one's packages."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FROM_DEBIAN = {"torch", "numpy"}  # of the trainer image; see the head of requirements/trainer.txt


def entries(extra: str) -> list[str]:
    """The logical lines of a requirement file, comments dropped."""
    text = (ROOT / "requirements" / f"{extra}.txt").read_text()
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return [" ".join(line.split()) for line in re.sub(r"\\\n", " ", lines).splitlines() if line.strip()]


def versions(extra: str) -> dict[str, str]:
    """Version by package."""
    return dict(entry.split(" ", 1)[0].split("==") for entry in entries(extra))


@pytest.mark.parametrize("extra", ["operator", "trainer", "build", "examples"])
def test_every_line_is_an_exact_version_with_hashes(extra: str) -> None:
    shape = re.compile(r"[a-z0-9.-]+==[^ ;]+( ; [^-]+)?( --hash=sha256:[0-9a-f]{64})+")
    assert entries(extra)
    assert [entry for entry in entries(extra) if not shape.fullmatch(entry)] == []


@pytest.mark.parametrize("extra", ["operator", "trainer"])
def test_what_the_project_asks_for_is_there_in_a_version_that_it_takes(extra: str) -> None:
    locked = versions(extra)
    left_out = FROM_DEBIAN if extra == "trainer" else set()
    wanted = [Requirement(line) for line in PROJECT["dependencies"] + PROJECT["optional-dependencies"][extra]]
    faults = [
        f"{want} but locked: {locked.get(canonicalize_name(want.name))}"
        for want in wanted
        if want.name not in left_out and locked.get(canonicalize_name(want.name), "0") not in want.specifier
    ]
    assert faults == [], "run `make lock`"


def test_the_commands_need_no_extra() -> None:
    optional = [
        Requirement(line)
        for extra in ("operator", "trainer", "plots", "examples")
        for line in PROJECT["optional-dependencies"][extra]
    ]
    blocked = {want.name.replace("-", "_"): None for want in optional}
    assert {"kopf", "torch", "matplotlib"} <= blocked.keys()
    code = f"import sys; sys.modules.update({blocked}); from heterotrain_operator.cli import main; main(['version'])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.split()[:1]) == (0, ["heterotrain"]), ran.stderr


def test_the_operator_image_gets_no_trainer_packages() -> None:
    unwanted = {"torch", "safetensors", "triton", "matplotlib"}
    assert [name for name in versions("operator") if name in unwanted or name.startswith("nvidia-")] == []


def test_the_trainer_image_gets_no_operator_packages_and_nothing_that_debian_gives() -> None:
    unwanted = {"kopf", "kubernetes", "matplotlib", "triton", *FROM_DEBIAN}
    assert [name for name in versions("trainer") if name in unwanted or name.startswith(("nvidia-", "cuda-"))] == []


def test_packages_that_both_images_have_are_of_one_version() -> None:
    operator, trainer = versions("operator"), versions("trainer")
    both = operator.keys() & trainer.keys()
    assert "grpcio" in both
    assert {name: operator[name] for name in both} == {name: trainer[name] for name in both}
