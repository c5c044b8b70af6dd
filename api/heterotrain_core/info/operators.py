"""The operators of processing rules, each a small machine fed one row at a time, with bounded memory.

Meanings as in algorithms.md A1: where implementations of such operators differ, the class says what holds here. Every
`step` gives the parts of its result by name, ``value`` the main one; no parts mean absent. An absent or unfit input
changes no state and gives absent.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from heterotrain_core.info.expression import Node, evaluate
from heterotrain_core.info.stats import MAD_TO_SIGMA, median, quantile_sorted, theil_sen
from heterotrain_core.info.values import ABSENT, Value
from heterotrain_core.info.windows import Window

Parts: TypeAlias = Mapping[str, float | str]
NOTHING: Final[Parts] = {}

OK: Final = "OK"
HOT: Final = "HOT"


class Row(NamedTuple):
    """What an operator is given."""

    time: float
    """Of the sample that set the rule off."""
    value: Value
    """Result of the operator before; of the first one: the only input."""
    inputs: Mapping[str, Value] = {}
    times: Mapping[str, float] = {}
    """When each input that is there was taken."""


class Operator(Protocol):
    """One place of a chain, with its memory of one entity."""

    def step(self, row: Row) -> Parts:
        """The result for the next row; rows come in order of time."""


def _finite(value: Value) -> float | None:
    return value if isinstance(value, float | int) and math.isfinite(value) else None


def run(operator: Operator, samples: Sequence[tuple[float, Value]], part: str = "value") -> list[Value]:
    """One part of an operator's results over a whole list of (time, value)."""
    return [operator.step(Row(time, value)).get(part, ABSENT) for time, value in samples]


class Ewma:
    """``m_0 = x_0``, ``m_k = m_{k-1} + alpha (x_k - m_{k-1})``: the same weight whatever the time between."""

    def __init__(self, alpha: float) -> None:
        self.alpha: Final = alpha
        self._mean: float | None = None

    def step(self, row: Row) -> Parts:
        """The moving mean."""
        value = _finite(row.value)
        if value is None:
            return NOTHING
        self._mean = value if self._mean is None else self._mean + self.alpha * (value - self._mean)
        return {"value": self._mean}


class EwmaT:
    """As `Ewma`, with ``alpha_k = 1 - 2^(-(t_k - t_{k-1}) / half_life)``: right for irregular sampling."""

    def __init__(self, half_life: float) -> None:
        self.half_life: Final = half_life
        self._mean = 0.0
        self._time: float | None = None

    def step(self, row: Row) -> Parts:
        """The moving mean."""
        value = _finite(row.value)
        if value is None:
            return NOTHING
        if self._time is None:
            self._mean = value
        else:
            elapsed = max(0.0, row.time - self._time)
            self._mean += (1 - 2 ** (-elapsed / self.half_life)) * (value - self._mean)
        self._time = row.time
        return {"value": self._mean}


class Rate:
    """Growth of a counter a second: sum of increments in the window over the time they cover.

    An increment is ``x_k - x_{k-1}``, or ``x_k`` if that is negative: the counter began again at 0.
    """

    def __init__(self, seconds: float | None, most: int) -> None:
        self._seconds: Final = seconds
        self._most: Final = most
        self._last: float | None = None
        self._grown: deque[tuple[float, float]] = deque()
        """Time of each sample of the window, with the increment that led to it."""

    def step(self, row: Row) -> Parts:
        """The rate; absent with fewer than two samples in the window."""
        value = _finite(row.value)
        if value is None:
            return NOTHING
        grown = 0.0 if self._last is None else value - self._last if value >= self._last else value
        self._last = value
        self._grown.append((row.time, grown))
        while len(self._grown) > self._most or (
            self._seconds is not None and self._grown[0][0] < row.time - self._seconds
        ):
            self._grown.popleft()
        covered = row.time - self._grown[0][0]
        if covered <= 0:
            return NOTHING
        return {"value": (math.fsum(grown for _, grown in self._grown) - self._grown[0][1]) / covered}


class Quantile:
    """Of the values in the window: linear interpolation at position ``q (n - 1)``, not nearest rank."""

    def __init__(self, q: float, window: Window) -> None:
        self.q: Final = q
        self._window = window

    def step(self, row: Row) -> Parts:
        """The quantile."""
        value = _finite(row.value)
        if value is None:
            return NOTHING
        self._window.add(row.time, value)
        return {"value": quantile_sorted(self._window.ordered, self.q)}


class Reduce:
    """Any reduction of the values in the window (`values` are in order of size)."""

    def __init__(self, reduction: Callable[[Sequence[float]], float], window: Window) -> None:
        self._reduction = reduction
        self._window = window

    def step(self, row: Row) -> Parts:
        """The reduction."""
        value = _finite(row.value)
        if value is None:
            return NOTHING
        self._window.add(row.time, value)
        return {"value": self._reduction(self._window.ordered)}


def _spread(ordered: Sequence[float]) -> tuple[float, float]:
    middle = quantile_sorted(ordered, 0.5)
    return middle, median([abs(value - middle) for value in ordered])


class Mad:
    """Median absolute deviation of the window's values around their median. Absent while it is 0."""

    def __init__(self, window: Window) -> None:
        self._window = window

    def step(self, row: Row) -> Parts:
        """The deviation."""
        value = _finite(row.value)
        if value is None:
            return NOTHING
        self._window.add(row.time, value)
        spread = _spread(self._window.ordered)[1]
        return {"value": spread} if spread > 0 else NOTHING


class RobustZ:
    """``(x - median) / (1.4826 mad)`` of the newest value x among those of the window.

    With a mad of 0: 0 if x is the median, else infinite.
    """

    def __init__(self, window: Window) -> None:
        self._window = window

    def step(self, row: Row) -> Parts:
        """How far off the newest value is, in standard deviations of a normal distribution."""
        value = _finite(row.value)
        if value is None:
            return NOTHING
        self._window.add(row.time, value)
        middle, spread = _spread(self._window.ordered)
        if spread == 0:
            return {"value": 0.0 if value == middle else math.inf}
        return {"value": (value - middle) / (MAD_TO_SIGMA * spread)}


class Threshold:
    """Hysteresis of two states: HOT after `hold` consecutive samples ``> hi``, OK after as many ``< lo``.

    The count begins again with any other sample and with a change. The first state is OK.
    """

    def __init__(self, hi: float, lo: float, hold: int = 1) -> None:
        self.hi: Final = hi
        self.lo: Final = lo
        self.hold: Final = hold
        self._state = OK
        self._count = 0

    def step(self, row: Row) -> Parts:
        """The state. Infinite values count."""
        value = row.value
        if not isinstance(value, float | int):
            return NOTHING
        contrary = value > self.hi if self._state == OK else value < self.lo
        self._count = self._count + 1 if contrary else 0
        if self._count >= self.hold:
            self._state = HOT if self._state == OK else OK
            self._count = 0
        return {"value": self._state}


class Cusum:
    """Downward: ``S_k = max(0, S_{k-1} + (ref - x_k) - drift)``; alarm when ``S_k > h``, then S begins again at 0."""

    def __init__(self, ref: float, drift: float, h: float, *, reset: bool = True) -> None:
        """`reset` false: an alarm leaves S as it is, and lasts as long as S is above h."""
        self.ref: Final = ref
        self.drift: Final = drift
        self.h: Final = h
        self.reset: Final = reset
        self._sum = 0.0

    def step(self, row: Row) -> Parts:
        """S as it was before any reset; ``alarm`` 1 or 0."""
        value = _finite(row.value)
        if value is None:
            return NOTHING
        reached = max(0.0, self._sum + (self.ref - value) - self.drift)
        alarm = reached > self.h
        self._sum = 0.0 if alarm and self.reset else reached
        return {"value": reached, "s": reached, "alarm": float(alarm)}


class AlphaBeta:
    """Fits ``seconds = delta + bytes / bandwidth`` to the window's pairs by Theil-Sen: a few outliers do not move it.

    Two inputs are a pair if they were taken at the same time.
    """

    def __init__(self, size: str, seconds: str, window: Window) -> None:
        """`size` and `seconds` name the inputs."""
        self._size: Final = size
        self._duration: Final = seconds
        self._pairs: deque[tuple[float, float, float]] = deque()
        self._most: Final = window.most
        self._seconds: Final = window.seconds

    def step(self, row: Row) -> Parts:
        """``delta`` (s) and ``bandwidth`` (bytes/s, also ``value``); absent without two sizes or if not growing."""
        size, duration = _finite(row.inputs.get(self._size)), _finite(row.inputs.get(self._duration))
        if size is None or duration is None or row.times[self._size] != row.times[self._duration]:
            return NOTHING
        self._pairs.append((row.times[self._size], size, duration))
        while len(self._pairs) > self._most or (
            self._seconds is not None and self._pairs[0][0] < row.time - self._seconds
        ):
            self._pairs.popleft()
        line = theil_sen([(size, duration) for _, size, duration in self._pairs])
        if line is None or line.slope <= 0:
            return NOTHING
        return {"value": 1 / line.slope, "bandwidth": 1 / line.slope, "delta": line.intercept}


class Expression:
    """Arithmetic over the inputs by name, and over ``value``, the result before."""

    def __init__(self, tree: Node) -> None:
        self._tree = tree

    def step(self, row: Row) -> Parts:
        """What the expression gives."""
        result = evaluate(self._tree, {**row.inputs, "value": row.value})
        return NOTHING if result is ABSENT else {"value": result}
