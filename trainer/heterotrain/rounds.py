"""The training loop's state: which grant is computed, which batch the script holds, and what must come next.

Loader, optimizer and session share one `Rounds`; it turns calls in the wrong order into errors that name the right one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from heterotrain.engine import Clip, Engine, Update
from heterotrain.errors import LeftJobError, UsageError
from heterotrain.gradients import Gradients
from heterotrain.grants import Item, MicroBatch, grant_epoch, micro_batches
from heterotrain.memory import PeakWatch
from heterotrain.pace import Pace
from heterotrain.randomness import SampleOrder, seed_everything, stable_seed
from heterotrain_core.memory import NO_MEMORY_USE, MemoryUse
from heterotrain_core.types import EpochEnd, Grant, TrainingEnd


class _Stage(Enum):
    """Where the script is in its epochs."""

    BEFORE = auto()
    WITHIN = auto()
    """In the body of the loop over `Session.epochs`."""
    BETWEEN = auto()
    AFTER = auto()


@dataclass
class _Spent:
    """Seconds spent on the present grant so far."""

    data: float = 0.0
    compute: float = 0.0
    cpu: float = 0.0
    memory: MemoryUse = NO_MEMORY_USE
    """Of the largest micro-batch that was looked at."""


class SampleLog:
    """Writes one line ``epoch iteration index index ...`` for each committed grant; with no path, nothing."""

    def __init__(self, path: Path | None, order: SampleOrder) -> None:
        self._path = path
        self._order = order

    def write(self, grant: Grant) -> None:
        """Add the line; it is in the file when this returns."""
        if self._path is None:
            return
        numbers = [grant_epoch(grant), grant.iteration, *self._order.indices(grant.ranges)]
        with self._path.open("a", encoding="ascii") as file:
            file.write(" ".join(map(str, numbers)) + "\n")


class Rounds:
    """Not thread-safe: the training thread's own."""

    def __init__(
        self,
        engine: Engine,
        gradients: Gradients,
        pace: Pace,
        log: SampleLog,
        *,
        memory: PeakWatch,
        least: int = 1,
    ) -> None:
        """`least`: samples that the model needs at once."""
        self._engine = engine
        self._least = least
        self._gradients = gradients
        self._pace = pace
        self._memory = memory
        self._log = log
        self._stage = _Stage.BEFORE
        self._item: Item | None = None
        self._micro_batches: tuple[MicroBatch, ...] = ()
        self._next = 0
        self._held: MicroBatch | None = None
        self._clip: Clip | None = None
        self._spent = _Spent()
        self._epochs_over = 0
        self._at_start: list[Callable[[], None]] = []
        self._while_waiting: Callable[[], None] = lambda: None

    @property
    def schedule_step(self) -> int:
        """Where schedules by samples stand at the version that the model holds."""
        return 0 if self._item is None else self._item.schedule_step

    @property
    def epochs_over(self) -> int:
        """Epochs whose samples are all used."""
        return self._epochs_over

    @property
    def training(self) -> bool:
        """The script is in the body of an epoch."""
        return self._stage is _Stage.WITHIN

    @property
    def samples_at_hand(self) -> int:
        """Samples that the script computes now, at once; 0: it does not compute."""
        return 0 if self._held is None else self._held.samples

    def at_start(self, follow: Callable[[], None]) -> None:
        """Have `follow` called when it is known where training begins: not at its beginning, after a checkpoint."""
        self._at_start.append(follow)

    def while_waiting(self, action: Callable[[], None]) -> None:
        """Have `action` called when a grant was handed in, before the next one's version is waited for."""
        self._while_waiting = action

    def start(self, epochs: int) -> None:
        """The script enters `Session.epochs`."""
        if self._stage is not _Stage.BEFORE:
            raise UsageError("session.epochs can be used once; give it the number of all epochs together")
        self._engine.start(epochs)
        self._stage = _Stage.BETWEEN

    def enter_epoch(self) -> int | None:
        """The next epoch, once its first grant is there; `None`: training is over."""
        item = self._item
        if item is None or isinstance(item.decision, EpochEnd):
            item = self._take(self._engine.next_item())
        match item.decision:
            case TrainingEnd():
                self._stage = _Stage.AFTER
                return None
            case Grant() as grant:
                epoch = grant_epoch(grant)
            case EpochEnd(epoch=epoch):  # this worker had a share of 0 throughout
                pass
        self._stage = _Stage.WITHIN
        return epoch

    def leave_epoch(self) -> None:
        """The body of an epoch has ended by itself; raises `UsageError` if samples of the epoch are left."""
        self._refuse_held("the epoch ended")
        if self._item is not None and isinstance(self._item.decision, Grant):
            raise UsageError(
                "the loop over the loader was left before the epoch's samples were used up; in a job others would wait"
                " for this worker. To end training early, leave the loop over session.epochs too, or set the job's stop"
                " condition"
            )
        self._stage = _Stage.BETWEEN

    def abandon(self) -> None:
        """The script has left the loop over `Session.epochs`: no more training."""
        self._stage = _Stage.AFTER

    def next_micro_batch(self) -> MicroBatch | None:
        """What the loader must yield next; `None`: the epoch is over."""
        if self._stage is not _Stage.WITHIN:
            raise UsageError(
                "the loader can be used only inside `for epoch in session.epochs(n):`; to look at a sample, take it"
                " from the data set itself"
            )
        self._refuse_held("the loader was asked for the next one")
        return self._micro_batches[self._next] if self._next < len(self._micro_batches) else None

    def hand_out(self, batch: MicroBatch, data_seconds: float) -> None:
        """The script gets this batch now."""
        self._held = batch
        self._next += 1
        self._spent.data += data_seconds
        seed_everything(stable_seed(self._engine.seed, "grant", self._engine.rank, batch.iteration, batch.index))
        self._memory.begin(batch.samples)
        self._pace.start()

    def clip(self, clip: Clip) -> None:
        """Clip the aggregate of the present round."""
        if self._held is None:
            raise UsageError("session.clip_grad_norm_ belongs between loss.backward() and optimizer.step()")
        self._clip = clip

    def step(self) -> None:
        """`optimizer.step()`: take the gradients; after the last micro-batch hand in and wait for the next item."""
        if self._held is None:
            raise UsageError(
                "optimizer.step() must follow a batch from the loader, once for each batch; take the next batch first"
            )
        lasted, cpu = self._pace.stop()
        self._spent.compute += lasted
        self._spent.cpu += cpu
        batch, self._held = self._held, None
        self._spent.memory = max(self._spent.memory, self._memory.end(batch.samples))
        self._gradients.add(batch.weight)
        if batch.last and self._item is not None and isinstance(self._item.decision, Grant):
            self._finish(self._item.decision)

    def _finish(self, grant: Grant) -> None:
        spent, self._spent = self._spent, _Spent()
        clip, self._clip = self._clip, None
        self._engine.submit(Update(grant, clip, spent.data, spent.compute, spent.cpu, spent.memory))
        self._while_waiting()
        try:
            item = self._take(self._engine.next_item())
        except LeftJobError as left:
            if left.handed_in:
                self._log.write(grant)
            raise
        # The next item stands on a version that this grant is in: only now is it known to be committed.
        if not item.dropped:
            self._log.write(grant)

    def _take(self, item: Item) -> Item:
        first, self._item = self._item is None, item
        self._next = 0
        decision = item.decision
        self._micro_batches = micro_batches(decision, self._least) if isinstance(decision, Grant) else ()
        if self._micro_batches:
            self._memory.expect(max(batch.samples for batch in self._micro_batches))
        match decision:
            case EpochEnd():
                self._epochs_over = decision.epoch + 1
            case Grant():
                # Of a later epoch than the first, where the job goes on from a checkpoint.
                self._epochs_over = grant_epoch(decision)
        if first:
            for follow in self._at_start:
                follow()
        return item

    def _refuse_held(self, event: str) -> None:
        if self._held is not None:
            raise UsageError(
                f"{event}, but optimizer.step() was not called for the last batch; call it once for every batch"
                " (to leave a batch out, call it without loss.backward())"
            )
