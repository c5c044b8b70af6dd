"""Every mode moves the parameters by each sample as far as BSP does, whatever the optimizer (the scale of a commit).

The policies in virtual time (one worker at a quarter of the others' speed) say which gradients a commit holds, how
stale they are and its scale; a shard's real optimizer takes the steps, on half the square of the parameters.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from heterotrain.ps.optimizer import ShardOptimizer, Slot, check_optimizer, encode_group
from heterotrain.tensors import allocate, elements
from heterotrain_core.simulate import simulate
from heterotrain_core.simulate_times import parse_step_times
from heterotrain_core.simulate_values import Close, SimulatedWorker, Simulation
from heterotrain_core.synchronization import NO_DISCOUNT, Asp, Bsp, Delay, Ssp, Synchronization, describe

GRADIENTS = 1600
MODES = [Ssp(3), Asp(), Delay(0.0, None, NO_DISCOUNT), Delay(0.0, 3, NO_DISCOUNT), Delay(0.25, 3, NO_DISCOUNT)]


def commits(mode: Synchronization) -> list[Close]:
    workers = tuple(SimulatedWorker(f"w{i}", step) for i, step in enumerate(parse_step_times("1,1,1,4")))
    result = simulate(Simulation(workers=workers, synchronization=mode, until_seconds=1700.0, keep_log=True))
    return [entry for entry in result.log if isinstance(entry, Close)]


def way(mode: Synchronization, name: str, **hyperparameters: Any) -> float:
    """The part of the way to the minimum that 1,600 gradients of equal shares go."""
    group = encode_group(name, check_optimizer(name)([torch.zeros(1)], **hyperparameters).param_groups[0])
    arenas = allocate(8), allocate(8)
    value, gradient = (elements(arena, "F64", 0, 1) for arena in arenas)
    optimizer = ShardOptimizer(name, [group], [Slot(0, 0, "F64", 0, 1)], *arenas)
    versions, applied = [value.fill_(1.0).item()], 0
    for commit in commits(mode):
        gradient.fill_(sum(versions[commit.version - tau] for tau in commit.staleness.values()))
        gradient.div_(len(commit.staleness))
        optimizer.step([], commit.scale, frozenset())
        versions.append(value.item())
        applied += len(commit.staleness)
        if applied >= GRADIENTS:
            return 1.0 - versions[-1]
    raise AssertionError(f"only {applied} gradients")


@pytest.mark.parametrize("mode", MODES, ids=describe)
@pytest.mark.parametrize(
    ("name", "hyperparameters"),
    [
        pytest.param("SGD", {"lr": 0.0005, "momentum": 0.9}, id="SGD with momentum"),
        pytest.param("AdamW", {"lr": 0.001, "weight_decay": 0.0}, id="AdamW"),
    ],
)
def test_each_sample_moves_as_far_as_under_bsp(
    mode: Synchronization, name: str, hyperparameters: dict[str, Any]
) -> None:
    under_bsp = way(Bsp(), name, **hyperparameters)

    assert 0.3 < under_bsp < 0.95
    assert way(mode, name, **hyperparameters) == pytest.approx(under_bsp, rel=0.03)
