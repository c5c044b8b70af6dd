"""What every request passes before any route: how many at a time, who calls, and one shape for what goes wrong."""

from __future__ import annotations

import logging
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from heterotrain_operator.rest.access import (
    Access,
    AccessUnavailableError,
    UnauthenticatedError,
    bearer_token,
)
from heterotrain_operator.rest.errors import Code, RestError

logger = logging.getLogger(__name__)

MAX_REQUESTS: Final = 128
"""At a time, watch streams included."""
GUARDED: Final = "/v1"


class Guard:
    """Outermost of the app's layers. Puts the `Caller` into ``scope["state"]``."""

    def __init__(self, app: ASGIApp, access: Access, most: int = MAX_REQUESTS) -> None:
        self._app = app
        self._access = access
        self._most = most
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            raise RuntimeError(f"nothing but HTTP is served here, not {scope['type']}")
        self._running += 1
        try:
            await self._admit(scope)
            await self._app(scope, receive, send)
        except RestError as error:
            await error.response()(scope, receive, send)
        except Exception:  # the app has answered already, if it still could (`defect`)
            logger.exception("A request failed in a way that was not foreseen: %s %s", scope["method"], scope["path"])
        finally:
            self._running -= 1

    async def _admit(self, scope: Scope) -> None:
        if self._running > self._most:
            raise RestError(Code.TOO_MANY, f"more than {self._most} requests at a time: try again soon")
        path = scope["path"]
        if path != GUARDED and not path.startswith(f"{GUARDED}/"):
            return
        given = Headers(scope=scope).getlist("authorization")
        token = bearer_token(given[0]) if len(given) == 1 else None  # of two, others might have believed the other one
        try:
            scope.setdefault("state", {})["caller"] = await self._access.identify(token)
            scope["state"]["token"] = token
        except UnauthenticatedError as error:
            raise RestError(Code.UNAUTHENTICATED, str(error)) from error
        except AccessUnavailableError as error:
            raise RestError(Code.UNAVAILABLE, str(error)) from error
