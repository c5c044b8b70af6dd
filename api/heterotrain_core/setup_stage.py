"""Before the first round: workers agree on the model, shards lay it out, one worker gives the values, all say start."""

from __future__ import annotations

from dataclasses import dataclass

from heterotrain_core.agreement import manifest_difference, manifest_fault
from heterotrain_core.members import Member, Members
from heterotrain_core.progress import Progress
from heterotrain_core.run_effects import ConfigureShards, Effect, ManifestAccepted, PublishInitial, Send
from heterotrain_core.run_values import Manifest, RunFault, RunReason, WorkerPhase


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all workers agree on."""

    manifest: Manifest
    epochs: int
    workers: tuple[Member, ...]

    @property
    def names(self) -> frozenset[str]:
        """Of the workers."""
        return frozenset(m.name for m in self.workers)


class SetupStage:
    """The first manifest wins; its worker pushes the values, the others must match. Raises `RunFault`."""

    def __init__(self, members: Members, seed: int = 0, restored: Progress | None = None) -> None:
        """With `restored` nobody pushes initial values: the shards take them from the checkpoint."""
        self._members = members
        self._seed = seed
        self._restored = restored
        self.manifest: Manifest | None = None
        self._first = ""
        """Whose model counts."""
        self._giver: str | None = None
        """Whose initial values count; `None`: those of the next one who comes."""
        self._pushed = False
        self._configured = False
        self.published = False
        self.shards_waited: tuple[str, ...] = ()
        """Shards that do not answer yet."""

    def manifest_given(self, member: Member, manifest: Manifest) -> list[Effect]:
        """A worker describes its model."""
        self.check(member, manifest)
        if self._giver is None and not self._pushed and self._restored is None:
            self._giver = member.name
        if self.manifest is None:
            self.manifest = manifest
            return [ConfigureShards(manifest)]
        return [self._accept(member)] if self._configured else []

    def check(self, member: Member, manifest: Manifest) -> None:
        """Take note of a model; raises `RunFault` unless it is that of all others."""
        if member.manifest is not None:
            raise RunFault(RunReason.WORKER_FAILED, f"worker {member.name} gave a second model")
        member.manifest = manifest
        fault = manifest_fault(manifest)
        if fault is not None:
            raise RunFault(RunReason.MODEL_MISMATCH, f"model of worker {member.name}: {fault}")
        mismatch = self._restored.mismatch(manifest, self._seed) if self._restored is not None else None
        if mismatch is not None:
            raise RunFault(
                RunReason.MODEL_MISMATCH, f"worker {member.name} cannot go on from the checkpoint: {mismatch}"
            )
        if self.manifest is None:
            self._first = member.name
            return
        difference = manifest_difference(self.manifest, manifest)
        if difference is not None:
            message = f"the model of worker {member.name} differs from that of worker {self._first}: {difference}"
            raise RunFault(RunReason.MODEL_MISMATCH, message)

    def configured(self) -> list[Effect]:
        """All shards have laid the model out: whoever matched may go on."""
        self._configured = True
        self.shards_waited = ()
        matched = [m for m in self._members.present() if m.manifest is not None]
        self.published = self._restored is not None
        return [self._accept(m) for m in matched]

    def _accept(self, member: Member) -> Effect:
        if self._restored is not None:
            return Send(member.name, ManifestAccepted(False, self._restored.version))
        # Who comes back after it has pushed them pulls them, published or not yet.
        return Send(member.name, ManifestAccepted(member.name == self._giver and not self._pushed))

    def values_pushed(self, member: Member) -> list[Effect]:
        """The initial values are on all shards."""
        if member.name != self._giver or not self._configured or self.published:
            raise RunFault(RunReason.WORKER_FAILED, f"worker {member.name} pushed initial values without being asked")
        self._pushed = True
        return [PublishInitial()]

    def started(self, member: Member, epochs: int) -> None:
        """A worker is ready for its first grant."""
        if member.manifest is None or member.epochs is not None:
            what = "before it gave its model" if member.manifest is None else "a second time"
            raise RunFault(RunReason.WORKER_FAILED, f"worker {member.name} started its epochs {what}")
        if epochs < 1:
            raise RunFault(RunReason.SCRIPTS_DIFFER, f"worker {member.name}: epochs must be at least 1, not {epochs}")
        other = next((m for m in self._members if m.epochs is not None), None)
        if other is not None and other.epochs != epochs:
            raise RunFault(
                RunReason.SCRIPTS_DIFFER,
                f"worker {member.name} wants {epochs} epochs, worker {other.name} {other.epochs}: all must agree",
            )
        member.epochs = epochs

    def lost(self, member: Member) -> None:
        """A worker is gone before training began; it may come back. If it was to give the values, another one will."""
        if member.name != self._giver or self._pushed:
            return
        matched = [m for m in self._members.present() if m.manifest is not None]
        # Once the shards have the layout, all who are here were told to pull.
        self._giver = matched[0].name if matched and not self._configured else None

    def left(self, member: Member) -> None:
        """A worker's script ended before training began."""
        if member.name == self._giver and not self.published:
            message = f"the script of worker {member.name} ended before it gave the initial values"
            raise RunFault(RunReason.SCRIPTS_ENDED, message)
        if all(m.phase is WorkerPhase.FINISHED for m in self._members):
            raise RunFault(
                RunReason.SCRIPTS_ENDED,
                "all scripts ended before training began: they must call session.prepare and loop over session.epochs",
            )

    def agreed(self, *, patient: bool = True) -> Agreed | None:
        """What training begins with, once all workers that have not left are ready; else `None`.

        Not `patient`: with those that are ready.
        """
        remaining = [m for m in self._members if m.phase is not WorkerPhase.FINISHED]
        ready = [m for m in remaining if m.present and m.epochs is not None]
        if self.manifest is None or not self.published or not ready or (patient and len(ready) < len(remaining)):
            return None
        return Agreed(self.manifest, ready[0].epochs or 1, tuple(ready))

    def waiting_for(self) -> str:
        """What training waits for, in words."""

        def names(members: list[Member]) -> str:
            return ", ".join(m.name for m in members)

        remaining = [m for m in self._members if m.phase is not WorkerPhase.FINISHED]
        if self.shards_waited:
            return f"waiting for {', '.join(self.shards_waited)} to answer"
        if absent := [m for m in remaining if not m.present]:
            return f"waiting for {names(absent)} to join"
        if silent := [m for m in remaining if m.manifest is None]:
            return f"waiting for the model of {names(silent)} (session.prepare)"
        if not self._configured:
            return "waiting for the parameter servers to lay the model out"
        if not self.published:
            return f"waiting for the initial values from {self._giver or 'a worker that comes back'}"
        return f"waiting for {names([m for m in remaining if m.epochs is None])} to begin its epochs"
