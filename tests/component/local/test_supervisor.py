from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

from heterotrain_operator.local.cause import Exit, Kind
from heterotrain_operator.local.supervisor import Command, Supervisor, read_tail, resident_bytes


def command(folder: Path, script: str, name: str = "cpu-0", **more: object) -> Command:
    return Command(
        name=name, kind=Kind.WORKER, arguments=[sys.executable, "-c", script],
        environment={"PATH": os.defpath, "A": "b"},
        folder=folder, log=folder / f"{name}.log", **more,  # type: ignore[arg-type]
    )  # fmt: skip


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # of files and processes, which set no event
            await asyncio.sleep(0.02)


async def exits_of(supervisor: Supervisor, *commands: Command) -> tuple[Exit, ...]:
    for each in commands:
        await supervisor.start(each)
    await until(lambda: not supervisor.running)
    return supervisor.exits


async def test_a_process_gets_its_folder_its_environment_and_its_log(tmp_path: Path) -> None:
    script = "import os, sys; print(os.getcwd(), sorted(os.environ)); sys.exit(4)"
    async with Supervisor() as supervisor:
        (ended,) = await exits_of(supervisor, command(tmp_path, script))
    assert (ended.name, ended.code, ended.told, ended.excess) == ("cpu-0", 4, False, None)
    assert ended.last_line == (tmp_path / "cpu-0.log").read_text().strip()
    assert ended.last_line.startswith(f"{tmp_path} ['A', ")
    assert "HOME" not in ended.last_line, "nothing is inherited"


async def test_each_process_leads_a_session_of_its_own(tmp_path: Path) -> None:
    async with Supervisor() as supervisor:
        await exits_of(supervisor, command(tmp_path, "import os; print(os.getpid() == os.getsid(0) == os.getpgid(0))"))
    assert (tmp_path / "cpu-0.log").read_text() == "True\n"


async def test_stop_kills_who_does_not_listen_and_says_that_they_were_told(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    async with Supervisor() as supervisor:
        await supervisor.start(command(tmp_path, deaf, "deaf"))
        await supervisor.start(command(tmp_path, "import time; time.sleep(600)", "mild"))
        await until(lambda: "up" in read_tail(tmp_path / "deaf.log", 100))
        await supervisor.stop(0.3)
        assert [(ended.name, ended.code, ended.told) for ended in supervisor.exits] == [
            ("deaf", -9, True),
            ("mild", -15, True),
        ]


async def test_what_a_process_started_goes_with_it(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid)"
    )
    async with Supervisor() as supervisor:
        (ended,) = await exits_of(supervisor, command(tmp_path, script))
        grandchild = int(ended.last_line)
        await until(lambda: not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == "zombie")


async def test_leaving_ends_everything(tmp_path: Path) -> None:
    async with Supervisor() as supervisor:
        await supervisor.start(command(tmp_path, "import time; time.sleep(600)"))
        assert supervisor.running == ("cpu-0",)
    assert [(ended.code, ended.told) for ended in supervisor.exits] == [(-9, True)]


async def test_memory_is_counted_over_the_whole_tree_and_bounded(tmp_path: Path) -> None:
    # The parent holds little; it is the child's memory that counts.
    child = "x = b'x' * 2**27; import time; time.sleep(600)"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    limit = 2**26
    async with Supervisor() as supervisor:
        (ended,) = await exits_of(supervisor, command(tmp_path, script, memory_limit_bytes=limit))
    assert ended.code == -9
    assert not ended.told
    assert ended.excess is not None
    assert ended.excess.limit_bytes == limit
    assert ended.excess.held_bytes > limit


def test_a_process_that_is_gone_holds_nothing() -> None:
    assert resident_bytes(2**22 + 1, 0) == 0


def test_own_memory_is_seen() -> None:
    assert resident_bytes(os.getpid(), 2**62) > 2**20
