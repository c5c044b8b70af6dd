"""How long a simulated worker's steps take: constants, seeded distributions, recorded traces. Pure."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, repeat
from typing import Final, Protocol

Sampler = Callable[[], float]
"""Gives the seconds of one step after another."""


class StepTimes(Protocol):
    """Times of the steps of one worker, in seconds, above 0."""

    def sampler(self, seed: int) -> Sampler:
        """A fresh sequence; the same one for the same seed."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Always the same."""

    seconds: float

    def __post_init__(self) -> None:
        """Raise `ValueError` unless above 0."""
        _long_enough(self.seconds)

    def sampler(self, seed: int) -> Sampler:
        """Nothing is drawn."""
        return repeat(self.seconds).__next__


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded times, from the beginning again when they are over."""

    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raise `ValueError` for an empty trace or times not above 0."""
        if not self.seconds:
            raise ValueError("a trace needs at least one step time")
        _long_enough(*self.seconds)

    def sampler(self, seed: int) -> Sampler:
        """Nothing is drawn."""
        return cycle(self.seconds).__next__


@dataclass(frozen=True, slots=True)
class Uniform:
    """Between `low` and `high`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        """Raise `ValueError` unless 0 < low <= high."""
        _long_enough(self.low, self.high)
        if self.low > self.high:
            raise ValueError(f"uniform: low {self.low:g} is above high {self.high:g}")

    def sampler(self, seed: int) -> Sampler:
        """One draw a step."""
        low, span, draw = self.low, self.high - self.low, _generator(seed).random
        return lambda: low + span * draw()


@dataclass(frozen=True, slots=True)
class Exponential:
    """Exponential with mean `mean`."""

    mean: float

    def __post_init__(self) -> None:
        """Raise `ValueError` unless above 0."""
        _long_enough(self.mean)

    def sampler(self, seed: int) -> Sampler:
        """One draw a step."""
        mean, draw = self.mean, _generator(seed).random
        return lambda: -mean * math.log(1.0 - draw())


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Median `median`, standard deviation `sigma` of the logarithm."""

    median: float
    sigma: float

    def __post_init__(self) -> None:
        """Raise `ValueError` unless above 0, and no step is longer than numbers are."""
        _long_enough(self.median)
        _positive(self.sigma)
        if self.median > MAX_MEDIAN or self.sigma > MAX_SIGMA:
            raise ValueError(f"lognormal: at most {MAX_MEDIAN:g} as median and {MAX_SIGMA} as sigma")

    def sampler(self, seed: int) -> Sampler:
        """One draw a step."""
        mu, sigma, draw = math.log(self.median), self.sigma, _generator(seed).lognormvariate
        return lambda: draw(mu, sigma)


@dataclass(frozen=True, slots=True)
class Spikes:
    """`seconds`, but `factor` times as long with probability `probability`: transient stragglers."""

    seconds: float
    factor: float
    probability: float

    def __post_init__(self) -> None:
        """Raise `ValueError` for numbers out of range."""
        _long_enough(self.seconds)
        _positive(self.factor)
        if not 0 <= self.probability <= 1:
            raise ValueError(f"spikes: the probability must be between 0 and 1, not {self.probability:g}")

    def sampler(self, seed: int) -> Sampler:
        """One draw a step."""
        usual, spike, probability = self.seconds, self.seconds * self.factor, self.probability
        draw = _generator(seed).random
        return lambda: spike if draw() < probability else usual


MIN_SECONDS: Final = 1e-9
"""Of a step: virtual time has no shorter one, and would stand still."""
MAX_WORKERS: Final = 1_000_000
MAX_DIGITS: Final = 12
"""Of a count that are read: one so long is too large in any case."""
MAX_SIGMA: Final = 10
MAX_MEDIAN: Final = 1e9
_DISTRIBUTIONS: Final[dict[str, tuple[Callable[..., StepTimes], int, str]]] = {
    "uniform": (Uniform, 2, "uniform(low,high)"),
    "exponential": (Exponential, 1, "exponential(mean)"),
    "lognormal": (LogNormal, 2, "lognormal(median,sigma)"),
    "spikes": (Spikes, 3, "spikes(seconds,factor,probability)"),
}
_SPREAD: Final = "spread(first,last)"
_FORMS: Final = ", ".join([*(form for _, _, form in _DISTRIBUTIONS.values()), _SPREAD])
_NUMBER: Final = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_ITEM: Final = re.compile(
    rf"(?:(?P<count>[0-9]+):)?(?:(?P<constant>{_NUMBER})|(?P<name>[a-z]+)\((?P<values>{_NUMBER}(?:,{_NUMBER})*)\))"
)


def parse_step_times(text: str) -> list[StepTimes]:
    """One entry a worker from ``1,1,1,4``, ``3:1,4`` or ``1000:uniform(1,4),2:exponential(8)``; raises `ValueError`.

    An item is a number of seconds or a distribution, after ``COUNT:`` for as many workers. ``10:spread(1,4)`` gives ten
    workers constants evenly from 1 to 4.
    """
    times: list[StepTimes] = []
    position = 0
    compact = "".join(text.split())
    while position < len(compact):
        match = _ITEM.match(compact, position)
        end = match.end() if match is not None else position
        if match is None or not (end == len(compact) or compact[end] == ","):
            raise ValueError(
                f"step times: cannot read {compact[position:]!r}: write seconds or one of {_FORMS}, "
                "separated by commas, each after COUNT: for several workers, for example 1,1,1,4 or 100:uniform(1,4)"
            )
        times += _item(match)
        position = end + 1
    if not times:
        raise ValueError("step times: give at least one worker, for example 1,1,1,4")
    return times


def _item(match: re.Match[str]) -> Sequence[StepTimes]:
    count = int((match["count"] or "1")[:MAX_DIGITS])
    if not 1 <= count <= MAX_WORKERS:
        raise ValueError(f"step times: {match[0]!r}: the count must be from 1 to {MAX_WORKERS}")
    if match["constant"] is not None:
        return [Constant(float(match["constant"]))] * count
    name = match["name"]
    values = [float(v) for v in match["values"].split(",")]
    if name == "spread" and len(values) == 2:
        first, last = values
        return [Constant(first + (last - first) * i / max(1, count - 1)) for i in range(count)]
    known = _DISTRIBUTIONS.get(name)
    if known is None or len(values) != known[1]:
        raise ValueError(f"step times: {match[0]!r} is not one of {_FORMS}")
    return [known[0](*values)] * count


def _generator(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311  # repeatable, not secret


def _long_enough(*seconds: float) -> None:
    _positive(*seconds)
    for value in seconds:
        if value < MIN_SECONDS:
            raise ValueError(f"step times: must be at least {MIN_SECONDS:g} s, not {value:g}")


def _positive(*seconds: float) -> None:
    for value in seconds:
        if not 0 < value < math.inf:
            raise ValueError(f"step times: numbers must be above 0 and finite, not {value:g}")
