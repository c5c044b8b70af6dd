"""The configuration of a job whose groups were scaled while it ran: what its next term begins with. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from heterotrain_api.contract import worker_name
from heterotrain_api.trainer_config import TrainerConfig
from heterotrain_core.plan import reachable_total
from heterotrain_core.shares import start_shares
from heterotrain_core.types import Bounds


def scaled_config(config: TrainerConfig, replicas: Mapping[str, int]) -> TrainerConfig:
    """A configuration with so many workers in these groups, with equal start shares.

    As large as their bounds allow, if they do not allow the global batch. Raises `ValueError` if even the smallest
    shares exceed it.
    """
    if unknown := sorted(set(replicas) - {w.group for w in config.workers}):
        raise ValueError(f"replicas: unknown groups {', '.join(unknown)}")
    counts = {**Counter(w.group for w in config.workers), **replicas}
    first = {w.group: w for w in reversed(config.workers)}
    workers = [
        first[group].model_copy(update={"name": worker_name(group, index)})
        for group, count in counts.items()
        for index in range(count)
    ]
    bounds = [Bounds(w.minimum, w.maximum) for w in workers]
    total = reachable_total(bounds, config.global_batch_size, config.batch_grain) or config.global_batch_size
    shares = start_shares(
        [None] * len(workers),
        [b.minimum for b in bounds],
        [b.maximum for b in bounds],
        total,
        config.batch_grain,
        names=[w.name for w in workers],
    )
    scaled = tuple(w.model_copy(update={"share": share}) for w, share in zip(workers, shares, strict=True))
    return config.model_copy(update={"workers": scaled})
