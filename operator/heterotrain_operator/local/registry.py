"""The local jobs of this user: a folder a job, with an entry that tells a running runner from one that is gone.

``$HETEROTRAIN_HOME`` (else ``$XDG_STATE_HOME/heterotrain``, else ``~/.local/state/heterotrain``) ``/jobs/<name>/``:
``runner.json`` (`Entry`), ``lock``, ``job.yaml``, ``certificates/<process>/``. The logs lie in the report folder.
"""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import psutil
from pydantic import Field, TypeAdapter

ENTRY_FILE: Final = "runner.json"
LOCK_FILE: Final = "lock"
_START_TOLERANCE_SECONDS: Final = 1.0


class JobRunningError(RuntimeError):
    """A job of this name runs already."""


class HomeError(RuntimeError):
    """The folder of all jobs cannot be used."""


class JobNotFoundError(LookupError):
    """There is no local job of this name; the text lists those there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What others need to find a job and to talk to it."""

    job: str
    uid: str
    manifest: str
    """Path of the file that was run."""
    pid: Annotated[int, Field(gt=0, lt=2**31)]
    """Of the runner."""
    started: float
    """When that process was started, seconds since the epoch: a pid is used again, the pair is not."""
    report: str
    """Folder of the report."""
    coordinator: str = ""
    """``host:port``; empty until the coordinator answers."""
    processes: tuple[str, ...] = ()
    """Names, in the order in which they were started."""
    state: str = "Running"
    """Running, then Succeeded, Failed or Stopped."""
    message: str = ""

    def to_json(self) -> str:
        """The content of ``runner.json``."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Entry:
        """The inverse of `to_json`; unknown fields are passed over. Raises `ValueError`."""
        return _ENTRIES.validate_json(text, strict=True)


_ENTRIES: Final = TypeAdapter(Entry)


@dataclass(frozen=True, slots=True)
class LocalJob:
    """An entry, the folder it lies in, and whether its runner lives."""

    entry: Entry
    folder: Path
    alive: bool

    @property
    def state(self) -> str:
        """As the entry says; Lost if it says Running and nobody runs it."""
        return "Lost" if self.entry.state == "Running" and not self.alive else self.entry.state

    @property
    def logs(self) -> Path:
        """Folder of the processes' logs."""
        return Path(self.entry.report) / "logs"

    @property
    def credentials(self) -> Path:
        """Folder of the operator's certificate for this job."""
        return self.folder / "certificates" / "operator"


def home(environment: Mapping[str, str]) -> Path:
    """Folder of everything that the local runner keeps."""
    if environment.get("HETEROTRAIN_HOME"):
        return Path(environment["HETEROTRAIN_HOME"]).expanduser().absolute()
    state = environment.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state).expanduser().absolute() / "heterotrain"


def same_process(pid: int, started: float) -> bool:
    """Whether the process `pid` lives and is the one that was started at `started`."""
    try:
        process = psutil.Process(pid)
        return (
            process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - started) < _START_TOLERANCE_SECONDS
        )
    except psutil.NoSuchProcess:
        return False


class Registry:
    """The jobs under one home folder."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._jobs = home / "jobs"

    def folder(self, job: str) -> Path:
        """Where the job of that name keeps its files."""
        return self._jobs / job

    @contextmanager
    def claim(self, job: str) -> Iterator[Path]:
        """Hold the name `job` for this process and give its folder.

        Raises `JobRunningError` if another process holds it, `HomeError` if there can be no folder.

        The lock belongs to the open file, so that it ends with this process, however that dies. Children must not
        inherit it (they do not: Python's files are closed on exec).
        """
        folder = self.folder(job)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            opened = (folder / LOCK_FILE).open("w")
        except OSError as error:
            words = (
                f"{self._home}: jobs cannot be kept there: {error.strerror}; name another folder in HETEROTRAIN_HOME"
            )
            raise HomeError(words) from None
        with opened as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise JobRunningError(
                    f"a job named {job} is running already; "
                    f"stop it with `heterotrain stop {job}`, or give this one another metadata.name"
                ) from None
            yield folder

    def write(self, entry: Entry) -> None:
        """Leave the entry, replaced whole: a reader never sees half of it."""
        path = self.folder(entry.job) / ENTRY_FILE
        temporary = path.with_suffix(".new")
        temporary.write_text(entry.to_json())
        temporary.replace(path)

    def jobs(self) -> tuple[LocalJob, ...]:
        """All jobs with a readable entry, by name."""
        if not self._jobs.is_dir():
            return ()
        found = (self._read(folder) for folder in sorted(self._jobs.iterdir()) if folder.is_dir())
        return tuple(job for job in found if job is not None)

    def find(self, name: str) -> LocalJob:
        """The job of that name; raises `JobNotFoundError`."""
        # A name is one folder's: neither a path nor longer than a file's name.
        job = self._read(self.folder(name)) if re.fullmatch(r"[-a-z0-9]{1,63}", name) else None
        if job is None:
            names = ", ".join(known.entry.job for known in self.jobs())
            raise JobNotFoundError(
                f"no local job is named {name}; there are: {names}"
                if names
                else f"no local job is named {name}; there are none"
            )
        return job

    def _read(self, folder: Path) -> LocalJob | None:
        try:
            entry = Entry.from_json((folder / ENTRY_FILE).read_text())
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError):
            # A job that is just being set up has no entry yet.
            return None
        return LocalJob(entry, folder, same_process(entry.pid, entry.started))
