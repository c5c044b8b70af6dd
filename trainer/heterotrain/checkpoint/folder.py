"""A folder of checkpoints: written whole or not at all, verified before use, the newest good one found, old ones gone.

A checkpoint is a folder that gets its name by a rename once everything in it is on the disk. What a killed writer left
has another name and is removed by the next one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from heterotrain.checkpoint.disk import Disk, sha256_of
from heterotrain.checkpoint.manifest import (
    MANIFEST_FILE,
    Manifest,
    Name,
    PartFile,
    decode,
    encode,
    shard_file,
    short_uid,
)

_UNFINISHED: Final = ".part"
_LEAVING: Final = ".old"
_LARGEST_MANIFEST_BYTES: Final = 1 << 28


class UnusableError(Exception):
    """A checkpoint that cannot be taken; says which file and why."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose every byte has been verified."""

    path: Path
    manifest: Manifest

    @property
    def files(self) -> tuple[Path, ...]:
        """Of all shards, in their order."""
        return tuple(self.path / f.name for f in self.manifest.files)


@dataclass(frozen=True, slots=True)
class Found:
    """The newest good checkpoint, if there is one, and why newer ones were passed over."""

    checkpoint: Checkpoint | None
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Term:
    """A term of a job, with what came before it."""

    term: int
    restores: int
    """Terms before it."""
    rounds_lost: int
    """By all restores together."""


class CheckpointFolder:
    """The checkpoints below `path`. One writer at a time."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self.path = path
        self._disk = disk or Disk()

    def names(self) -> list[Name]:
        """All that are there, whole or damaged, newest first."""
        if not self.path.is_dir():
            return []
        found = (Name.parse(entry.name) for entry in self.path.iterdir())
        return sorted((name for name in found if name is not None), reverse=True)

    def write(self, manifest: Manifest, parts: Sequence[Iterable[bytes | memoryview]]) -> Checkpoint:
        """Write a checkpoint; `parts` are the contents of the shards' files (`manifest.files` is filled in here).

        Raises `OSError` (a full disk), or what `parts` raise; then the folder holds what it held before.
        """
        name = manifest.name
        target, unfinished = self.path / str(name), self._hidden(name, _UNFINISHED)
        if target.exists():
            try:
                return verify(target)
            except UnusableError:
                self._remove(name)
        self._disk.remove(unfinished)
        try:
            self._disk.create_folder(unfinished)
            files = []
            for shard, contents in enumerate(parts):
                written = self._disk.write(unfinished / shard_file(shard), contents)
                files.append(PartFile(shard_file(shard), written.num_bytes, written.sha256))
            whole = replace(manifest, files=tuple(files))
            self._disk.write(unfinished / MANIFEST_FILE, [encode(whole)])
            self._disk.sync_folder(unfinished)
            self._disk.rename(unfinished, target)
        except Exception:
            self._disk.remove(unfinished)
            raise
        self._disk.sync_folder(self.path)
        return Checkpoint(target, whole)

    def newest(self, job_uid: str | None = None) -> Found:
        """Find the newest good checkpoint, of one job if `job_uid` is given; reads every byte of it."""
        passed_over: list[str] = []
        for name in self.names():
            if job_uid is not None and name.job != short_uid(job_uid):
                continue
            try:
                checkpoint = verify(self.path / str(name))
            except UnusableError as error:
                passed_over.append(str(error))
                continue
            if job_uid is None or checkpoint.manifest.job_uid == job_uid:
                return Found(checkpoint, tuple(passed_over))
        return Found(None, tuple(passed_over))

    def prune(self, job_uid: str, keep: int) -> None:
        """Remove all but the `keep` newest of a job, and what killed writers of it left. Raises `OSError`."""
        mine = [name for name in self.names() if name.job == short_uid(job_uid)]
        for name in mine[keep:]:
            self._remove(name)
        for entry in list(self.path.iterdir()):
            hidden = entry.name.startswith(".") and entry.suffix in {_UNFINISHED, _LEAVING}
            left = Name.parse(entry.name[1 : -len(entry.suffix)]) if hidden else None
            if left is not None and left.job == short_uid(job_uid):
                self._disk.remove(entry)

    def open_term(self, job_uid: str, at_least: int = 1, rounds_lost: int = 0) -> Term:
        """A term that this job has never had, on the disk before it is returned. Raises `OSError`."""
        path = self.path / f".term-{short_uid(job_uid)}.json"
        last = self._last_term(path, job_uid)
        known = max((n.term for n in self.names() if n.job == short_uid(job_uid)), default=0)
        number = max(last.term + 1, known + 1, at_least)
        term = Term(number, last.restores + (number > 1), last.rounds_lost + rounds_lost)
        if not self.path.is_dir():
            self._disk.create_folder(self.path)
        temporary = path.with_suffix(".new")
        self._disk.remove(temporary)
        document = {"job": job_uid, "term": term.term, "restores": term.restores, "roundsLost": term.rounds_lost}
        self._disk.write(temporary, [json.dumps(document).encode() + b"\n"])
        self._disk.replace(temporary, path)
        self._disk.sync_folder(self.path)
        return term

    @staticmethod
    def _last_term(path: Path, job_uid: str) -> Term:
        try:
            document = json.loads(path.read_text())
            if document["job"] != job_uid:
                return Term(0, 0, 0)
            return Term(int(document["term"]), int(document["restores"]), int(document["roundsLost"]))
        except FileNotFoundError:
            return Term(0, 0, 0)
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(f"{path} is damaged ({error}); remove it only if no process of this job runs") from error

    def _remove(self, name: Name) -> None:
        """Take the name away first: what is half removed must not be taken for a checkpoint."""
        leaving = self._hidden(name, _LEAVING)
        self._disk.remove(leaving)
        self._disk.rename(self.path / str(name), leaving)
        self._disk.remove(leaving)

    def _hidden(self, name: Name, suffix: str) -> Path:
        return self.path / f".{name}{suffix}"


def verify(path: Path) -> Checkpoint:
    """Read a checkpoint through; raises `UnusableError` that names the file if a byte is not as it was written."""
    manifest_file = path / MANIFEST_FILE
    try:
        if path.is_symlink() or not path.is_dir():
            raise UnusableError(f"{path} is no folder of a checkpoint")
        _regular(manifest_file)
        if manifest_file.stat().st_size > _LARGEST_MANIFEST_BYTES:
            raise UnusableError(f"{manifest_file} is larger than any manifest")
        manifest = decode(manifest_file.read_bytes())
        for file in manifest.files:
            _regular(path / file.name)
            found = (path / file.name).stat().st_size
            if found != file.num_bytes:
                raise UnusableError(f"{path / file.name} has {found} bytes, it was written with {file.num_bytes}")
        for file in manifest.files:
            if sha256_of(path / file.name).sha256 != file.sha256:
                raise UnusableError(f"{path / file.name} is not as it was written: its checksum differs")
    except FileNotFoundError as error:
        raise UnusableError(f"{error.filename} is missing") from error
    except OSError as error:
        raise UnusableError(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise UnusableError(f"{manifest_file}: {error}") from error
    return Checkpoint(path, manifest)


def find(path: Path) -> Found:
    """The checkpoint that `path` is, or the newest good one in it, whatever its job. Raises `UnusableError` if `path`
    is a damaged checkpoint itself, or nothing at all.
    """
    if (path / MANIFEST_FILE).exists() or Name.parse(path.name) is not None:
        return Found(verify(path))
    folder = CheckpointFolder(path)
    if not folder.names():
        raise UnusableError(f"{path} holds no checkpoint; give the folder of one (version-…), or the folder above it")
    return folder.newest()


def _regular(path: Path) -> None:
    """Refuse symbolic links and whatever is no file: the folder may be shared with others."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UnusableError(f"{path} is not a regular file")
