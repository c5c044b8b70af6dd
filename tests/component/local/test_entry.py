"""The command ``heterotrain`` before any of its commands has begun."""

from __future__ import annotations

import subprocess
import sys

INTERRUPTED_WHILE_IT_LOADS = """
import sys

class Impatient:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Impatient())
from heterotrain_operator.entry import main
main()
"""


def test_ctrl_c_while_the_command_line_loads_ends_it_without_a_traceback() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_IT_LOADS], capture_output=True, text=True, check=False, timeout=30
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_the_installed_command_begins_here() -> None:
    code = "import sys; sys.argv = ['heterotrain', '--version']; from heterotrain_operator.entry import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("heterotrain ")
