"""Mode, bound and window changed at random, hundreds of times, while a job trains: each is in force, nobody is stuck.

A real job (`heterotrain run`, 2 parameter servers, 4 workers of which one takes 4 times as long). Changes come through
the coordinator's control channel, as `heterotrain sync set` sends them: first the bound of SSP and of Delay from 8 to 1
while workers are ahead, then random ones. About half are waited for until they are in force; the others are
overtaken by the next one. After each, training must go on. At the end nobody may have been lost, and every sample of
every epoch that is over must have been used exactly once.
Usage: bench/changes.py [--times 500] [--seed 1] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from heterotrain_core.sync_settings import SyncSettings, settings_of, to_fields
from heterotrain_core.synchronization import Asp, Backup, Bsp, Delay, Dssp, Ssp, Synchronization, describe
from heterotrain_operator.commands.connect import coordinator_of
from heterotrain_rpc import control_pb2
from heterotrain_rpc.control_pb2_grpc import CoordinatorStub
from heterotrain_rpc.plans import plan_message
from support.recovery import SAMPLES, SCRIPT, Job, start_job, write_job

SECONDS = 60.0
"""Nothing may take longer."""
PACE = 'time.sleep(0.02 if os.environ["HETEROTRAIN_NAME"] == "slow-0" else 0.005)'
LONG = SCRIPT.replace("session.epochs(3)", "session.epochs(100_000)").replace(
    "        optimizer.step()", f"        {PACE}\n        optimizer.step()"
)
AHEAD: tuple[Callable[[int], Synchronization], ...] = (Ssp, lambda bound: Delay(0.002, bound))


def at_random(random: Random) -> Synchronization:
    """Any mode with any bounds."""
    bound = random.choice([None, *range(9)])
    return random.choice(
        [
            Bsp(), Asp(), Ssp(bound), Ssp(bound), Dssp(random.randrange(4), random.randrange(9)),
            Delay(random.choice([None, 0.0, 0.002, 0.01]), bound), Delay(random.choice([0.0, 0.005]), bound),
            Backup(random.randrange(3)),
        ]
    )  # fmt: skip


class Changes:
    """Makes them, and sees that they are in force."""

    def __init__(self, stub: CoordinatorStub) -> None:
        self._stub = stub
        self.in_force: list[float] = []
        """Seconds until a change that was waited for was in force."""
        self.answered: list[float] = []
        self.widest = 0
        """Largest bound in force that was seen above the one wanted, while workers were ahead."""
        self.modes: Counter[str] = Counter()

    def state(self) -> control_pb2.JobState:
        for state in self._stub.Watch(control_pb2.WatchRequest(once=True), timeout=SECONDS):
            return state
        raise SystemExit("the coordinator gave no state")

    def make(self, wanted: Synchronization, *, wait: bool) -> None:
        """Change, then see that training goes on."""
        before = self.state()
        began = time.monotonic()
        generation = before.plan.generation + 1
        settings: SyncSettings = settings_of(wanted)
        plan = plan_message(reason="at random", synchronization=to_fields(settings), generation=generation)
        verdict = self._stub.Apply(plan, timeout=SECONDS)
        if not verdict.accepted:
            raise SystemExit(f"{describe(wanted)} is refused: {verdict.refusals}")
        self.answered.append(time.monotonic() - began)
        self.modes[wanted.mode.value] += 1
        if wait:
            self.until(lambda state: self._is_in_force(state, wanted), describe(wanted))
            self.in_force.append(time.monotonic() - began)
        self.until(partial(_is_past, before.version + 3), f"three rounds with {describe(wanted)}")

    def until(self, condition: Callable[[control_pb2.JobState], bool], what: str) -> None:
        """Wait; a deadlock is a failure."""
        end = time.monotonic() + SECONDS
        while not condition(state := self.state()):
            if time.monotonic() > end:
                raise SystemExit(f"stuck, waiting for {what}:\n{state}")
            time.sleep(0.005)

    def _is_in_force(self, state: control_pb2.JobState, wanted: Synchronization) -> bool:
        seen = state.synchronization
        bound = seen.bound_in_force if seen.HasField("bound_in_force") else None
        if seen.mode != wanted.mode.value:
            return False
        if bound is not None and wanted.bound is not None:
            self.widest = max(self.widest, bound - wanted.bound)
        return bound == wanted.bound


def run(times: int, seed: int) -> dict[str, Any]:
    """The whole job; its figures."""
    random = Random(seed)
    with tempfile.TemporaryDirectory(prefix="heterotrain-changes-") as name:
        folder = Path(name)
        workers = [{"name": "fast", "replicas": 3}, {"name": "slow"}]
        write_job(folder, script=LONG, workers=workers)
        os.environ["HETEROTRAIN_HOME"] = str(folder / "home")
        with start_job(folder) as job, explained(job):
            job.wait_for("training begins")
            with coordinator_of("recovering") as stub:
                changes = Changes(stub)
                began = time.monotonic()
                lowered = lower(changes, 10)
                for number in range(times):
                    changes.make(at_random(random), wait=random.random() < 0.5)
                    if (number + 1) % 50 == 0:
                        median = statistics.median(changes.in_force)
                        print(f"  {number + 1:>4} changes, in force after {median * 1e3:.0f} ms (median)", flush=True)
                seconds = time.monotonic() - began
                last = changes.state()
            job.process.send_signal(signal.SIGINT)
            ended = job.finish(timeout=SECONDS)
        report = ended.report
        lost = "WorkerLost" in ended.coordinator_log
        if report["state"] != "Stopped" or report["restores"] or lost:
            raise SystemExit(f"the job did not end well:\n{ended.output}")
        epochs = check_samples(job)
    return {
        "changes": times,
        "seconds": seconds,
        "lowered_from_8_to_1_seconds": lowered,
        "widest_bound_above_the_wanted": changes.widest,
        "answered_seconds_median": statistics.median(changes.answered),
        "in_force_seconds_median": statistics.median(changes.in_force),
        "in_force_seconds_largest": max(changes.in_force),
        "modes": dict(changes.modes),
        "rounds": report["rounds"],
        "samples": report["samples"],
        "epochs": epochs,
        "largest_staleness": last.synchronization.largest_staleness,
    }


@contextmanager
def explained(job: Job) -> Iterator[None]:
    """Show what the job's processes said, if something goes wrong."""
    try:
        yield
    except SystemExit:
        for log in sorted((job.folder / "out" / "logs").glob("*.log")):
            print(f"{log.name}:", *log.read_text().splitlines()[-30:], sep="\n  ", file=sys.stderr)
        raise


def _is_past(version: int, state: control_pb2.JobState) -> bool:
    return state.version > version


def lower(changes: Changes, times: int) -> list[float]:
    """From 8 to 1 while workers are ahead; seconds until it is in force."""
    seconds = []
    for number in range(times):
        mode = AHEAD[number % len(AHEAD)]
        changes.make(mode(8), wait=True)
        version = changes.state().version
        changes.until(partial(_is_past, version + 40), "workers to run ahead")
        changes.make(mode(1), wait=True)
        seconds.append(changes.in_force[-1])
    return seconds


def check_samples(job: Job) -> int:
    """Every sample of an epoch that is over once, of the last one at most once; returns the epochs that are over."""
    used: dict[int, Counter[int]] = {}
    for log in (job.folder / "out" / "logs").glob("*.samples"):
        for line in log.read_text().splitlines():
            epoch, _, *indices = map(int, line.split())
            used.setdefault(epoch, Counter()).update(indices)
    last = max(used)
    whole = Counter(range(SAMPLES))
    wrong = [epoch for epoch, counts in used.items() if epoch < last and counts != whole]
    if wrong or max(used[last].values()) > 1:
        raise SystemExit(f"epochs {wrong} of {last} did not use every sample once")
    return last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=500, help="random changes")
    parser.add_argument("--seed", type=int, default=1, help="of the changes")
    parser.add_argument("--json", type=Path, default=None, help="write the figures here too")
    options = parser.parse_args()
    figures = run(options.times, options.seed)
    print(json.dumps(figures, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
