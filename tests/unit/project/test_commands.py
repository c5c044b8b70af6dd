"""What the documents tell people to type exists: make targets, `heterotrain` subcommands, scripts."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from heterotrain_operator.cli import make_app
from heterotrain_operator.commands.plugins import installed

ROOT = Path(__file__).parents[3]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):", MAKEFILE, flags=re.MULTILINE))
DOCUMENTS = [path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md") if path.exists()]


def commands(text: str, program: str) -> set[str]:
    """First words after `program` in code, in a block or inline."""
    code = re.findall(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL) + re.findall(r"`([^`\n]+)`", text)
    lines = [line.split("#")[0] for part in code for line in part.splitlines()]
    return {word for line in lines for word in re.findall(rf"(?:^|\s|/){program} ([a-z][a-z0-9-]*)", line)}


def test_help_lists_every_target() -> None:
    ran = subprocess.run(["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {line.split()[0] for line in ran.stdout.splitlines()} == TARGETS


def test_every_target_is_phony() -> None:
    declared = re.search(r"^\.PHONY:((?:.*\\\n)*.*)$", MAKEFILE, flags=re.MULTILINE)
    assert declared is not None
    assert set(declared[1].replace("\\", " ").split()) == TARGETS


def planned(target: str, venv: Path) -> list[str]:
    """What make would do for a target where the environment lies in `venv`."""
    make = ["make", "--no-print-directory", "--dry-run", f"venv={venv}", target]
    ran = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in ran.stdout.splitlines() if re.search("^echo|pip install|hack/|-m pytest", line)]


def test_the_demo_says_what_it_installs_before_it_does_and_installs_no_tools_of_development(tmp_path: Path) -> None:
    *said, installs, data, demo = planned("demo", tmp_path)
    assert "the extras trainer,plots,examples" in said[0]
    assert all(line.startswith("echo ") for line in said)
    assert installs.endswith("--editable '.[trainer,plots,examples]'")
    assert (data, demo) == ("hack/fetch-fashion-mnist.sh", f"PYTHON={tmp_path}/bin/python hack/demo.sh")


def test_the_tests_add_what_the_demo_left_out_and_the_demo_takes_what_is_there(tmp_path: Path) -> None:
    (tmp_path / ".installed-for-jobs").touch()
    assert planned("demo", tmp_path)[0] == "hack/fetch-fashion-mnist.sh"
    assert planned("test", tmp_path)[-2].endswith("--editable '.[operator,trainer,plots,examples,dev]'")
    (tmp_path / ".installed").touch()
    assert len(planned("test", tmp_path)) == 1


def test_scripts_of_targets_and_hooks_exist_and_can_be_run() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    entries = " ".join(hook["entry"] for repo in hooks for hook in repo["hooks"])
    scripts = set(re.findall(r"hack/[\w-]+\.sh", MAKEFILE + entries))
    assert scripts
    assert [script for script in sorted(scripts) if not os.access(ROOT / script, os.X_OK)] == []


def test_pre_commit_fetches_nothing() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert {repo["repo"] for repo in config["repos"]} == {"local"}
    assert {hook["language"] for repo in config["repos"] for hook in repo["hooks"]} == {"system"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_targets_that_exist(document: Path) -> None:
    named = commands(document.read_text(), "make")
    assert named
    assert named <= TARGETS


def test_readme_begins_with_the_two_commands_that_need_nothing_set_up() -> None:
    assert {"demo", "test"} <= commands((ROOT / "README.md").read_text(), "make")


def test_readme_names_subcommands_that_exist() -> None:
    app = make_app(installed())
    names = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    names |= {group.name for group in app.registered_groups}
    named = commands((ROOT / "README.md").read_text(), "heterotrain")
    assert {"run", "plan", "logs", "validate"} <= named
    assert named <= names


def test_the_helm_release_has_one_name_wherever_it_is_named() -> None:
    script = (ROOT / "hack" / "install.sh").read_text()
    release = re.search("^release=(.*)$", script, flags=re.MULTILINE)
    assert release is not None
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    verb = re.compile(r"^helm (?:install|test|upgrade|uninstall) ([\w-]+)", flags=re.MULTILINE)
    named = {(page.name, name) for page in pages for name in verb.findall(page.read_text())}
    assert {("README.md", release[1]), ("installation.md", release[1])} == named
    assert 'helm upgrade --install "$release" charts/heterotrain-operator' in script


def test_fetch_script_takes_the_folder_it_is_told(tmp_path: Path) -> None:
    for part in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            (tmp_path / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(b""))
    script = ROOT / "hack" / "fetch-fashion-mnist.sh"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HETEROTRAIN_DATA": str(tmp_path)}
    ran = subprocess.run([script], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == f"{tmp_path}\n"
