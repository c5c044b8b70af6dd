"""Keeps the book in step with the API server: a list now and then, and a watch between two lists.

The list is the truth; the watch only brings it sooner: what a watch withholds is seen a minute later, and one that
breaks costs nothing but that. kopf is not used for rules: it watches every kind in the same namespaces, and rules are
looked at in the operator's own alone, whichever namespaces' jobs are served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from heterotrain_operator.errors import ApiError, ApiUnreachableError, verdict
from heterotrain_operator.info.cluster.book import RuleBook
from heterotrain_operator.info.cluster.door import PLURALS, RuleKube
from heterotrain_operator.info.rule_state import RuleKind

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 20.0
"""Longest wait, before jitter, until a list that failed is tried again."""
GONE: Final = 410
"""The version is too old to watch from: no failure, but a reason to list."""


class Follower:
    """Two tasks, one for each kind."""

    def __init__(
        self,
        kube: RuleKube,
        book: RuleBook,
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._kube = kube
        self._book = book
        self._random = random
        self._sleep = sleep
        self._trouble: dict[RuleKind, str] = {}
        self.listed: Final = asyncio.Event()
        """All rules of both kinds are known."""
        self._missing = set(RuleKind)

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            for kind in RuleKind:
                group.create_task(self._follow(kind), name=f"rules of kind {kind}")

    async def _follow(self, kind: RuleKind) -> None:
        failures = 0
        while True:
            try:
                await self._round(kind)
                failures = 0
            except (ApiError, ApiUnreachableError) as error:
                if isinstance(error, ApiError) and error.status == GONE:
                    continue
                failures += 1
                self._tell(kind, error)
                await self._sleep(verdict(error, failures, self._random(), RETRY_SECONDS).delay_seconds)

    async def _round(self, kind: RuleKind) -> None:
        documents, version = await self._kube.list_rules(kind)
        self._trouble.pop(kind, None)
        self._book.listed(kind, documents)
        self._missing.discard(kind)
        if not self._missing:
            self.listed.set()
        async for event, document in self._kube.watch_rules(kind, version):
            if event == "DELETED":
                self._book.gone(kind, document)
            else:
                self._book.saw(kind, document)

    def _tell(self, kind: RuleKind, error: ApiError | ApiUnreachableError) -> None:
        """Once for each kind of trouble: it is tried again for ever."""
        status = error.status if isinstance(error, ApiError) else 0
        match status:
            case 404:
                text = f"the cluster does not know them: install the CRD, kubectl apply -f crds/{PLURALS[kind]}.yaml"
            case 403:
                text = f"the operator may not read them; give its service account the chart's role: {error}"
            case _:
                text = str(error)
        if self._trouble.get(kind) != text:
            logger.warning("Rules of kind %s cannot be read, jobs are served all the same: %s", kind, text)
            self._trouble[kind] = text
