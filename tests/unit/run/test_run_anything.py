"""Whatever operators and scripts do, and whenever: a job ends, and every commit makes sense."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from heterotrain_core import run_effects as out
from heterotrain_core import run_events as ev
from heterotrain_core.run_values import Outcome, Phase, RunReason
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


@settings(max_examples=60, deadline=None)
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
