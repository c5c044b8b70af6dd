"""Writes how rules do into their statuses: what people must know at once, figures now and then, nothing twice."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from heterotrain_api.info_fields import RuleStatus
from heterotrain_operator.errors import ApiError, ApiUnreachableError
from heterotrain_operator.info.cluster.book import Entry, RuleBook
from heterotrain_operator.info.cluster.door import RuleKube
from heterotrain_operator.info.rule_state import RuleKind
from heterotrain_operator.info.rule_status import Urgency, is_due, status_of, urgency

logger = logging.getLogger(__name__)

PASS_SECONDS: Final = 2.0
WRITES_PER_PASS: Final = 10
"""So that a thousand rules that fail together do not flood the API server."""
RETRY_PASSES: Final = 5
"""Passes left out after the API server did not answer."""
FIELDS: Final = tuple(field.alias or name for name, field in RuleStatus.model_fields.items())

Due = tuple[Urgency, float, RuleKind, str, Entry, RuleStatus]


class StatusWriter:
    """One task."""

    def __init__(
        self,
        kube: RuleKube,
        book: RuleBook,
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._kube = kube
        self._book = book
        self._now = now
        self._sleep = sleep
        self._began = now()
        self._written: dict[str, float] = {}
        """When, by the rule's UID."""
        self._trouble = ""

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._sleep(PASS_SECONDS)
            if not await self.write():
                await self._sleep(PASS_SECONDS * RETRY_PASSES)

    async def write(self) -> bool:
        """One pass; false if the API server would not take one."""
        due = self._due()
        for _, _, kind, name, entry, status in due[:WRITES_PER_PASS]:
            try:
                await self._write(kind, name, entry, status)
            except (ApiError, ApiUnreachableError) as error:
                if str(error) != self._trouble:
                    self._trouble = str(error)
                    logger.warning("The status of rule %s/%s cannot be written: %s", kind, name, error)
                return False
        self._trouble = ""
        return True

    def _due(self) -> list[Due]:
        """Statuses to write, the most urgent first, then those that wait longest."""
        now = self._now()
        found: list[Due] = []
        for kind, name, entry in self._book.entries():
            old = entry.written
            new = status_of(entry.state, now, old)
            urgent, since = urgency(old, new), now - self._written.get(entry.uid, self._began)
            if is_due(urgent, since):
                found.append((urgent, since, kind, name, entry, new))
        return sorted(found, key=lambda item: item[:2], reverse=True)

    async def _write(self, kind: RuleKind, name: str, entry: Entry, status: RuleStatus) -> None:
        document = status.to_document()
        # What is not set must go: a merge keeps what it does not name.
        body: dict[str, Any] = {field: document.get(field) for field in FIELDS}
        try:
            answer = await self._kube.write_status(kind, name, entry.uid, body)
        except ApiError as error:
            if error.status in (404, 409):  # gone, or another one of the name: the watch will say so
                return
            raise
        self._written[entry.uid] = self._now()
        self._book.saw(kind, answer)
        live = {other.uid for _, _, other in self._book.entries()}
        self._written = {uid: time for uid, time in self._written.items() if uid in live}
