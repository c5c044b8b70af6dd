"""The terms of a job: what shard 0 says when one is opened, and which losses lead to the next one. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from heterotrain.coordinator.settings import Settings
from heterotrain_core import run_events as ev
from heterotrain_core.progress import Progress, from_document
from heterotrain_core.run_values import RunConfig
from heterotrain_rpc import shard_pb2

FIRST_TERM = 1


@dataclass(frozen=True, slots=True)
class Past:
    """What the job has been through before its present term."""

    term: int = FIRST_TERM
    restores: int = 0
    """How often it has gone back to a checkpoint, or to its beginning."""
    rounds_lost: int = 0


@dataclass(frozen=True, slots=True)
class Opened:
    """A term that shard 0 has opened."""

    past: Past
    path: str
    """Folder of the checkpoint to go on from; empty: none."""
    progress: Progress | None
    files: tuple[int, ...]
    """Sizes of the checkpoint's files."""
    rounds_lost: int
    """By going back to it."""
    passed_over: tuple[str, ...]

    @property
    def words(self) -> str:
        """For people: where the job goes on."""
        where = f"version {self.progress.version} ({self.path})" if self.progress is not None else "its beginning"
        lost = f"; {self.rounds_lost} rounds are lost" if self.past.restores else ""
        return f"term {self.past.term} goes on from {where}{lost}"


def opened_of(reply: shard_pb2.OpenTermReply, config: RunConfig) -> Opened:
    """What shard 0 says; raises `ValueError` for a progress that is none.

    The checkpoint of another job keeps its parameters and its place in the data; how workers wait for each other is
    this job's own.
    """
    progress = from_document(json.loads(reply.progress)) if reply.path else None
    if progress is not None and not reply.own:
        progress = replace(progress, synchronization=config.synchronization)
    return Opened(
        past=Past(reply.term, reply.restores, reply.rounds_lost_in_all),
        path=reply.path,
        progress=progress,
        files=tuple(reply.files),
        rounds_lost=reply.rounds_lost,
        passed_over=tuple(reply.passed_over),
    )


def loss_of(event: ev.RunEvent, *, rejoins: bool = False) -> str:
    """What an event says is lost that sends the job back to a checkpoint, in words; empty: nothing.

    Where workers may rejoin, one that lost a shard is lost itself: others, and the coordinator, may reach that shard.
    """
    match event:
        case ev.ShardFailed(refused=False):
            return f"parameter server {event.shard} is lost: {event.detail}"
        case ev.WorkerFailed(lost_shard=shard) if shard and not rejoins:
            return f"parameter server {shard} is lost to worker {event.worker}"
        case _:
            return ""


def may_restore(settings: Settings, past: Past) -> bool:
    """Whether the job may go back to a checkpoint once more."""
    return settings.config.checkpoint is not None and past.restores < settings.config.restore_limit
