"""What is compared in the lab, and the manifests of our own runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from heterotrain_core.lab.setups import SetUp
from heterotrain_core.lab.task import WORKER_GROUP, Kind
from heterotrain_core.shares import allocate

STALENESS_BOUND: Final = 3
"""Of SSP, in iterations: the product's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to train."""

    name: str
    summary: str
    kind: Kind
    static: bool = False
    """DDP: shares in proportion to the measured speeds instead of equal ones."""
    mode: str = "BSP"
    adapted: bool = False


def _by_name(*variants: Variant) -> Mapping[str, Variant]:
    return MappingProxyType({variant.name: variant for variant in variants})


VARIANTS: Final = _by_name(
    Variant(name="ddp-equal", summary="PyTorch DDP (gloo), equal shares", kind=Kind.DDP),
    Variant(
        name="ddp-static",
        summary="PyTorch DDP (gloo), shares by hand from the measured speeds, weighted losses",
        kind=Kind.DDP,
        static=True,
    ),
    Variant(name="bsp-equal", summary="BSP, equal shares", kind=Kind.JOB),
    Variant(name="asp", summary="ASP, equal shares", kind=Kind.JOB, mode="ASP"),
    Variant(name="ssp", summary=f"SSP, bound {STALENESS_BOUND}, equal shares", kind=Kind.JOB, mode="SSP"),
    Variant(name="adaptation", summary="BSP, shares adapted from equal ones", kind=Kind.JOB, adapted=True),
    Variant(
        name="adaptation-ssp",
        summary=f"SSP, bound {STALENESS_BOUND}, shares adapted from equal ones",
        kind=Kind.JOB,
        mode="SSP",
        adapted=True,
    ),
)


class VariantError(ValueError):
    """There is no such variant; the text names those that there are."""


def parse_variants(text: str | None) -> tuple[Variant, ...]:
    """Read ``ddp-equal,adaptation``; `None` is all. Raises `VariantError`."""
    names = list(VARIANTS) if text is None else [part.strip() for part in text.split(",")]
    for name in names:
        if name not in VARIANTS:
            raise VariantError(f"--runs: there is no run {name!r}; there are: {', '.join(VARIANTS)}")
    return tuple(VARIANTS[name] for name in dict.fromkeys(names))


def equal_shares(batch: int, num_workers: int) -> tuple[int, ...]:
    """As equal as whole samples can be; the first ones take what is left over."""
    least, more = divmod(batch, num_workers)
    return tuple(least + (worker < more) for worker in range(num_workers))


def proportional_shares(batch: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """What a careful person would set by hand: least time of the slowest, for speeds in samples/s and no fixed cost."""
    count = len(speeds)
    shares = allocate([0.0] * count, [1 / speed for speed in speeds], batch, [1] * count, [batch] * count, 1)
    return tuple(shares)


def ddp_shares(variant: Variant, batch: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Shares of a DDP run. `speeds`: measured, samples/s."""
    return proportional_shares(batch, speeds) if variant.static else equal_shares(batch, len(speeds))


def manifest(
    variant: Variant, setup: SetUp, *, batch: int, seed: int, seconds: int, command: Sequence[str]
) -> dict[str, Any]:
    """The job of one of our runs; it ends after `seconds` of training.

    Whatever the lab does not compare is left as users get it. Shares begin equal: nobody is told the speeds.
    """
    synchronization: dict[str, Any] = {"mode": variant.mode}
    if variant.mode == "SSP":
        synchronization["stalenessBound"] = STALENESS_BOUND
    return {
        "apiVersion": "heterotrain.io/v1alpha1",
        "kind": "HeteroTrainJob",
        "metadata": {"name": f"lab-{setup.name}-{variant.name}"},
        "spec": {
            "image": "heterotrain/lab",
            "command": list(command),
            "globalBatchSize": batch,
            "seed": seed,
            "parameterServers": {"replicas": 1},
            "workers": [{"name": WORKER_GROUP, "replicas": len(setup.ratios)}],
            "synchronization": synchronization,
            "adaptation": {"mode": "Apply" if variant.adapted else "Off"},
            "stop": {"seconds": seconds},
        },
    }
