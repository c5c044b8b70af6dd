"""Accumulates the gradients of a grant's micro-batches into the mean over its samples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from heterotrain.errors import UsageError


class Gradients:
    """Sums of ``weight x parameter.grad``: with weights n_k / (sum of n_k), the mean gradient over all samples.

    With `targets` (one tensor a parameter, of its shape) the sums lie there, ready to be pushed; else in own memory.
    A parameter that had no gradient in any micro-batch is *absent*: optimizers pass it over, as in plain PyTorch.
    `held`: names and parameters that are not trained and must stay so.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        targets: Sequence[torch.Tensor] | None = None,
        held: Sequence[tuple[str, torch.Tensor]] = (),
    ) -> None:
        self._parameters = tuple(parameters)
        self._held = tuple(held)
        self._targets = None if targets is None else tuple(targets)
        self._sums: list[torch.Tensor | None] = [None] * len(self._parameters)

    @property
    def absent(self) -> tuple[int, ...]:
        """Places (in `parameters`) of those without any gradient."""
        return tuple(i for i, total in enumerate(self._sums) if total is None)

    @torch.no_grad()
    def add(self, weight: float) -> None:
        """Take every parameter's present gradient, weighted; the gradients are None afterwards."""
        for name, parameter in self._held:
            if parameter.requires_grad:
                raise UsageError(
                    f"model: parameter `{name}` had requires_grad off in session.prepare and has it on now, but would"
                    " not be trained; prepare it with requires_grad on, in a parameter group with lr 0 until then"
                )
        for i, parameter in enumerate(self._parameters):
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.layout is not torch.strided:
                raise UsageError(f"a parameter's gradient is {gradient.layout}; only dense gradients can be shared")
            self._sums[i] = self._add(i, gradient, weight)
            parameter.grad = None

    def _add(self, i: int, gradient: torch.Tensor, weight: float) -> torch.Tensor:
        total = self._sums[i]
        if total is not None:
            return total.add_(gradient, alpha=weight)
        if self._targets is None:
            # A grant computed at once needs no arithmetic: alone, this is plain PyTorch bit by bit.
            return gradient if weight == 1.0 else gradient * weight
        target = self._targets[i]
        return target.copy_(gradient) if weight == 1.0 else torch.mul(gradient, weight, out=target)

    def fill_absent(self) -> None:
        """Zero the targets of absent parameters, which still hold what was pushed before."""
        if self._targets is not None:
            for i in self.absent:
                self._targets[i].zero_()

    def give_back(self) -> None:
        """Set every parameter's gradient to its sum, for an optimizer that steps here."""
        for parameter, total in zip(self._parameters, self._sums, strict=True):
            parameter.grad = total

    def clear(self) -> None:
        """Forget the sums: the next micro-batch is the first of a grant."""
        self._sums = [None] * len(self._parameters)
        for parameter in self._parameters:
            parameter.grad = None
