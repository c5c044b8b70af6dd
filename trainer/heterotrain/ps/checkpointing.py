"""Checkpoints as shards make and restore them: shard 0, which has the disk, writes and reads for all.

The others' parts travel over the tensor transport, like versions. Everything here runs in executor threads.
"""

from __future__ import annotations

import json
import logging
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heterotrain.checkpoint.disk import Disk
from heterotrain.checkpoint.folder import Checkpoint, CheckpointFolder, Found, UnusableError, find
from heterotrain.checkpoint.manifest import Manifest
from heterotrain.checkpoint.state import Source, Unpacker, read_header
from heterotrain.ps.pulling import PIECE_BYTES, Connect, pull
from heterotrain.ps.store import ShardStore
from heterotrain.transport.base import (
    Part,
    RefusedError,
    TensorClient,
    TransportError,
    capture_version,
    file_version,
)
from heterotrain_core.progress import from_document, to_document
from heterotrain_rpc import shard_pb2

_log = logging.getLogger(__name__)

NOT_OFFERED: Final = "the other shard does not offer it"


class Checkpoints:
    """What shard `shard` of one job does for checkpoints; requests in, replies out, each with its reason if refused.

    `output`: the folder of the job's files; who may command this shard may still not read or write outside it, except
    where `resume` points. Not thread-safe: one call at a time.
    """

    def __init__(self, store: ShardStore, shard: int, job: Job, output: Path | None, disk: Disk) -> None:
        self._store = store
        self._shard = shard
        self._job = job
        self._output = output
        self._disk = disk
        self._restoring: Checkpoint | None = None

    def open_term(self, request: shard_pb2.OpenTermRequest) -> shard_pb2.OpenTermReply:
        """Take a new term and look for the checkpoint to go on from: the job's own newest, else that of `resume`.

        Refused if there is a checkpoint to go on from, and none that is whole.
        """
        try:
            self._refuse_but_first("opens terms")
            folder = CheckpointFolder(checkpoint_path(request.output, request.folder, self._output), self._disk)
            found = self._find(folder, Path(request.resume) if request.resume else None)
            restored = found.checkpoint.manifest.progress.version if found.checkpoint is not None else 0
            lost = max(0, request.reached - restored)
            opened = folder.open_term(self._job.uid, request.above + 1, lost)
        except (RefusedError, UnusableError, ValueError, OSError) as error:
            _log.warning("no term can be opened: %s", error)
            return shard_pb2.OpenTermReply(refusal=str(error))
        self._restoring = found.checkpoint
        reply = shard_pb2.OpenTermReply(
            term=opened.term,
            passed_over=found.passed_over,
            restores=opened.restores,
            rounds_lost=lost,
            rounds_lost_in_all=opened.rounds_lost,
        )
        if found.checkpoint is not None:
            reply.path = str(found.checkpoint.path)
            reply.own = found.checkpoint.manifest.job_uid == self._job.uid
            reply.progress = json.dumps(to_document(found.checkpoint.manifest.progress))
            reply.files.extend(f.num_bytes for f in found.checkpoint.manifest.files)
        return reply

    def restore(self, request: shard_pb2.RestoreRequest, connect: Connect) -> shard_pb2.RestoreReply:
        """Publish the version of the checkpoint that shard 0 found."""
        try:
            self._restore(request.term, request.version, list(request.files), connect)
        except (RefusedError, TransportError, ValueError, OSError, MemoryError) as error:
            _log.warning("version %d cannot be restored: %s", request.version, error)
            return shard_pb2.RestoreReply(refusal=str(error))
        return shard_pb2.RestoreReply()

    def save(self, request: shard_pb2.SaveRequest, connect: Connect) -> shard_pb2.SaveReply:
        """Write what all shards have captured; keep the newest ones."""
        try:
            self._refuse_but_first("writes checkpoints")
            progress = from_document(json.loads(request.progress))
            manifest = Manifest(
                job_name=self._job.name, job_uid=self._job.uid, term=request.term, files=(), progress=progress
            )
            captured = Captured(self._store, request.term, progress.version, connect)
            parts = [captured.content(shard, size) for shard, size in enumerate(request.bytes)]
            folder = CheckpointFolder(checkpoint_path(request.output, request.folder, self._output), self._disk)
            saved = folder.write(manifest, parts)
            folder.prune(self._job.uid, max(1, request.keep))
        except (RefusedError, TransportError, ValueError, OSError) as error:
            _log.warning("the checkpoint of version %d cannot be saved: %s", request.version, error)
            return shard_pb2.SaveReply(refusal=str(error))
        return shard_pb2.SaveReply(path=str(saved.path), bytes=sum(f.num_bytes for f in saved.manifest.files))

    def _find(self, folder: CheckpointFolder, resume: Path | None) -> Found:
        found = folder.newest(self._job.uid)
        if found.checkpoint is None and resume is not None:
            given = find(resume)
            found = Found(given.checkpoint, (*found.passed_over, *given.passed_over))
        if found.checkpoint is None and found.passed_over:
            raise UnusableError(f"no checkpoint is whole: {'; '.join(found.passed_over)}")
        return found

    def _restore(self, term: int, version: int, sizes: Sequence[int], connect: Connect) -> None:
        if self._shard != 0:
            client = connect(0)
            try:
                self._take(term, version, sizes, RemoteSource(client, term))
            finally:
                client.close()
            return
        checkpoint = self._restoring
        if checkpoint is None or checkpoint.manifest.progress.version != version:
            raise RefusedError(f"no term was opened with a checkpoint of version {version}")
        source = FileSource(checkpoint.files)
        for file, view in enumerate(source.views):
            self._store.offer(term, file_version(file), view)
        self._take(term, version, sizes, source)

    def _take(self, term: int, version: int, sizes: Sequence[int], source: Source) -> None:
        headers = [read_header(source, file, size) for file, size in enumerate(sizes)]
        self._store.restore(term, version, Unpacker(source, headers))

    def _refuse_but_first(self, does: str) -> None:
        if self._shard != 0:
            raise RefusedError(f"only shard 0 {does}, this is shard {self._shard}")


@dataclass(frozen=True, slots=True)
class Job:
    """Whose checkpoints."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Captured:
    """What all shards have captured at one version, as shard 0 collects it."""

    store: ShardStore
    term: int
    version: int
    connect: Connect

    def content(self, shard: int, size: int) -> Iterator[bytes | memoryview]:
        """The capture of one shard, in pieces. Raises `RefusedError`, `TransportError`."""
        capture = capture_version(self.version)
        if shard == 0:
            own = self.store.blob(self.term, capture)
            if own is None or len(own) != size:
                raise RefusedError(f"this shard holds no copy of version {self.version}")
            yield own
            return
        scratch = memoryview(bytearray(min(PIECE_BYTES, size)))
        client = self.connect(shard)
        try:
            for start in range(0, size, PIECE_BYTES):
                piece = scratch[: min(PIECE_BYTES, size - start)]
                pull(client, self.term, capture, Part(start, piece), missing=NOT_OFFERED)
                yield piece
        finally:
            client.close()


class FileSource:
    """The files of a checkpoint on this machine's disk; keep it open while they are read."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._maps: list[mmap.mmap] = []
        self.views: list[memoryview] = []
        """Each file's content, read-only."""
        for path in files:
            with path.open("rb") as file:
                self._maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            self.views.append(memoryview(self._maps[-1]))

    def read(self, file: int, offset: int, memory: memoryview) -> None:
        """See `Source.read`; raises `ValueError` beyond the file's end."""
        piece = self.views[file][offset : offset + len(memory)]
        if len(piece) != len(memory):
            raise ValueError(f"file {file} ends before byte {offset + len(memory)}")
        memory[:] = piece


class RemoteSource:
    """The same files, read from shard 0."""

    def __init__(self, client: TensorClient, term: int) -> None:
        self._client = client
        self._term = term

    def read(self, file: int, offset: int, memory: memoryview) -> None:
        """See `Source.read`; raises `RefusedError`, `TransportError`."""
        for start in range(0, len(memory), PIECE_BYTES):
            piece = memory[start : start + PIECE_BYTES]
            pull(self._client, self._term, file_version(file), Part(offset + start, piece), missing=NOT_OFFERED)


def checkpoint_path(output: str, folder: str, own: Path | None) -> Path:
    """Where checkpoints lie: `folder` below `output`, or below this shard's own; raises `ValueError` outside of it."""
    base = Path(output) if output else own
    if base is None:
        raise ValueError("there is no folder for checkpoints: neither the coordinator nor the environment names one")
    if own is not None and not base.resolve().is_relative_to(own.resolve()):
        raise ValueError(f"output must lie in {own}, not be {output}")
    chosen = base / folder
    if not folder or not chosen.resolve().is_relative_to(base.resolve()):
        raise ValueError(f"folder must be a path inside {base}, not {folder!r}")
    return chosen
