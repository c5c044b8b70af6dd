"""A whole job around a `TrainingRun`, without I/O: shards that answer at once and workers that follow a script."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from heterotrain_core import run_effects as out
from heterotrain_core import run_events as ev
from heterotrain_core.layout import TensorKind, TensorSpec
from heterotrain_core.run import TrainingRun
from heterotrain_core.run_values import Manifest, Outcome, RunConfig, StopLimits, Timings, WorkerSpec
from heterotrain_core.types import Bounds, EpochEnd, Grant, SampleRange, TrainingEnd

E = TypeVar("E")
GROUP = '{"lr": 0.1, "momentum": 0.9}'


WIDE = Bounds(0, 100)
NO_LIMITS = StopLimits()


def make_manifest(
    *, dataset_size: int = 20, shape: tuple[int, ...] = (3, 4), optimizer: str = "SGD", smallest_batch: int = 1
) -> Manifest:
    tensors = (
        TensorSpec("weight", shape, "F32", TensorKind.PARAMETER, 0),
        TensorSpec("bias", (4,), "F32", TensorKind.PARAMETER, 0),
    )
    return Manifest(tensors, optimizer, (GROUP,), dataset_size, smallest_batch)


def make_config(
    shares: Mapping[str, int],
    *,
    bounds: Bounds = WIDE,
    stop: StopLimits = NO_LIMITS,
    grain: int = 1,
    rejoin_limit: int = 0,
) -> RunConfig:
    workers = tuple(WorkerSpec(name, name.split("-")[0], share, bounds) for name, share in shares.items())
    return RunConfig(
        workers=workers,
        global_batch_size=sum(shares.values()),
        protocol_version=1,
        batch_grain=grain,
        stop=stop,
        lease_seconds=15.0,
        rejoin_limit=rejoin_limit,
    )


FOUR = {"gpu-0": 4, "gpu-1": 2, "cpu-0": 1, "cpu-1": 1}


@dataclass
class Script:
    """What one worker does; the hooks see the driver and may send more events."""

    name: str
    epochs: int = 3
    manifest: Manifest = field(default_factory=make_manifest)
    done: Callable[[ev.Done], ev.Done] = lambda done: done
    """Changes the Done of a grant before it is said."""
    at_epoch_end: Callable[[Driver, Script, int], None] = lambda _driver, _script, _epoch: None
    at_end: Callable[[Driver, Script], None] = lambda driver, script: driver.later(ev.SaidGoodbye(script.name))
    speed: float = 10.0
    accepts: str = "yes"
    """``yes``, ``silent``, or the reason of a refusal."""
    items: deque[Grant | EpochEnd | TrainingEnd] = field(default_factory=deque)
    grants: list[Grant] = field(default_factory=list)
    """All that it was granted."""
    steps: list[tuple[str, int, int]] = field(default_factory=list)
    """Kind, version and schedule step of every item."""
    evaluating: bool = False
    """Waits for the outcome of an evaluation."""
    silent_from: int | None = None
    """Does no more work from this iteration on."""
    incarnation: int = 0
    ordinal: int = -1
    version: int = -1
    """That its model holds."""
    evaluations: int = 0

    def begin(self) -> None:
        """From its first line, in a new process."""
        self.items.clear()
        self.evaluating, self.evaluations, self.version = False, 0, -1


class Driver:
    """Pumps events until nobody has anything to say. Work is done in worker order, one iteration at a time."""

    def __init__(self, config: RunConfig, scripts: Iterable[Script] | None = None) -> None:
        self.config = config
        self.now = 100.0
        self.recording: list[str] = []
        self.run = TrainingRun(config, self.now, record=lambda line: self.recording.append(f"{line}\n"))
        self.scripts = {s.name: s for s in (scripts or [Script(w.name) for w in config.workers])}
        self.effects: list[out.Effect] = []
        self.published = 0
        self.readable = {0}
        """Versions that the shards hold."""
        self.given: dict[tuple[int, int, int], tuple[SampleRange, ...]] = {}
        """What was granted, by ordinal, incarnation and iteration."""
        self.hold_exports = False
        self.script_starts = True
        """Scripts begin their epochs by themselves."""
        self._later: deque[ev.RunEvent] = deque()

    # --- talking to the run ---

    def later(self, event: ev.RunEvent) -> None:
        """Hand an event in as soon as the present one is through."""
        self._later.append(event)

    def tell(self, *events: ev.RunEvent) -> list[out.Effect]:
        """Hand events in, then everything that follows; the effects of all."""
        before = len(self.effects)
        self._later.extend(events)
        while True:
            while self._later:
                event = self._later.popleft()
                self.now += 0.001
                effects = self.run.handle(event, self.now)
                self.effects += effects
                for effect in effects:
                    self._react(effect)
                if isinstance(event, ev.SaidGoodbye | ev.SessionBroken) and event.worker in self.scripts:
                    self.scripts[event.worker].begin()  # what it was sent last, nobody reads
            if not self._work():
                return self.effects[before:]

    def start(self) -> list[out.Effect]:
        """All workers join, agree and train until nothing more happens."""
        for script in self.scripts.values():
            self.later(ev.Joined(script.name, 1, host="here"))
            self.later(ev.ManifestGiven(script.name, script.manifest))
        return self.tell()

    def join(self, *names: str) -> list[out.Effect]:
        """Workers come, for the first time or again, and train until nothing more happens."""
        for name in names:
            self.scripts.setdefault(name, Script(name)).begin()
            self.later(ev.Joined(name, 1, host="there"))
            self.later(ev.ManifestGiven(name, self.scripts[name].manifest))
        return self.tell()

    def lose(self, name: str, detail: str = "closed") -> list[out.Effect]:
        """A worker's process is gone."""
        self.scripts[name].begin()
        return self.tell(ev.SessionBroken(name, detail))

    # --- reading ---

    def of(self, kind: type[E]) -> list[E]:
        """All effects of one kind so far."""
        return [e for e in self.effects if isinstance(e, kind)]

    @property
    def outcome(self) -> Outcome:
        finished = self.of(out.Finish)
        assert len(finished) == 1, self.run.view(self.now)
        return finished[0].outcome

    def used_samples(self) -> list[SampleRange]:
        """Ranges of all grants."""
        return sorted(r for s in self.scripts.values() for g in s.grants for r in g.ranges)

    def committed_samples(self) -> list[SampleRange]:
        """What all gradients in commits were computed from."""
        keys = [k for c in self.of(out.CommitRound) for k, _ in c.contributions]
        return sorted(r for k in keys for r in self.given[k.worker, k.incarnation, k.iteration])

    # --- the world ---

    def _react(self, effect: out.Effect) -> None:
        match effect:
            case out.ConfigureShards():
                self.later(ev.ShardsConfigured())
            case out.PublishInitial():
                self.later(ev.InitialPublished())
            case out.CommitRound():
                self.published = effect.version + 1
                self.readable = {v for v in self.readable if v in effect.retain} | {self.published}
                self.later(ev.Committed(effect.version))
            case out.Export() if not self.hold_exports:
                self.later(ev.Exported(effect.file, f"/out/{effect.file}"))
            case out.SaveCheckpoint(progress=progress) if not self.hold_exports:
                self.later(ev.CheckpointSaved(progress.version, f"/out/checkpoints/{progress.version}"))
            case out.SeatWorkers():
                self.later(ev.WorkersSeated(effect.number))
            case out.Dismiss(again=True):
                self.scripts[effect.worker].begin()
            case out.Send():
                self._hear(self.scripts[effect.worker], effect.message)

    def _hear(self, script: Script, message: out.Message) -> None:
        match message:
            case out.Welcome():
                script.incarnation, script.ordinal = message.incarnation, message.ordinal
            case out.ManifestAccepted():
                self._pull(script, message.version)
                if message.push_initial_values:
                    self.later(ev.InitialValuesPushed(script.name))
                if self.script_starts:
                    self.later(ev.Started(script.name, script.epochs))
            case out.Work(item=item, schedule_step=step):
                script.items.append(item)
                script.steps.append((type(item).__name__, item.version, step))
                if isinstance(item, Grant):
                    script.grants.append(item)
                    self.given[script.ordinal, script.incarnation, item.iteration] = item.ranges
            case out.PlanProposal(plan=plan):
                if script.accepts != "silent":
                    accepted = script.accepts == "yes"
                    reason = "" if accepted else script.accepts
                    self.later(ev.PlanAnswered(script.name, plan.generation, accepted, reason))
            case out.EvaluationOutcome():
                script.evaluating = False
            case out.EvaluationWork():
                samples = message.stop - message.start
                sums = {"right": float(samples)} if samples else {}
                self.later(ev.EvaluationPart(script.name, message.call, sums, samples / script.speed))

    def _pull(self, script: Script, version: int) -> None:
        # Before training nobody asks whether version 0 is published.
        assert version in self.readable or version == script.version, f"{version} of {self.readable} for {script.name}"
        script.version = version

    def _work(self) -> bool:
        """Let one worker do its next item; False if nobody can."""
        for script in self.scripts.values():
            item = script.items[0] if script.items else None
            if item is None or item.version > self.published or self.run.outcome is not None or script.evaluating:
                continue
            if script.silent_from is not None and isinstance(item, Grant) and item.iteration >= script.silent_from:
                continue
            script.items.popleft()
            self._pull(script, item.version)
            match item:
                case Grant():
                    seconds = item.samples / script.speed
                    done = ev.Done(
                        script.name,
                        1,
                        item.iteration,
                        item.version,
                        item.samples,
                        groups=(GROUP,),
                        timings=Timings(compute=seconds, step=seconds),
                    )
                    self.later(script.done(done))
                case EpochEnd():
                    script.at_epoch_end(self, script, item.epoch)
                case TrainingEnd():
                    script.at_end(self, script)
            return True
        return False
