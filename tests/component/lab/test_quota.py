"""CPU quotas in real control groups, where this machine lets us make some."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from heterotrain_operator.lab.quota import NoQuotasError, own_controller, quota_groups


def test_processes_are_held_by_their_groups_which_go_when_they_have_gone() -> None:
    name = f"heterotrain-test-{os.getpid()}"
    try:
        controller = own_controller()
        with quota_groups(controller, (0.5, 0.25), name) as groups:
            for worker, (cores, file) in enumerate(zip((0.5, 0.25), groups, strict=True)):
                assert file.parent == controller.folder / f"{name}-{worker}"
                for setting, content in controller.settings(cores).items():
                    assert (file.parent / setting).read_text().split() == content.split()
            process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
            groups[1].write_text(str(process.pid))
            assert groups[1].read_text().split() == [str(process.pid)]
            process.send_signal(signal.SIGKILL)
            process.communicate()
    except NoQuotasError as error:
        pytest.skip(str(error))
    assert not [folder for folder in controller.folder.iterdir() if folder.name.startswith(name)]
