"""What the shards are told in one term, strictly in order; what is written is written beside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from heterotrain.coordinator.shards import Commits, ShardError, Shards
from heterotrain.coordinator.term import Opened
from heterotrain_core import run_effects as out
from heterotrain_core import run_events as ev
from heterotrain_core.progress import Progress, to_document
from heterotrain_core.run_values import Manifest

Work: TypeAlias = (
    out.ConfigureShards | out.SeatWorkers | out.PublishInitial | out.CommitRound | out.Export | out.SaveCheckpoint
)


class ShardWork:
    """One term's work for its shards; its events go to `tell`, its tasks are `spawn`ed. Raises nothing."""

    def __init__(
        self,
        shards: Shards,
        opened: Opened | None,
        tell: Callable[[ev.RunEvent], None],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._shards = shards
        self._opened = opened
        self._told = tell
        self._stopped = False
        self._spawn = spawn
        self._queue: asyncio.Queue[tuple[Work, Commits | None]] = asyncio.Queue()
        self._under_way = False
        self._tasks = [spawn(self._serve()), spawn(self._watch())]

    def put(self, work: Work) -> None:
        """Do this after all that was put before. A commit that can leave at once does: all workers wait for it."""
        waits = self._under_way or not self._queue.empty() or self._stopped
        begun = self._shards.begin_commit(work) if isinstance(work, out.CommitRound) and not waits else None
        self._queue.put_nowait((work, begun))

    def probe(self, shard: str) -> None:
        """See whether a shard that somebody lost answers here."""
        self._beside(self._probe(shard))

    def stop(self) -> None:
        """Nothing more is done or told."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()

    def _tell(self, event: ev.RunEvent) -> None:
        # A task may end with its error although it was cancelled: `asyncio.gather` gives the error of a call that had
        # failed already instead. Told to the next term, the loss of this one would end the job.
        if not self._stopped:
            self._told(event)

    async def _watch(self) -> None:
        try:
            await self._shards.watch()
        except ShardError as error:
            self._tell(ev.ShardFailed(error.shard, error.detail, error.refused))

    async def _serve(self) -> None:
        try:
            while True:
                work, begun = await self._queue.get()
                self._under_way = True
                await self._do(work, begun)
                self._under_way = False
        except ShardError as error:
            self._tell(ev.ShardFailed(error.shard, error.detail, error.refused))

    async def _do(self, work: Work, begun: Commits | None) -> None:
        match work:
            case out.CommitRound():
                await self._shards.commit(work, begun)
                self._tell(ev.Committed(work.version))
            case out.ConfigureShards():
                await self._configure(work.manifest)
                self._tell(ev.ShardsConfigured())
            case out.SeatWorkers():
                await self._shards.seat(work)
                self._tell(ev.WorkersSeated(work.number))
            case out.PublishInitial():
                await self._shards.publish()
                self._tell(ev.InitialPublished())
            case out.Export():
                self._beside(self._export(work))
            case out.SaveCheckpoint():
                await self._capture(work.progress)

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(self._spawn(work))

    async def _probe(self, shard: str) -> None:
        try:
            await self._shards.probe(shard)
        except ShardError as error:
            self._tell(ev.ShardFailed(error.shard, error.detail))

    async def _configure(self, manifest: Manifest) -> None:
        """Lay the model out; when the job goes on from a checkpoint, bring it there too."""
        await self._shards.configure(manifest)
        if self._opened is not None and self._opened.progress is not None:
            await self._shards.restore(self._opened.progress.version, self._opened.files)

    async def _capture(self, progress: Progress) -> None:
        """The shards' version is the checkpoint's now, and no commit comes between: have them hold it."""
        try:
            sizes = await self._shards.capture(progress.version)
        except ValueError as error:
            self._tell(ev.CheckpointFailed(progress.version, str(error)))
        else:
            self._beside(self._save(progress, sizes))

    async def _save(self, progress: Progress, sizes: list[int]) -> None:
        version = progress.version
        try:
            try:
                path = await self._shards.save(version, sizes, json.dumps(to_document(progress)))
                saved: ev.RunEvent = ev.CheckpointSaved(version, path)
            except ValueError as error:
                saved = ev.CheckpointFailed(version, str(error))
            await self._shards.release(version)
        except ShardError as error:
            saved = ev.ShardFailed(error.shard, error.detail)
        self._tell(saved)

    async def _export(self, export: out.Export) -> None:
        try:
            path = await self._shards.export(export.version, export.file)
        except ShardError as error:
            self._tell(ev.ShardFailed(error.shard, error.detail))
        except ValueError as error:
            self._tell(ev.ExportFailed(export.file, str(error)))
        else:
            self._tell(ev.Exported(export.file, path))
