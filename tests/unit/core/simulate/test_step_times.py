"""Step times from text and as sequences."""

import statistics

import pytest

from heterotrain_core.simulate_times import (
    Constant,
    Exponential,
    LogNormal,
    Spikes,
    StepTimes,
    Trace,
    Uniform,
    parse_step_times,
)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("1,1,1,4", [Constant(1)] * 3 + [Constant(4)]),
        ("3:1, 0.25", [Constant(1)] * 3 + [Constant(0.25)]),
        ("2:uniform(1,4),exponential(2)", [Uniform(1, 4), Uniform(1, 4), Exponential(2)]),
        ("lognormal(1,0.3),spikes(1,4,5e-2)", [LogNormal(1, 0.3), Spikes(1, 4, 0.05)]),
        ("4:spread(1,4),1:spread(2,9)", [Constant(1), Constant(2), Constant(3), Constant(4), Constant(2)]),
    ],
)
def test_step_times_are_read(text: str, want: list[StepTimes]) -> None:
    assert parse_step_times(text) == want


@pytest.mark.parametrize(
    ("text", "want_message"),
    [
        ("", "give at least one worker"),
        ("1,x", "cannot read 'x': write seconds or one of uniform"),
        ("1;2", "cannot read '1;2'"),
        ("0:1", "'0:1': the count must be from 1 to 1000000"),
        ("99999999999999999999:1", "the count must be from 1 to 1000000"),
        ("2:lognormal(1,1e4)", r"lognormal: at most 1e\+09 as median and 10 as sigma"),
        ("gamma(1)", r"'gamma\(1\)' is not one of uniform"),
        ("uniform(1)", "is not one of"),
        ("uniform(4,1)", "low 4 is above high 1"),
        ("0", "numbers must be above 0 and finite, not 0"),
        ("-1", "not -1"),
        ("spikes(1,2,3)", "the probability must be between 0 and 1"),
    ],
)
def test_what_is_not_a_step_time_is_refused(text: str, want_message: str) -> None:
    with pytest.raises(ValueError, match=want_message):
        parse_step_times(text)


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(ValueError, match="a trace needs at least one step time"):
        Trace(())


@pytest.mark.parametrize(
    ("steps", "want_mean", "low", "high"),
    [
        (Constant(2), 2, 2, 2),
        (Trace((1.0, 3.0)), 2, 1, 3),
        (Uniform(1, 4), 2.5, 1, 4),
        (Exponential(2), 2, 0, 40),
        (LogNormal(1, 0.5), 1.1331, 0, 20),
        (Spikes(1, 4, 0.25), 1.75, 1, 4),
    ],
)
def test_distributions_have_their_mean_and_are_seeded(
    steps: StepTimes, want_mean: float, low: float, high: float
) -> None:
    def drawn(seed: int) -> list[float]:
        draw = steps.sampler(seed)
        return [draw() for _ in range(4000)]

    times = drawn(1)
    assert statistics.mean(times) == pytest.approx(want_mean, rel=0.05)
    assert low <= min(times) <= max(times) <= high
    assert times == drawn(1)
