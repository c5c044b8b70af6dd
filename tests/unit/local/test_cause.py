from __future__ import annotations

import pytest

from heterotrain_api.conditions import Reason
from heterotrain_operator.job.last_words import last_words
from heterotrain_operator.local.cause import Cause, Exit, Kind, MemoryExcess, root_cause, signal_name

LOST = Cause(reason="WorkerLost", message="worker cpu-2 is lost", process="coordinator")


def ended(name: str, code: int, seconds: float = 1.0, **more: object) -> Exit:
    kind = {"ps": Kind.PS, "coordinator": Kind.COORDINATOR}.get(name.split("-", maxsplit=1)[0], Kind.WORKER)
    return Exit(name=name, kind=kind, code=code, seconds=seconds, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("exits", "reported", "want"),
    [
        pytest.param([], None, None, id="nothing failed"),
        pytest.param([ended("cpu-0", 0), ended("ps-0", 0)], None, None, id="all ended well"),
        pytest.param(
            [ended("cpu-2", 1, last_line="ValueError: bad column")],
            None,
            Cause(
                reason=Reason.WORKER_FAILED,
                message="worker cpu-2 exited with code 1: ValueError: bad column",
                process="cpu-2",
            ),
            id="a worker that raised is named with its exit code and its last line",
        ),
        pytest.param(
            [ended("gpu-0", 1, last_line="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.")],
            None,
            Cause(
                reason=Reason.WORKER_FAILED,
                message="worker gpu-0 exited with code 1: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"
                " 2 GiB.; lower batch.max of its group, or use a GPU with more memory",
                process="gpu-0",
            ),
            id="of a GPU without memory it is said what to change",
        ),
        pytest.param(
            [ended("coordinator", 1, 1.0), ended("cpu-0", 4, 1.1), ended("cpu-2", 1, 1.2, last_line="KeyError: 'x'")],
            LOST,
            Cause(
                reason=Reason.WORKER_FAILED, message="worker cpu-2 exited with code 1: KeyError: 'x'", process="cpu-2"
            ),
            id="a worker's own failure comes before what coordinator and peers say of it, though they were seen first",
        ),
        pytest.param(
            [ended("cpu-0", 1, 2.0, last_line="second"), ended("cpu-1", 1, 1.0, last_line="first")],
            LOST,
            Cause(reason=Reason.WORKER_FAILED, message="worker cpu-1 exited with code 1: first", process="cpu-1"),
            id="of two failures the earlier one is named",
        ),
        pytest.param(
            [ended("cpu-1", -9)],
            LOST,
            Cause(
                reason=Reason.WORKER_FAILED,
                message="worker cpu-1 was killed by SIGKILL; not by this runner: if nobody did it by hand, "
                "the machine may be out of memory",
                process="cpu-1",
            ),
            id="a kill from outside is named with its signal",
        ),
        pytest.param(
            [ended("cpu-1", -11, last_line="Fatal Python error: Segmentation fault")],
            LOST,
            Cause(
                reason=Reason.WORKER_FAILED,
                message="worker cpu-1 was killed by SIGSEGV: Fatal Python error: Segmentation fault",
                process="cpu-1",
            ),
            id="a crash is named with its signal and its last line",
        ),
        pytest.param(
            [
                ended("cpu-0", 1, 1.0, last_line="ConnectionError"),
                ended("cpu-1", -9, 1.5, excess=MemoryExcess(held_bytes=600 * 2**20, limit_bytes=512 * 2**20)),
            ],
            LOST,
            Cause(
                reason=Reason.OUT_OF_MEMORY,
                message="worker cpu-1 ran out of memory (OOMKilled): it held 600 MiB, "
                "its limit (resources.limits.memory) is 512 MiB",
                process="cpu-1",
            ),
            id="memory beyond the limit is the cause of all else",
        ),
        pytest.param(
            [ended("cpu-0", 127, last_line="pythn: No such file or directory")],
            None,
            Cause(
                reason=Reason.WORKER_FAILED,
                message="worker cpu-0 could not be started: pythn: No such file or directory",
                process="cpu-0",
            ),
            id="a command that does not exist",
        ),
        pytest.param(
            [ended("ps-1", -6)],
            None,
            Cause(reason=Reason.SHARD_FAILED, message="parameter server ps-1 was killed by SIGABRT", process="ps-1"),
            id="a shard that aborts",
        ),
        pytest.param(
            [ended("coordinator", 1, last_line="OSError: no space left on device")],
            None,
            Cause(
                reason=Reason.COORDINATOR_FAILED,
                message="the coordinator exited with code 1: OSError: no space left on device",
                process="coordinator",
            ),
            id="a coordinator that fails without an account of it has failed itself",
        ),
        pytest.param(
            [ended("coordinator", 1), ended("cpu-0", 4), ended("cpu-1", 4)],
            LOST,
            LOST,
            id="if nobody failed by itself the coordinator's account is the cause",
        ),
        pytest.param(
            [ended("cpu-0", 4, 2.0), ended("cpu-1", 4, 1.0, last_line="peer lost: ps-0")],
            None,
            Cause(
                reason=Reason.WORKER_FAILED, message="worker cpu-1 exited with code 4: peer lost: ps-0", process="cpu-1"
            ),
            id="peers that blame each other: the first",
        ),
        pytest.param([ended("cpu-0", -15, told=True)], LOST, LOST, id="who was told to end is no cause"),
    ],
)
def test_root_cause(exits: list[Exit], reported: Cause | None, want: Cause | None) -> None:
    assert root_cause(exits, reported) == want


TRACEBACK = """epoch 1
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    int("x")
ValueError: invalid literal for int() with base 10: 'x'
"""


@pytest.mark.parametrize(
    ("log", "want"),
    [
        pytest.param("", "", id="an empty log"),
        pytest.param("loading\n\n  ready \n\n", "ready", id="the last line that is not empty"),
        pytest.param(TRACEBACK, "ValueError: invalid literal for int() with base 10: 'x'", id="the last traceback's"),
        pytest.param(
            TRACEBACK + "resource_tracker: 2 leaked semaphores\n  warnings.warn(\n",
            "ValueError: invalid literal for int() with base 10: 'x'",
            id="noise after the traceback is passed over",
        ),
        pytest.param(
            TRACEBACK + "\nDuring handling of the above exception, another exception occurred:\n\n"
            "Traceback (most recent call last):\n  File x\nRuntimeError: cannot load\nof the rest\n",
            "RuntimeError: cannot load",
            id="of a chain the last exception, and of its message the first line",
        ),
        pytest.param(TRACEBACK + "retrying\n" * 30, "retrying", id="an old traceback that was survived"),
        pytest.param("x" * 400, "x" * 299 + "…", id="a long line is cut"),
    ],
)
def test_last_words(log: str, want: str) -> None:
    assert last_words(log) == want


def test_a_signal_without_a_name_keeps_its_number() -> None:
    assert (signal_name(9), signal_name(250)) == ("SIGKILL", "signal 250")
