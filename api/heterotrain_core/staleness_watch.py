"""Watches how stale gradients really are, and warns once it meets momentum (algorithms.md E). Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from heterotrain_core.staleness import momentum_advice
from heterotrain_core.types import Commit

ENOUGH: Final = 20
"""Stale gradients before a warning: the first few, while workers fall out of step, say little."""


class StalenessWatch:
    """Fed with every commit, O(its contributions). A warning comes again only when staleness has doubled."""

    def __init__(self) -> None:
        self._stale = 0
        self._largest = 0
        self._warned = 0

    def note(self, commit: Commit) -> None:
        """A commit was decided."""
        for contribution in commit.contributions:
            tau = commit.version - contribution.iteration
            if tau > 0:
                self._stale += 1
                self._largest = max(self._largest, tau)

    def advice(self, groups: Sequence[str]) -> str | None:
        """A new warning in words for these hyperparameters (a JSON object a parameter group), if there is reason."""
        if self._stale < ENOUGH or self._largest < max(1, 2 * self._warned):
            return None
        advice = momentum_advice(self._largest, largest_momentum(groups))
        if advice is not None:
            self._warned = self._largest
        return advice


def largest_momentum(groups: Sequence[str]) -> float:
    """Largest ``momentum`` of any group; 0 if the optimizer has none. Adam's ``betas`` are no momentum of this kind."""
    values = [json.loads(group).get("momentum", 0.0) for group in groups]
    return max((float(v) for v in values if isinstance(v, int | float)), default=0.0)
