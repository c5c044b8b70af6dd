"""What a route works with: the service, who calls, and which entities the caller may see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Final

from fastapi import Depends, Request

from heterotrain_core.info.values import Entity
from heterotrain_operator.info.loop import InfoService
from heterotrain_operator.info.store import Store
from heterotrain_operator.rest.access import Access, AccessUnavailableError, Ask, Caller, Subject, Verb
from heterotrain_operator.rest.desk import RuleDesk
from heterotrain_operator.rest.errors import Code, RestError, invalid_field

MAX_WATCHERS: Final = 64
MAX_DRYRUNS: Final = 2
"""At a time; others wait."""
_QUESTIONS_AT_A_TIME: Final = 16

Sees = Callable[[Entity], bool]


@dataclass(frozen=True, slots=True)
class World:
    """Everything that one app is about."""

    service: InfoService
    access: Access
    rules: RuleDesk
    now: Callable[[], float]
    """Time of day, s."""
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server ends."""
    watchers: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_WATCHERS))
    dryruns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_DRYRUNS))

    @property
    def store(self) -> Store:
        """The service's series."""
        return self.service.engine.store


@dataclass(frozen=True, slots=True)
class Context:
    """One request's."""

    world: World
    caller: Caller
    token: str | None

    async def demand(self, ask: Ask) -> None:
        """Raises `RestError` (403) if the caller may not."""
        if not await self._allows(ask):
            where = f" in namespace {ask.namespace}" if ask.namespace else ""
            what = f"{ask.verb} {ask.subject}.heterotrain.io{where}"
            raise RestError(Code.FORBIDDEN, f"{self.caller.name} may not {what}: ask for a role that allows it")

    async def sees(self) -> Sees:
        """Which entities the caller may read: those of some namespaces, those outside all, or everything."""
        outside = await self._allows(Ask(Verb.GET, Subject.CLUSTER_INFORMATION))
        if await self._allows(Ask(Verb.GET, Subject.INFORMATION)):
            return _everything if outside else _in_namespaces
        allowed = await self._namespaces({entity.namespace for entity in self.world.store.names()} - {None})

        def see(entity: Entity) -> bool:
            namespace = entity.namespace
            return outside if namespace is None else namespace in allowed

        return see

    async def _namespaces(self, namespaces: Iterable[str | None]) -> frozenset[str]:
        few = asyncio.Semaphore(_QUESTIONS_AT_A_TIME)

        async def allowed(namespace: str) -> bool:
            async with few:
                return await self._allows(Ask(Verb.GET, Subject.INFORMATION, namespace))

        names = [name for name in namespaces if name is not None]
        answers = await asyncio.gather(*map(allowed, names))
        return frozenset(name for name, answer in zip(names, answers, strict=True) if answer)

    async def _allows(self, ask: Ask) -> bool:
        try:
            return await self.world.access.allows(self.caller, ask)
        except AccessUnavailableError as error:
            raise RestError(Code.UNAVAILABLE, str(error)) from error


def _everything(_: Entity) -> bool:
    return True


def _in_namespaces(entity: Entity) -> bool:
    return entity.namespace is not None


SEVERAL: Final = frozenset(["metric", "label", "what"])
"""Parameters that may be given more than once."""


async def _context(request: Request) -> Context:
    given = [name for name, _ in request.query_params.multi_items()]
    for name in dict.fromkeys(given):
        if name not in SEVERAL and given.count(name) > 1:
            raise invalid_field(name, "is there more than once: give it once")
    return Context(request.app.state.world, request.state.caller, request.state.token)


Here = Annotated[Context, Depends(_context)]
