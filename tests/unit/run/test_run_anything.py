"""Whatever operators and scripts do, and whenever: a job ends, and every commit makes sense."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from builders_sync import examples
from heterotrain_core import run_effects as out
from heterotrain_core import run_events as ev
from heterotrain_core.recording import read_recording
from heterotrain_core.replay import replay
from heterotrain_core.run_values import Outcome, Phase, RunReason
from heterotrain_core.simulate_values import Close
from heterotrain_core.synchronization import Asp, Backup, Bsp, Delay, Dssp, Ssp
from heterotrain_core.types import Bounds, Share
from run_driver import Driver, Script, make_config, make_manifest


class Chaos:
    """A job in which, beside each gradient, something else may happen. Bit by bit the same for the same numbers."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.samples, self.epochs = random.randint(1, 40), random.randint(1, 4)
        self._evaluates = random.random() < 0.5
        self._shares = {f"w-{i}": random.randint(1, 4) for i in range(random.randint(1, 4))}
        scripts = [
            Script(
                name, self.epochs, make_manifest(dataset_size=self.samples),
                done=self._done, at_epoch_end=self._epoch_ends,
            )
            for name in self._shares
        ]  # fmt: skip
        self.driver = Driver(make_config(self._shares, bounds=Bounds(random.randint(0, 1), 30)), scripts)

    def run(self) -> Outcome:
        self.driver.start()
        for _ in range(20):
            if self.driver.run.outcome is not None:
                break
            # Nobody has anything to say: the time of a proposal that nobody answers may have to pass.
            self.driver.now = max(self.driver.now, min(self.driver.run.next_timer, self.driver.now + 3))
            self.driver.tell(*(ev.Heartbeat(name) for name in self._shares), ev.TimerFired())
        return self.driver.outcome

    def _done(self, done: ev.Done) -> ev.Done:
        random, names = self._random, list(self._shares)
        match random.randrange(40):
            case 0:
                self.driver.later(ev.DrainCommanded(1, random.choice(names)))
            case 1:
                self.driver.later(ev.StopCommanded("enough"))
            case 2 | 3:
                share = Share(random.randint(0, sum(self._shares.values())), random.choice([None, 2]))
                self.driver.later(ev.PlanRequested(2, 0, {random.choice(names): share}, "", 5.0))
            case 4:
                self.driver.later(ev.CheckpointCommanded(3))
            case 5 if not self._evaluates:
                self.driver.scripts[done.worker].silent_from = 0
                self.driver.later(ev.SaidGoodbye(done.worker))
            case 6 | 7:
                return replace(done, refusal="ps-0: weight")
        return done

    def _epoch_ends(self, driver: Driver, script: Script, epoch: int) -> None:
        driver.later(ev.Heartbeat(script.name, version=driver.published))
        if self._evaluates:
            script.evaluating = True
            driver.later(ev.EvaluationCalled(script.name, epoch + 1, 10))


@settings(max_examples=60)
@given(st.randoms(use_true_random=False))
def test_a_job_always_ends_well_when_nothing_fails(random: Random) -> None:
    chaos = Chaos(random)
    outcome = chaos.run()
    assert outcome.phase in {Phase.SUCCEEDED, Phase.STOPPED}, outcome
    if outcome.reason is RunReason.EPOCHS_COMPLETED:
        assert outcome.samples == chaos.samples * chaos.epochs
    commits = chaos.driver.of(out.CommitRound)
    assert [c.version for c in commits] == list(range(outcome.rounds))
    for commit in commits:
        weights = [weight for _, weight in commit.contributions]
        assert not weights or math.isclose(math.fsum(weights), 1.0)
        assert (0.0 < commit.scale <= 1.0) if weights else commit.scale == 0.0
        assert not {key for key, _ in commit.contributions} & set(commit.discard)
        assert len(commit.retain) <= len(chaos.driver.scripts) + 2, "a version a worker, and those being written"


MODES = (Bsp(), Asp(), Ssp(0), Ssp(2), Dssp(1, 2), Delay(0.5, 2), Delay(0.0, None), Delay(None, 0), Backup(1))


class Elastic:
    """A job whose workers are lost, told to end, come back, and whose groups are scaled, in any mode."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.samples, self.epochs = random.randint(1, 40), random.randint(1, 3)
        self.smallest = random.choice([1, 2])
        shares = {f"{group}-{i}": random.randint(1, 4) for group in "ab" for i in range(random.randint(1, 2))}
        self._evaluates = random.random() < 0.5
        config = replace(
            make_config(shares, bounds=Bounds(random.randint(0, 1), 30), rejoin_limit=1000),
            synchronization=random.choice(MODES),
            recovery_seconds=1e9,
        )
        self.driver = Driver(config, [self._script(name) for name in shares])

    def _script(self, name: str) -> Script:
        manifest = make_manifest(dataset_size=self.samples, smallest_batch=self.smallest)
        return Script(name, self.epochs, manifest, done=self._done, at_epoch_end=self._epoch_ends)

    def run(self) -> Outcome:
        driver, random = self.driver, self._random
        driver.start()
        for turn in range(300):
            if driver.run.outcome is not None:
                break
            driver.now = max(driver.now, min(driver.run.next_timer, driver.now + 3))
            present = [w.name for w in driver.run.view(driver.now).workers if w.phase in ("Joined", "Training")]
            driver.tell(*(ev.Heartbeat(name) for name in present), ev.TimerFired())
            # Once enough has happened everybody comes who may, and nothing else goes wrong.
            absent = [w.name for w in driver.run.view(driver.now).workers if w.name not in present]
            for name in absent if turn > 20 else random.sample(absent, random.randint(0, len(absent))):
                self._come(name)
        return driver.outcome

    def _come(self, name: str) -> None:
        self.driver.scripts.setdefault(name, self._script(name))
        self.driver.join(name)

    def _done(self, done: ev.Done) -> ev.Done:
        random, driver = self._random, self.driver
        names = [w.name for w in driver.run.view(driver.now).workers]
        name = random.choice(names)
        match random.randrange(25):
            case 0 | 1 | 2:
                driver.scripts.setdefault(name, self._script(name)).begin()
                driver.later(ev.SessionBroken(name, "closed"))
            case 3:
                driver.later(ev.Leaving(name))
            case 4:
                driver.scripts.setdefault(name, self._script(name)).begin()
                driver.later(ev.Leaving(name))
                driver.later(ev.SaidGoodbye(name))
            case 5 | 6:
                driver.later(ev.ScaleCommanded(1, random.choice("ab"), random.randint(1, 3)))
            case 7:
                driver.later(ev.DrainCommanded(2, name))
            case 8:
                mode = random.choice(MODES)
                driver.later(ev.PlanRequested(3, 0, {}, "", 5.0, mode))
            case 9:
                return replace(done, refusal="ps-0: weight")
        return done

    def _epoch_ends(self, driver: Driver, script: Script, _epoch: int) -> None:
        driver.later(ev.Heartbeat(script.name, version=script.version))
        if self._evaluates:
            script.evaluating = True
            script.evaluations += 1
            driver.later(ev.EvaluationCalled(script.name, script.evaluations, 10, version=script.version))


@settings(max_examples=examples(40))
@given(st.randoms(use_true_random=False))
def test_whoever_comes_and_goes_each_sample_of_an_epoch_is_committed_once(random: Random) -> None:
    job = Elastic(random)
    outcome = job.run()
    driver = job.driver
    assert outcome.phase is Phase.SUCCEEDED, outcome
    if outcome.reason is RunReason.SCRIPTS_ENDED:
        return  # all were drained
    assert outcome.samples == job.samples * job.epochs
    commits = driver.of(out.CommitRound)
    assert [c.version for c in commits] == list(range(outcome.rounds))
    used = [(r.epoch, i) for r in driver.committed_samples() for i in range(r.start, r.stop)]
    assert len(set(used)) == len(used)
    discarded = {key for c in commits for key in c.discard}
    assert not discarded & {key for c in commits for key, _ in c.contributions}
    if not any(isinstance(e, out.CommitRound) and not e.contributions for e in commits) and not discarded:
        assert used == [(epoch, i) for epoch in range(job.epochs) for i in range(job.samples)]
    sums = {e.message.sums.get("right") for e in driver.of(out.Send) if isinstance(e.message, out.EvaluationOutcome)}
    assert sums <= {10.0}
    least = min(job.smallest, job.samples, driver.config.global_batch_size)
    assert all(g.samples >= least for s in driver.scripts.values() for g in s.grants)
    check_replay(driver)


def check_replay(driver: Driver) -> None:
    """Told again, the policy decides the same."""
    (recording,) = read_recording(driver.recording)
    again, seen = replay(recording), driver.run.view(driver.now).synchronization
    commits = driver.of(out.CommitRound)
    assert (again.rounds, again.samples) == (driver.outcome.rounds, driver.outcome.samples)
    assert (again.staleness_histogram, again.end_reason is not None) == (seen.staleness, True)
    closes = [(e.version, e.scale, len(e.staleness)) for e in again.log if isinstance(e, Close)]
    assert closes == [(c.version, c.scale, len(c.contributions)) for c in commits]
    assert again.arrivals >= sum(len(c.contributions) for c in commits)
