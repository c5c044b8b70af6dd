"""Keeps PyTorch's compiler out of processes that compile nothing: it costs each 1.3 s of processor time and 130 MB."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

_COMPILER: Final = "torch._dynamo"
_MARK: Final = "__dynamo_disable"
"""Where `torch._compile` keeps what it calls instead of a method that the compiler shall leave alone."""


def spare_compiler() -> None:
    """Let the methods of `torch.optim.Optimizer` run without loading the compiler; to be called before the first use.

    PyTorch wraps them so that the compiler passes them over, and loads all of it at their first call to say so to it.
    As long as nobody else has loaded it nothing can be compiling, so they are called plainly until then, and as
    PyTorch would from then on. Releases that do not wrap them so are left as they are.
    """
    for wrapper, method in _wrapped(torch.optim.Optimizer):
        if not hasattr(method, _MARK):
            setattr(method, _MARK, _plainly(wrapper, method))


def step_plainly(optimizer: torch.optim.Optimizer) -> None:
    """``optimizer.step()`` for one without hooks, closure and `differentiable`: PyTorch's own loads the compiler."""
    with torch.no_grad():
        inspect.unwrap(type(optimizer).step)(optimizer)


def _wrapped(cls: type) -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
    for wrapper in vars(cls).values():
        method = getattr(wrapper, "__wrapped__", None)
        if method is not None and getattr(wrapper, "__globals__", {}).get("__name__") == "torch._compile":
            yield wrapper, method


def _plainly(wrapper: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if _COMPILER not in sys.modules:
            return method(*args, **kwargs)
        delattr(method, _MARK)
        return wrapper(*args, **kwargs)

    return call
