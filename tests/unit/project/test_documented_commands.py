"""Every `heterotrain` command in a code block of the documentation is one that the command line takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup

from heterotrain_operator.cli import make_app
from heterotrain_operator.commands.plugins import installed

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def documented() -> Iterator[tuple[str, str]]:
    """Page and command, continued lines joined, comments taken away."""
    for page in PAGES:
        for block in BLOCK.findall(page.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("heterotrain "):
                    yield page.name, line.split("  #")[0].strip()


COMMANDS = sorted(set(documented()))


def parse(words: list[str]) -> None:
    """As the command line does, without running it. Raises `NoSuchOption` and the like."""
    command: Any = typer.main.get_command(make_app(installed()))
    name: str | None = "heterotrain"
    while isinstance(command, TyperGroup):
        context = command.make_context(name, [], resilient_parsing=True)
        name, command, words = command.resolve_command(context, words)
    assert command is not None
    command.make_context(name, list(words))


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=[f"{page}: {line}" for page, line in COMMANDS])
def test_a_command_of_the_documentation_is_taken(page: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    parse(shlex.split(line)[1:])


def test_there_are_commands_and_a_wrong_one_is_found() -> None:
    assert ("README.md", "heterotrain stop fashion") in COMMANDS
    with pytest.raises(Exception, match="No such option: --patience"):
        parse(["drain", "fashion", "tiny-0", "--patience", "3"])
