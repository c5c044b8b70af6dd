"""Expressions over named values: read into a tree of the few nodes below, then evaluated. Nothing is ever run as code.

Grammar, loosest first::

    or    := and ("or" and)*
    and   := not ("and" not)*
    not   := "not" not | comparison
    comparison := sum (("<" | "<=" | ">" | ">=" | "==" | "!=") sum)?
    sum   := product (("+" | "-") product)*
    product := factor (("*" | "/") factor)*
    factor := ("-" | "+") factor | number | text | name | name "(" or ("," or)* ")" | "(" or ")"

Comparisons give 1 or 0; a number other than 0 is true. An absent operand makes the result absent, and so do a division
by zero, a text where a number is needed and a result that is not finite; ``coalesce``, ``present`` and the branch of
``if`` that is not taken are the ways around.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from heterotrain_core.info.values import ABSENT, Value

MAX_LENGTH: Final = 1024
MAX_TOKENS: Final = 256
MAX_DEPTH: Final = 32


class ExpressionError(ValueError):
    """A text that is no expression; the message says where and what is allowed."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A number or a text."""

    value: float | str


@dataclass(frozen=True, slots=True)
class Name:
    """A value by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """An operator or function, of `SPECIAL` or `FUNCTIONS`, with its operands."""

    function: str
    operands: tuple[Node, ...]


Node: TypeAlias = Constant | Name | Call


class _Function(NamedTuple):
    fewest: int
    most: int
    of: Callable[..., float]


def _divide(a: float, b: float) -> float:
    return a / b if b != 0 else math.nan


def _floor(x: float) -> float:
    return float(math.floor(x)) if math.isfinite(x) else math.nan


def _log(x: float) -> float:
    return math.log(x) if x > 0 else math.nan


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.nan


def _sqrt(x: float) -> float:
    return math.sqrt(x) if x >= 0 else math.nan


FUNCTIONS: Final[Mapping[str, _Function]] = {
    "+": _Function(2, 2, lambda a, b: a + b),
    "-": _Function(2, 2, lambda a, b: a - b),
    "*": _Function(2, 2, lambda a, b: a * b),
    "/": _Function(2, 2, _divide),
    "negative": _Function(1, 1, lambda a: -a),
    "<": _Function(2, 2, lambda a, b: float(a < b)),
    "<=": _Function(2, 2, lambda a, b: float(a <= b)),
    ">": _Function(2, 2, lambda a, b: float(a > b)),
    ">=": _Function(2, 2, lambda a, b: float(a >= b)),
    "not": _Function(1, 1, lambda a: float(a == 0)),
    "abs": _Function(1, 1, abs),
    "min": _Function(1, 16, lambda *xs: min(xs)),
    "max": _Function(1, 16, lambda *xs: max(xs)),
    "clamp": _Function(3, 3, lambda x, low, high: min(max(x, low), high)),
    "floor": _Function(1, 1, _floor),
    "sqrt": _Function(1, 1, _sqrt),
    "log": _Function(1, 1, _log),
    "exp": _Function(1, 1, _exp),
}
"""Over numbers only."""

SPECIAL: Final[Mapping[str, tuple[int, int]]] = {
    "coalesce": (1, 16),
    "present": (1, 1),
    "if": (2, 3),
    "and": (2, 2),
    "or": (2, 2),
    "==": (2, 2),
    "!=": (2, 2),
}
"""Fewest and most operands of what looks at absence or text itself.

``coalesce(a, b)``: the first that is there. ``present(a)``: 1 or 0. ``if(c, a, b)``: `a` if c is true, else `b`, or
absent without one.
"""

_WORDS: Final = frozenset(["and", "or", "not"])
_NOT_CALLED: Final = _WORDS | {"negative"}
_CALLABLE: Final = sorted(name for name in (*FUNCTIONS, *SPECIAL) if name.isalpha() and name not in _NOT_CALLED)
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<text>\"[^\"\\]*\"|'[^'\\]*')"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign><=|>=|==|!=|[-+*/<>(),]))"
)


class _Token(NamedTuple):
    kind: str
    text: str
    place: int


def _tokens(text: str) -> list[_Token]:
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"an expression has at most {MAX_LENGTH} characters, not {len(text)}")
    tokens, place = [], 0
    end = len(text.rstrip())
    while place < end:
        match = _TOKEN.match(text, place)
        if match is None:
            found = text[place:].lstrip()[:10]
            raise ExpressionError(
                f"{found!r} (character {place + 1}) is not understood; allowed are numbers, 'texts', names, "
                "+ - * / < <= > >= == != and or not ( ) ,"
            )
        kind = str(match.lastgroup)
        tokens.append(_Token(kind, match[kind], match.start(kind) + 1))
        place = match.end()
        if len(tokens) > MAX_TOKENS:
            raise ExpressionError(f"an expression has at most {MAX_TOKENS} words and signs")
    return [*tokens, _Token("end", "the end", end + 1)]


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._or()
        if self._peek.kind != "end":
            raise self._unexpected("an operator or the end")
        return node

    @property
    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *texts: str) -> str | None:
        token = self._peek
        if token.kind in ("sign", "name") and token.text in texts:
            self._next += 1
            return token.text
        return None

    def _unexpected(self, wanted: str) -> ExpressionError:
        return ExpressionError(f"{self._peek.text!r} (character {self._peek.place}) where {wanted} should be")

    def _binary(self, operand: Callable[[], Node], *signs: str) -> Node:
        node = operand()
        while sign := self._take(*signs):
            node = Call(sign, (node, operand()))
        return node

    def _or(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionError(f"an expression is nested at most {MAX_DEPTH} deep")
        node = self._binary(self._and, "or")
        self._depth -= 1
        return node

    def _and(self) -> Node:
        return self._binary(self._not, "and")

    def _not(self) -> Node:
        inversions = 0
        while self._take("not"):
            inversions += 1
        node = self._comparison()
        for _ in range(inversions if inversions < 2 else 2 - inversions % 2):  # only whether it is odd counts
            node = Call("not", (node,))
        return node

    def _comparison(self) -> Node:
        node = self._sum()
        sign = self._take("<", "<=", ">", ">=", "==", "!=")
        return node if sign is None else Call(sign, (node, self._sum()))

    def _sum(self) -> Node:
        return self._binary(self._product, "+", "-")

    def _product(self) -> Node:
        return self._binary(self._factor, "*", "/")

    def _factor(self) -> Node:
        negative = False
        while sign := self._take("-", "+"):
            negative ^= sign == "-"
        node = self._atom()
        return Call("negative", (node,)) if negative else node

    def _atom(self) -> Node:
        token = self._peek
        if self._take("("):
            node = self._or()
            if not self._take(")"):
                raise self._unexpected("')'")
            return node
        if token.kind in ("sign", "end") or token.text in _WORDS:
            raise self._unexpected("a value")
        self._next += 1
        if token.kind == "number":
            value = float(token.text)
            if not math.isfinite(value):
                raise ExpressionError(f"the number {token.text} is too large")
            return Constant(value)
        if token.kind == "text":
            return Constant(token.text[1:-1])
        return self._call(token) if self._take("(") else Name(token.text)

    def _call(self, function: _Token) -> Node:
        if function.text not in _CALLABLE:
            raise ExpressionError(f"unknown function {function.text!r}; there are {', '.join(_CALLABLE)}")
        operands = [self._or()]
        while self._take(","):
            operands.append(self._or())
        if not self._take(")"):
            raise self._unexpected("')' or ','")
        name = function.text
        fewest, most = SPECIAL[name] if name in SPECIAL else FUNCTIONS[name][:2]
        if not fewest <= len(operands) <= most:
            wanted = str(fewest) if fewest == most else f"{fewest} to {most}"
            raise ExpressionError(f"{name} takes {wanted} operands, not {len(operands)}")
        return Call(name, tuple(operands))


def parse(text: str) -> Node:
    """The tree of an expression; raises `ExpressionError`."""
    return _Parser(text).whole()


def names(node: Node) -> frozenset[str]:
    """The values that an expression is over."""
    match node:
        case Name(name):
            return frozenset([name])
        case Call(_, operands):
            return frozenset().union(*(names(operand) for operand in operands))
        case Constant():
            return frozenset()


def evaluate(node: Node, values: Mapping[str, Value]) -> Value:
    """The result, `ABSENT` where the module's text says so. Names that `values` lacks are absent."""
    match node:
        case Constant(value):
            return value
        case Name(name):
            return values.get(name)
        case Call(function, operands) if function in SPECIAL:
            return _special(function, operands, values)
        case Call(function, operands):
            return _numeric(function, [evaluate(operand, values) for operand in operands])


def _numeric(function: str, operands: list[Value]) -> Value:
    numbers = [operand for operand in operands if isinstance(operand, float | int)]
    if len(numbers) < len(operands):
        return ABSENT
    result = FUNCTIONS[function].of(*numbers)
    return result if math.isfinite(result) else ABSENT


def _special(function: str, operands: tuple[Node, ...], values: Mapping[str, Value]) -> Value:
    match function:
        case "coalesce":
            found = (evaluate(operand, values) for operand in operands)
            return next((value for value in found if value is not ABSENT), ABSENT)
        case "present":
            return float(evaluate(operands[0], values) is not ABSENT)
        case "if":
            condition = evaluate(operands[0], values)
            chosen = operands[1:2] if condition else operands[2:]
            return evaluate(chosen[0], values) if chosen and _is_number(condition) else ABSENT
        case _:
            first, second = (evaluate(operand, values) for operand in operands)
            return ABSENT if first is ABSENT or second is ABSENT else _logical(function, first, second)


def _logical(function: str, first: float | str, second: float | str) -> Value:
    if function in ("==", "!="):
        return float((first == second) == (function == "=="))
    if isinstance(first, str) or isinstance(second, str):
        return ABSENT
    return float(bool(first and second) if function == "and" else bool(first or second))


def _is_number(value: Value) -> bool:
    return isinstance(value, float | int)
