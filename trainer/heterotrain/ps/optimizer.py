"""Which optimizers can run on shards, how their hyperparameters travel, and the step itself.

A tensor may be split over shards, so only optimizers that update each element from that element alone are possible.
Hyperparameters travel as one JSON object per parameter group. `check_optimizer` and `encode_group` are used by the
script's side too, so that a script fails at `prepare` and not at the first commit.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import torch

from heterotrain.lean import step_plainly
from heterotrain.tensors import elements

Hyperparameter: TypeAlias = bool | int | float | tuple[float, ...] | None
OptimizerClass: TypeAlias = Callable[..., torch.optim.Optimizer]

_ELEMENTWISE: Final = (
    "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
)  # fmt: skip

_WHY_NOT: Final = {
    "Adafactor": "it factors whole matrices",
    "LBFGS": "it evaluates the loss again within a step",
    "Muon": "it orthogonalises whole matrices",
    "SparseAdam": "it needs sparse gradients",
}

EXECUTION_OPTIONS: Final = ("foreach", "fused", "capturable")
"""They choose how a step is run on the script's device, not what it computes. Shards choose for themselves: ignored."""

_ENCODER: Final = json.JSONEncoder(sort_keys=True, allow_nan=False)
"""`json.dumps` makes one for each call, and each worker has one in every round, while others wait for its word."""

_STATEFUL: Final = ("amsgrad", "centered")
"""Options that decide which tensors the optimizer keeps; they cannot change once it has some."""


@cache
def elementwise_optimizers() -> tuple[str, ...]:
    """Names of the classes of the installed `torch.optim` that can run on shards."""
    return tuple(name for name in _ELEMENTWISE if hasattr(torch.optim, name))


def check_optimizer(name: str) -> OptimizerClass:
    """Return the class of that name in `torch.optim`.

    Raises `ValueError` that lists the allowed ones if it cannot run on shards.
    """
    allowed = elementwise_optimizers()
    if name in allowed:
        found: OptimizerClass = getattr(torch.optim, name)
        return found
    reason = f" ({_WHY_NOT[name]})" if name in _WHY_NOT else ""
    raise ValueError(
        f"optimizer `{name}` cannot run on parameter servers{reason}: a tensor may be split over them, so each"
        f" element's update must follow from that element alone. Choose one of torch.optim's {', '.join(allowed)}"
    )


def encode_group(name: str, group: Mapping[str, object]) -> str:
    """JSON of a parameter group's hyperparameters, from ``optimizer.param_groups[i]``.

    What the class does not know (`params`, keys of schedulers such as `initial_lr`) and execution options are left out;
    one-element tensors become numbers. Raises `ValueError` as `decode_group` would.
    """
    known = _constructor_options(check_optimizer(name))
    values = {k: _plain(v) for k, v in group.items() if k in known and k not in EXECUTION_OPTIONS}
    try:
        text = _ENCODER.encode(values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"optimizer `{name}`: hyperparameters must be finite numbers, not {values}") from error
    decode_group(name, text)
    return text


def decode_group(name: str, text: str) -> dict[str, Hyperparameter]:
    """All hyperparameters of a group, defaults filled in; the inverse of `encode_group`.

    Raises `ValueError` that names the key for unknown keys, for values that are not numbers, booleans, null or lists of
    numbers, for `differentiable`, and for what the real constructor refuses.
    """
    return dict(_decoded(name, text))


@lru_cache(maxsize=256)  # asked for in every round by every process; mostly nothing has changed
def _decoded(name: str, text: str) -> Mapping[str, Hyperparameter]:
    cls = check_optimizer(name)
    known = _constructor_options(cls)
    values: dict[str, Hyperparameter] = {}
    for key, value in _json_object(name, text).items():
        if key not in known:
            raise ValueError(f"optimizer `{name}` has no hyperparameter `{key}`; it has {', '.join(sorted(known))}")
        if key not in EXECUTION_OPTIONS:
            values[key] = _checked(name, key, value, known[key])
    if values.get("differentiable"):
        raise ValueError(f"optimizer `{name}`: `differentiable` must be false, the step runs in another process")
    try:
        probe = cls([torch.zeros(1, requires_grad=True)], **values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"optimizer `{name}` refuses {values}: {error}") from error
    kept = {key: probe.defaults[key] for key in probe.defaults if key in known and key not in EXECUTION_OPTIONS}
    return MappingProxyType(kept)


def state_bytes_per_element(name: str, values: Mapping[str, Hyperparameter], dtype: torch.dtype) -> int:
    """Bytes that the optimizer keeps for each parameter element, found by one step on a tensor of three."""
    parameter = torch.nn.Parameter(torch.zeros(3, dtype=dtype))
    optimizer = check_optimizer(name)([parameter], **dict(values))
    parameter.grad = torch.zeros_like(parameter)
    step_plainly(optimizer)
    kept = optimizer.state[parameter].values()
    return sum(t.element_size() for t in kept if isinstance(t, torch.Tensor) and t.numel() == parameter.numel())


@dataclass(frozen=True, slots=True)
class Slot:
    """A shard's piece of one parameter: its place in the arena and its group."""

    tensor: int
    """Index in the manifest."""
    group: int
    dtype: str
    offset: int
    num_elements: int


class ShardOptimizer:
    """The real `torch.optim` optimizer over the pieces of a shard. Not thread-safe: one commit at a time.

    `values` is the arena of current values, `gradients` that of the aggregate; parameters and `.grad` are their views.
    """

    def __init__(
        self,
        name: str,
        groups: Sequence[str],
        slots: Sequence[Slot],
        values: torch.Tensor,
        gradients: torch.Tensor,
    ) -> None:
        self._name = name
        self._slots = tuple(slots)
        self._groups = tuple(groups)
        self._hyperparameters = [decode_group(name, text) for text in groups]
        self._parameters = [torch.nn.Parameter(_view(values, slot)) for slot in self._slots]
        self._gradients = [_view(gradients, slot) for slot in self._slots]
        self._kept: dict[torch.Tensor, dict[str, Any]] = {}
        """What `keep` has copied."""
        members: list[list[torch.nn.Parameter]] = [[] for _ in groups]
        for slot, parameter in zip(self._slots, self._parameters, strict=True):
            members[slot.group].append(parameter)
        # One optimizer a group: some classes prepare state from their constructor's arguments alone, not from the
        # group's. A group is given as a dict, since a shard may hold no piece of it.
        self._optimizers = [
            check_optimizer(name)([{"params": m}], **h, foreach=False)
            for m, h in zip(members, self._hyperparameters, strict=True)
        ]

    @property
    def state_bytes(self) -> int:
        """Bytes of the optimizer's state now."""
        # Lists: another thread may step, keep or undo meanwhile.
        states = [state for optimizer in self._optimizers for state in [*optimizer.state.values()]]
        states += [*self._kept.values()]
        return sum(t.nbytes for state in states for t in [*state.values()] if isinstance(t, torch.Tensor))

    def states(self) -> dict[int, dict[str, torch.Tensor]]:
        """What the optimizer keeps for each piece, by the index of its tensor; the tensors themselves, not copies."""
        kept: dict[int, dict[str, torch.Tensor]] = {}
        for slot, parameter in zip(self._slots, self._parameters, strict=True):
            state = self._optimizers[slot.group].state.get(parameter, {})
            tensors = {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
            if tensors:
                kept[slot.tensor] = tensors
        return kept

    def restore(self, states: Mapping[int, Mapping[str, torch.Tensor]]) -> None:
        """Go on from `states`, as `states()` gave them; takes the tensors over."""
        for slot, parameter in zip(self._slots, self._parameters, strict=True):
            if slot.tensor in states:
                self._optimizers[slot.group].state[parameter] = dict(states[slot.tensor])

    def check(self, groups: Sequence[str]) -> list[dict[str, Hyperparameter]]:
        """Hyperparameters that a step with `groups` will use (none: those of the step before).

        Raises `ValueError` for what cannot be used, before anything has changed.
        """
        if not groups or tuple(groups) == self._groups:
            return self._hyperparameters
        if len(groups) != len(self._groups):
            raise ValueError(f"the model has {len(self._groups)} parameter groups, not {len(groups)}")
        wanted = [decode_group(self._name, text) for text in groups]
        for index, (new, old) in enumerate(zip(wanted, self._hyperparameters, strict=True)):
            for key in _STATEFUL:
                if new.get(key) != old.get(key):
                    raise ValueError(f"optimizer `{self._name}`, group {index}: `{key}` cannot change during training")
            if self._name == "RMSprop" and bool(new["momentum"]) != bool(old["momentum"]):
                raise ValueError("optimizer `RMSprop`: `momentum` cannot become or cease to be 0 during training")
        return wanted

    def rebind(self, values: torch.Tensor) -> None:
        """Go on in another arena of current values, which holds the same bytes."""
        for slot, parameter in zip(self._slots, self._parameters, strict=True):
            parameter.data = _view(values, slot)

    def keep(self) -> None:
        """Copy the state, so that the next step can be undone."""
        for optimizer in self._optimizers:
            for parameter, state in optimizer.state.items():
                self._kept[parameter] = _copied(state, self._kept.get(parameter, {}))

    def undo(self) -> None:
        """Go back to the state that was kept last. The values are the caller's: see `rebind`."""
        for optimizer in self._optimizers:
            for parameter in [*optimizer.state]:
                kept = self._kept.get(parameter)
                if kept is None:  # it had none before the step
                    del optimizer.state[parameter]
                else:  # the two change places, so that nothing is allocated in a steady state
                    optimizer.state[parameter], self._kept[parameter] = kept, optimizer.state[parameter]

    def forget_kept(self) -> None:
        """Let go of what `keep` has copied; nothing can be undone any more."""
        self._kept.clear()

    def step(self, groups: Sequence[str], scale: float, absent: frozenset[int]) -> None:
        """One step on the aggregate in place, each group's rate multiplied by `scale`; passes `absent` tensors over.

        The rate is taken from `groups` each time, so that scales never add up.
        """
        self._hyperparameters = self.check(groups)
        self._groups = tuple(groups) or self._groups
        for optimizer, values in zip(self._optimizers, self._hyperparameters, strict=True):
            (group,) = optimizer.param_groups
            group.update(values)
            group["lr"] = float(values["lr"]) * scale  # type: ignore[arg-type]  # a number: `decode_group` checked it
        for slot, parameter, gradient in zip(self._slots, self._parameters, self._gradients, strict=True):
            parameter.grad = None if slot.tensor in absent else gradient
        for optimizer in self._optimizers:
            step_plainly(optimizer)


def _copied(state: Mapping[str, Any], memory: Mapping[str, Any]) -> dict[str, Any]:
    """A copy, where possible in the tensors of `memory`."""
    return {key: _copy(value, memory.get(key)) for key, value in state.items()}


def _copy(value: Any, memory: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    fits = isinstance(memory, torch.Tensor) and (memory.shape, memory.dtype) == (value.shape, value.dtype)
    return memory.copy_(value) if fits else value.clone()


def _view(arena: torch.Tensor, slot: Slot) -> torch.Tensor:
    return elements(arena, slot.dtype, slot.offset, slot.num_elements)


@cache
def _constructor_options(cls: OptimizerClass) -> Mapping[str, object]:
    """Names and defaults of what a class's constructor takes besides the parameters."""
    return MappingProxyType({k: p.default for k, p in inspect.signature(cls).parameters.items() if k != "params"})


def _plain(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else value
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


def _json_object(name: str, text: str) -> dict[str, object]:
    try:
        parsed = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"optimizer `{name}`: a parameter group must be a JSON object: {error}") from error
    if not isinstance(parsed, dict):
        raise ValueError(f"optimizer `{name}`: a parameter group must be a JSON object, not {text[:80]!r}")  # noqa: TRY004 - wire data
    return parsed


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a finite number")


def _checked(name: str, key: str, value: object, default: object) -> Hyperparameter:
    if isinstance(default, tuple):
        if not isinstance(value, list) or len(value) != len(default) or not all(map(_is_number, value)):
            raise ValueError(f"optimizer `{name}`: `{key}` must be a list of {len(default)} numbers, not {value!r}")
        return tuple(value)
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ValueError(f"optimizer `{name}`: `{key}` must be true or false, not {value!r}")  # noqa: TRY004 - wire data
        return value
    if not isinstance(value, int | float) or not _is_number(value):
        raise ValueError(f"optimizer `{name}`: `{key}` must be a number, not {value!r}")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e308
