"""Puts the app together: routes, guard, one shape for errors."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from heterotrain_operator.info.loop import InfoService
from heterotrain_operator.rest import event_routes, reading, rule_routes, working
from heterotrain_operator.rest.access import Access
from heterotrain_operator.rest.bodies import faults_of
from heterotrain_operator.rest.context import World
from heterotrain_operator.rest.description import openapi_document, schema_document
from heterotrain_operator.rest.desk import RuleDesk
from heterotrain_operator.rest.encoding import JsonResponse
from heterotrain_operator.rest.errors import STATUSES, Code, RestError, invalid
from heterotrain_operator.rest.guard import Guard
from heterotrain_operator.rest.models import Health
from heterotrain_operator.rest.operations import errors

own: Final = APIRouter(tags=["about the API"])


@own.get("/healthz", response_model=Health)
async def health() -> JsonResponse:
    """Say that the server answers. Needs no token."""
    return JsonResponse({"status": "ok"})


@own.get("/v1/schema", responses=errors(), response_model=dict[str, Any])
async def schema() -> JsonResponse:
    """Describe what rules are made of: kinds of entities, operators with their parameters, JSON Schemas, limits."""
    return JsonResponse(schema_document())


ROUTERS: Final = (reading.router, event_routes.router, rule_routes.router, working.router, own)


class RestApp:
    """The ASGI app. `state` is what the server asks it for."""

    def __init__(self, routes: FastAPI, world: World) -> None:
        self.state: Final = world
        self.routes: Final = routes
        self._guard = Guard(routes, world.access)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        await self._guard(scope, receive, send)


def create_app(
    service: InfoService, access: Access, rules: RuleDesk, *, now: Callable[[], float] = time.time
) -> RestApp:
    """The API over a service; to be used on the service's event loop. `now`: time of day, s."""
    routes = make_routes()
    world = World(service, access, rules, now)
    routes.state.world = world
    return RestApp(routes, world)


def make_routes() -> FastAPI:
    """All routes, and their OpenAPI document at ``/openapi.json``; no pages that load programs from elsewhere."""
    routes = FastAPI(openapi_url=None, redirect_slashes=False)
    for router in ROUTERS:
        routes.include_router(router)

    @cache
    def document() -> dict[str, Any]:
        return openapi_document(routes)

    @routes.get("/openapi.json", include_in_schema=False)
    async def openapi() -> JsonResponse:
        return JsonResponse(document())

    routes.add_exception_handler(RestError, _told)
    routes.add_exception_handler(RequestValidationError, _unfit)
    routes.add_exception_handler(HTTPException, _http)
    routes.add_exception_handler(Exception, _defect)
    return routes


async def _told(_: Request, error: Exception) -> Response:
    assert isinstance(error, RestError)  # noqa: S101  # registered for this class
    return error.response()


async def _unfit(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101  # registered for this class
    return invalid(faults_of(error.errors(), skip=1)).response()


async def _defect(_: Request, error: Exception) -> Response:
    """The guard logs the error, which goes on to it."""
    return RestError(Code.INTERNAL, "this server has a defect; its log says more").response()


async def _http(request: Request, error: Exception) -> Response:
    """What the router itself answers: no such path, no such method."""
    assert isinstance(error, HTTPException)  # noqa: S101  # registered for this class
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = ", ".join(_methods(request))
        told = RestError(Code.METHOD_NOT_ALLOWED, f"only {allowed} is possible here", headers={"Allow": allowed})
    elif error.status_code == HTTPStatus.NOT_FOUND:
        told = RestError(Code.NOT_FOUND, "there is no such path; GET /openapi.json lists them")
    else:
        codes = {status: code for code, status in STATUSES.items()}
        told = RestError(codes.get(HTTPStatus(error.status_code), Code.MALFORMED), str(error.detail))
    return told.response()


def _methods(request: Request) -> list[str]:
    """Of all routes of the path, not only of the first."""
    found: set[str] = set()
    for route in (route for router in (*ROUTERS, request.app.router) for route in router.routes):
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return sorted(found)
