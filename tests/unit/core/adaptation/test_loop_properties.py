"""What holds for any job: sums, bounds, fencing, no crash on anything that a coordinator may say."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from builders_adaptation import simulate, steady
from heterotrain_core.adaptation.loop import State, step
from heterotrain_core.adaptation.values import Action, Answer, Mode, Observation, Refused, Settings, WorkerSeen
from heterotrain_core.run_values import Timings
from heterotrain_core.telemetry import StepRecord
from heterotrain_core.types import Bounds

SPEEDS = st.lists(st.floats(1e-3, 0.5), min_size=2, max_size=6)


@settings(max_examples=12)
@given(SPEEDS, st.integers(1, 4), st.floats(0, 0.2), st.integers(0, 10**6))
def test_every_proposal_is_a_plan_that_the_coordinator_takes(
    speeds: list[float], grain: int, noise: float, seed: int
) -> None:
    batch = len(speeds) * 8 * grain
    job = simulate([steady(c) for c in speeds], batch=batch, noise=noise, seed=seed, grain=grain)
    for worker in job.workers:
        worker.minimum, worker.maximum = grain, batch // 2 // grain * grain

    job.run(40)

    for _, decision in job.decisions:
        if decision.proposal is None:
            continue
        assert decision.proposal.generation == decision.generation + 1
        assert sum(decision.proposal.shares.values()) == batch
        for worker in job.workers:
            share = decision.proposal.shares[worker.name]
            assert worker.minimum <= share <= worker.maximum
            assert (share - worker.minimum) % grain == 0
        assert decision.gain > decision.band or decision.action is not Action.PROPOSE


TIMES = st.sampled_from([0.0, -1.0, 1e-9, 0.01, 1.0, 1e9, math.nan, math.inf])
RECORDS = st.lists(
    st.builds(
        StepRecord,
        st.integers(0, 60),
        st.integers(-1, 40),
        st.builds(Timings, compute=TIMES, data=TIMES, push=TIMES, step=TIMES, receive=TIMES, other=TIMES),
    ),
    max_size=20,
)
WORKERS = st.builds(
    WorkerSeen,
    st.sampled_from(["a", "b", "c"]),
    st.booleans(),
    st.integers(0, 40),
    st.tuples(st.integers(0, 20), st.integers(20, 60)).map(lambda b: Bounds(*b)),
    RECORDS.map(tuple),
)
ANSWERS = st.none() | st.builds(
    Answer,
    st.integers(0, 9),
    st.integers(0, 99),
    st.lists(st.builds(Refused, st.sampled_from(["", "a", "x"]), st.text(max_size=5)), max_size=2).map(tuple),
)
SEEN = st.builds(
    Observation,
    training=st.booleans(),
    version=st.integers(0, 100),
    generation=st.integers(0, 9),
    effective_round=st.integers(0, 100),
    workers=st.lists(WORKERS, max_size=3, unique_by=lambda w: w.name).map(tuple),
    start_shares=st.dictionaries(st.sampled_from("abc"), st.integers(-3, 60)),
    answer=ANSWERS,
)


@settings(max_examples=20)
@given(st.lists(SEEN, max_size=8), st.sampled_from(list(Mode)), st.floats(0, 30))
def test_whatever_is_seen_is_judged_in_words(seen: list[Observation], mode: Mode, pause: float) -> None:
    state = State(Settings(mode=mode, global_batch=64, equal_after_seconds=20.0))
    for number, observation in enumerate(seen):
        state, decision = step(state, observation, number * pause)
        assert decision.reason
        assert mode is Mode.APPLY or decision.proposal is None
        assert all(math.isfinite(x) for x in (decision.gain, decision.band, decision.predicted_seconds))
