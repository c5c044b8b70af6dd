"""Puts the app together: routes, guard, one shape for errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from heterotrain_operator.info.loop import InfoService
from heterotrain_operator.rest.access import Access
from heterotrain_operator.rest.desk import RuleDesk
from heterotrain_operator.rest.encoding import JsonResponse
from heterotrain_operator.rest.guard import Guard


@dataclass(slots=True)
class AppState:
    """What the server may ask the app for."""

    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server ends: watch streams end then."""


class RestApp:
    """The ASGI app."""

    def __init__(self, routes: FastAPI, access: Access) -> None:
        self.state = AppState()
        self.routes = routes
        self._guard = Guard(routes, access)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        await self._guard(scope, receive, send)


def create_app(
    service: InfoService, access: Access, rules: RuleDesk, *, now: Callable[[], float] = time.time
) -> RestApp:
    """The API over a service; to be used on the service's event loop. `now`: time of day, s."""
    routes = FastAPI(title="Heterotrain information", openapi_url=None, redirect_slashes=False)

    @routes.get("/healthz")
    async def health() -> JsonResponse:
        return JsonResponse({"status": "ok"})

    return RestApp(routes, access)
