"""Names of a job's objects, and what they leave for the names that a user chooses."""

from __future__ import annotations

from typing import Final

from heterotrain_api.v1alpha1 import MAX_PARAMETER_SERVERS, MAX_REPLICAS

MAX_LABEL: Final = 63
"""Longest DNS label (RFC 1123): host names, and so the names of pods and services, must fit."""

MAX_ATTEMPT: Final = 9999
"""Highest attempt of one pod that a name has room for."""

PS_GROUP: Final = "ps"
"""Stands for the group in the names of parameter servers; no worker group may be called so."""


def pod_name(job: str, group: str, index: int, attempt: int) -> str:
    """Name of a pod: ``fashion-cpu-0-1``. For a parameter server the group is `PS_GROUP`."""
    return f"{job}-{group}-{index}-{attempt}"


NAME_BUDGET: Final = MAX_LABEL - len(pod_name("", "", max(MAX_REPLICAS, MAX_PARAMETER_SERVERS) - 1, MAX_ATTEMPT))
"""Characters that a job's name and the name of one of its groups may have together."""
