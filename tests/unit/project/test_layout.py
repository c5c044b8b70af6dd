"""The traps of a source root named `operator`, and the script that guards them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CLEAN_GIT = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, env={**os.environ, **CLEAN_GIT})


def check_tree(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([folder / "hack" / "check-tree.sh"], capture_output=True, text=True, check=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository that holds the guard and nothing wrong."""
    (tmp_path / "hack").mkdir()
    shutil.copy(ROOT / "hack" / "check-tree.sh", tmp_path / "hack")
    git(tmp_path, "init", "--quiet")
    return tmp_path


def test_started_in_the_root_operator_is_the_standard_module() -> None:
    code = "import operator, collections; print(operator.__file__)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not Path(ran.stdout.strip()).is_relative_to(ROOT)


@pytest.mark.parametrize("root", ["api", "operator", "trainer"])
def test_source_roots_hold_packages_only(root: str) -> None:
    assert [path.name for path in (ROOT / root).glob("*.py")] == []


def test_test_folders_are_not_packages() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_the_guard_passes_a_clean_tree(tree: Path) -> None:
    ran = check_tree(tree)
    assert (ran.returncode, ran.stderr) == (0, "")


FAULTS = {
    "a source root that is a package": ("operator/__init__.py", "", "operator/__init__.py"),
    "a test folder that is a package": ("tests/unit/core/__init__.py", "", "tests/unit/core/__init__.py"),
    "a module that lies in a source root": ("api/types.py", "X = 1\n", "api/types.py"),
    "a shell script that does not parse": ("hack/run", "#!/usr/bin/env bash\nif true; then\n", "hack/run: line"),
    # Put together here, so that the guard does not find this file.
    "the host of a package registry": ("notes.md", "see https://" + "pypi" + ".org/\n", "notes.md:1"),
    "the path of one machine": ("notes.md", "cd " + "/ro" + "ot/x\n", "notes.md:1"),
    "a requirement file with an index line": ("requirements/x.txt", "--find-links wheels\n", "requirements/x.txt:1"),
}


@pytest.mark.parametrize(("path", "text", "want"), FAULTS.values(), ids=FAULTS)
def test_the_guard_names(path: str, text: str, want: str, tree: Path) -> None:
    file = tree / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    ran = check_tree(tree)
    assert ran.returncode == 1
    assert want in ran.stderr


def test_the_guard_names_every_fault_not_only_the_first(tree: Path) -> None:
    (tree / "operator").mkdir()
    (tree / "operator" / "__init__.py").touch()
    (tree / "notes.md").write_text("cd " + "/wo" + "rk/main\n")
    ran = check_tree(tree)
    assert "operator/__init__.py" in ran.stderr
    assert "notes.md:1" in ran.stderr
