"""What `Session.prepare` returns as the optimizer: a `torch.optim.Optimizer` whose step is a round of the job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from heterotrain.errors import UsageError
from heterotrain.rounds import Rounds


class RoundOptimizer(torch.optim.Optimizer):
    """Hands gradients in and brings the next version; holds the real optimizer's parameter groups, not its state.

    Schedulers work on it as on the real one: what they change in `param_groups` travels with the next gradient.
    """

    _step_supports_amp_scaling = True
    """Has `torch.amp.GradScaler` call `step` for every batch, gradients with Inf too, and leave the unscaling to it:
    every batch needs its step, and what is not finite the shards discard."""

    def __init__(self, real: torch.optim.Optimizer, rounds: Rounds, *, alone: bool) -> None:
        self._rounds = rounds
        self._real = real if alone else None
        self._open = True
        super().__init__([{**group} for group in real.param_groups], real.defaults)
        self._open = False
        self._share(real)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take the gradients of the batch, set them to None; after the last micro-batch of a share, end the round.

        When this returns the model holds the version that the next batch belongs to.
        Raises `UsageError` for a closure, and unless called exactly once for each batch from the loader.
        """
        if closure is not None:
            raise UsageError("optimizer.step() takes no closure here: call loss.backward() first, then step()")
        self._unscale()
        self._rounds.step()

    def state_dict(self) -> dict[str, Any]:
        """Alone: that of the real optimizer. In a job: refused, the state lies on the parameter servers."""
        if self._real is None:
            self._refuse("optimizer.state_dict()")
        return self._real.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Alone: as of the real optimizer. In a job: refused, the state lies on the parameter servers."""
        if self._real is None:
            self._refuse("optimizer.load_state_dict()")
        self._real.load_state_dict(state_dict)
        self._share(self._real)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: the parameter servers lay out the model once."""
        if not self._open:
            raise UsageError(
                "groups cannot be added later; give all to session.prepare(…, parameters=[{'params': …}, …])"
            )
        super().add_param_group(param_group)

    @torch.no_grad()
    def _unscale(self) -> None:
        """Obey `torch.amp.GradScaler`, which sets `grad_scale` and `found_inf` around `step`."""
        scale: torch.Tensor | None = getattr(self, "grad_scale", None)
        found_inf: torch.Tensor | None = getattr(self, "found_inf", None)
        skipped = self._real is not None and found_inf is not None and bool(found_inf)
        for parameter in (p for group in self.param_groups for p in group["params"]):
            if skipped:
                parameter.grad = None  # alone nobody else discards it
            elif scale is not None and parameter.grad is not None:
                # As `GradScaler.unscale_`, bit by bit.
                parameter.grad.mul_(scale.double().reciprocal().float().to(parameter.grad.device))

    def _share(self, real: torch.optim.Optimizer) -> None:
        self.param_groups = real.param_groups
        self.state = real.state

    @staticmethod
    def _refuse(what: str) -> NoReturn:
        raise UsageError(
            f"{what} is not possible in a job, where the optimizer's state lies on the parameter servers; to start from"
            " trained weights use session.prepare(…, weights=…)"
        )
