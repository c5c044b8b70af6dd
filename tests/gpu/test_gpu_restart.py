"""A script that begins anew in its own process leaves nothing of the former one on the device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.real_job import SECONDS

SCRIPT = """
import sys
from pathlib import Path
import torch
from heterotrain.restart import Script

script, note = Script.present(), Path(sys.argv[1])
free, _ = torch.cuda.mem_get_info()
if not note.exists():
    held = torch.empty(4 * 2**30, dtype=torch.uint8, device="cuda")
    locked = torch.empty(2**28, dtype=torch.uint8, pin_memory=True)
    note.write_text(str(free))
    script.begin_anew()
print(int(note.read_text()) - free)
"""


def test_the_memory_of_the_former_run_is_free_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path / "note")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2**30
