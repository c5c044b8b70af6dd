"""How much work a step of a lab worker is, by set-up.

Pure: chance comes from seed, worker and step alone, so that it is the same in every run that is compared.
"""

from __future__ import annotations

import random

from heterotrain_core.lab.setups import SetUp


def lasting_factor(setup: SetUp, worker: int, step: int) -> int:
    """How many times as long as at first the worker's steps are around `step` (from 0)."""
    change = setup.step_change
    if change is None or worker != change.worker or not change.first <= step < change.last:
        return 1
    return change.factor


def burst_factor(setup: SetUp, worker: int, step: int, seed: int) -> int:
    """How many times as long this single step is."""
    bursts = setup.bursts
    if bursts is None or random.Random(f"{seed}/{worker}/{step}").random() >= bursts.probability:  # noqa: S311
        return 1
    return bursts.factor


def noise_factor(setup: SetUp, worker: int, step: int, seed: int) -> float:
    """What the set-up's noise makes of this single step; never below half."""
    if not setup.noise:
        return 1.0
    return max(0.5, random.Random(f"noise/{seed}/{worker}/{step}").gauss(1.0, setup.noise))  # noqa: S311


def paced_seconds(setup: SetUp, worker: int, samples: int, factor: float) -> float:
    """What a step must last at level 2 until its gradient is handed in, without what the hand-in really takes."""
    return setup.link(worker) + factor * samples / setup.speeds[worker]
