"""What the job's Secret holds: an authority, and a certificate for each process. Names only; the shell makes the keys.

``ca.key`` is in the Secret so that a later Secret can be signed by the same authority; no pod mounts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from heterotrain_api.contract import CA_FILE, CERTIFICATE_FILE, KEY_FILE
from heterotrain_api.v1alpha1 import HeteroTrainJobSpec
from heterotrain_operator.job.slots import all_slots

OPERATOR: Final = "operator"
"""Name of the operator's own certificate in each job."""

CA_KEY: Final = "ca.key"

MODE: Final = 0o440
"""Of the mounted files: the pod's group reads, which is its fsGroup."""


def certificate_names(spec: HeteroTrainJobSpec, replicas: Mapping[str, int] | None = None) -> tuple[str, ...]:
    """Names in the job that get a certificate; the operator's comes on top. `replicas`: as for `all_slots`."""
    return tuple(slot.name for slot in all_slots(spec, replicas))


def certificate_key(name: str) -> str:
    """Key of a process's certificate in the Secret."""
    return f"{name}.crt"


def private_key(name: str) -> str:
    """Key of a process's private key in the Secret."""
    return f"{name}.key"


def items(name: str) -> list[dict[str, Any]]:
    """What the pod of `name` mounts of the Secret, and as what: its own and nothing else."""
    return [
        {"key": CA_FILE, "path": CA_FILE},
        {"key": certificate_key(name), "path": CERTIFICATE_FILE},
        {"key": private_key(name), "path": KEY_FILE},
    ]
