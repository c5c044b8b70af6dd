"""Routes for rules: read, create, change, delete, by kind; with generations, so that no change is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from heterotrain_api.validation import InvalidManifestError
from heterotrain_operator.info.rule_state import KINDS, RuleKind, RuleState
from heterotrain_operator.info.rule_status import status_of
from heterotrain_operator.rest.access import Verb, about_rules
from heterotrain_operator.rest.bodies import read_json
from heterotrain_operator.rest.context import Context, Here
from heterotrain_operator.rest.desk import (
    DeskUnavailableError,
    GenerationConflictError,
    NoSuchRuleError,
    RuleExistsError,
    RuleView,
)
from heterotrain_operator.rest.encoding import JsonResponse
from heterotrain_operator.rest.errors import Code, RestError, invalid, invalid_field
from heterotrain_operator.rest.models import DeleteParameters, Page, PutParameters, RuleDocument, RuleName, Rules
from heterotrain_operator.rest.operations import errors, rule_body
from heterotrain_operator.rest.reading import page_of
from heterotrain_operator.rest.rule_bodies import given_rule

router: Final = APIRouter(prefix="/v1/rules", tags=["rules"])


async def _list(kind: RuleKind, query: Page, here: Context) -> JsonResponse:
    await here.demand(about_rules(Verb.GET, kind))
    states = _states(here)
    views = here.world.rules.rules(kind)
    return page_of(views, query, lambda view: str(view.name), lambda view: _document(view, states, here), "rules")


async def _read(kind: RuleKind, name: str, here: Context) -> JsonResponse:
    await here.demand(about_rules(Verb.GET, kind))
    view = here.world.rules.get(kind, name)
    if view is None:
        raise _no_rule(kind, name)
    return _answer(view, here)


async def _create(kind: RuleKind, name: str, request: Request, here: Context) -> JsonResponse:
    await here.demand(about_rules(Verb.CREATE, kind))
    given = given_rule(kind, name, await read_json(request))
    if given.generation is not None:
        raise invalid_field("generation", "must be left out: a new rule gets its own")
    try:
        view = await here.world.rules.create(kind, name, given.spec)
    except RuleExistsError as error:
        message = f"there is a {KINDS[kind]} {name} already: change it by PUT, with its generation"
        raise RestError(Code.EXISTS, message) from error
    except InvalidManifestError as error:
        raise invalid(error.faults) from error
    except DeskUnavailableError as error:
        raise RestError(Code.UNAVAILABLE, str(error)) from error
    return _answer(view, here, 201, {"Location": f"/v1/rules/{kind}/{name}"})


async def _replace(kind: RuleKind, name: str, query: PutParameters, request: Request, here: Context) -> JsonResponse:
    await here.demand(about_rules(Verb.UPDATE, kind))
    given = given_rule(kind, name, await read_json(request))
    generations = {given.generation, query.generation} - {None}
    if len(generations) > 1:
        raise invalid_field("generation", "differs between the query and the body: leave one out")
    generation = next(iter(generations), None)
    try:
        if generation is None:
            raise _conflict(kind, name, here)
        view = await here.world.rules.replace(kind, name, given.spec, generation)
    except NoSuchRuleError as error:
        raise _no_rule(kind, name) from error
    except GenerationConflictError as error:
        raise RestError(Code.GENERATION_CONFLICT, f"{error}, not {generation}: read it again") from error
    except InvalidManifestError as error:
        raise invalid(error.faults) from error
    except DeskUnavailableError as error:
        raise RestError(Code.UNAVAILABLE, str(error)) from error
    return _answer(view, here)


async def _delete(kind: RuleKind, name: str, query: DeleteParameters, here: Context) -> Response:
    await here.demand(about_rules(Verb.DELETE, kind))
    try:
        await here.world.rules.delete(kind, name, query.generation)
    except NoSuchRuleError as error:
        raise _no_rule(kind, name) from error
    except GenerationConflictError as error:
        raise RestError(Code.GENERATION_CONFLICT, f"{error}, not {query.generation}: read it again") from error
    except DeskUnavailableError as error:
        raise RestError(Code.UNAVAILABLE, str(error)) from error
    return Response(status_code=204)


def _conflict(kind: RuleKind, name: str, here: Context) -> RestError:
    view = here.world.rules.get(kind, name)
    if view is None:
        return _no_rule(kind, name)
    return RestError(Code.GENERATION_CONFLICT, f"say which generation you change: the present one is {view.generation}")


def _no_rule(kind: RuleKind, name: str) -> RestError:
    return RestError(Code.NOT_FOUND, f"there is no {KINDS[kind]} {name}; GET /v1/rules/{kind} lists what there is")


def _states(here: Context) -> Mapping[tuple[RuleKind, str], RuleState]:
    return {(state.kind, state.name): state for state in here.world.service.states()}


def _answer(view: RuleView, here: Context, status: int = 200, headers: Mapping[str, str] | None = None) -> JsonResponse:
    return JsonResponse(_document(view, _states(here), here), status, headers)


def _document(view: RuleView, states: Mapping[tuple[RuleKind, str], RuleState], here: Context) -> dict[str, Any]:
    state = states.get((view.kind, view.name)) or RuleState(view.kind, view.name, 0)
    return {
        "kind": KINDS[view.kind],
        "name": view.name,
        "generation": view.generation,
        "spec": dict(view.spec),
        "status": status_of(state, here.world.now()).to_document(),
    }


@router.get("/collect", response_model=Rules, responses=errors())
async def list_collection_rules(query: Annotated[Page, Query()], here: Here) -> JsonResponse:
    """List the collection rules: what is gathered from where."""
    return await _list(RuleKind.COLLECT, query, here)


@router.get("/process", response_model=Rules, responses=errors())
async def list_processing_rules(query: Annotated[Page, Query()], here: Here) -> JsonResponse:
    """List the processing rules: values made from values."""
    return await _list(RuleKind.PROCESS, query, here)


@router.get("/collect/{name}", response_model=RuleDocument, responses=errors(Code.NOT_FOUND))
async def read_collection_rule(name: RuleName, here: Here) -> JsonResponse:
    """Read a collection rule."""
    return await _read(RuleKind.COLLECT, name, here)


@router.get("/process/{name}", response_model=RuleDocument, responses=errors(Code.NOT_FOUND))
async def read_processing_rule(name: RuleName, here: Here) -> JsonResponse:
    """Read a processing rule."""
    return await _read(RuleKind.PROCESS, name, here)


@router.post(
    "/collect/{name}",
    status_code=201,
    response_model=RuleDocument,
    responses=errors(Code.EXISTS, body=True),
    openapi_extra=rule_body(RuleKind.COLLECT),
)
async def create_collection_rule(name: RuleName, request: Request, here: Here) -> JsonResponse:
    """Create a collection rule. It is in force soon after."""
    return await _create(RuleKind.COLLECT, name, request, here)


@router.post(
    "/process/{name}",
    status_code=201,
    response_model=RuleDocument,
    responses=errors(Code.EXISTS, body=True),
    openapi_extra=rule_body(RuleKind.PROCESS),
)
async def create_processing_rule(name: RuleName, request: Request, here: Here) -> JsonResponse:
    """Create a processing rule. A ring of rules that feed each other is refused."""
    return await _create(RuleKind.PROCESS, name, request, here)


@router.put(
    "/collect/{name}",
    response_model=RuleDocument,
    responses=errors(Code.NOT_FOUND, Code.GENERATION_CONFLICT, body=True),
    openapi_extra=rule_body(RuleKind.COLLECT),
)
async def replace_collection_rule(
    name: RuleName, query: Annotated[PutParameters, Query()], request: Request, here: Here
) -> JsonResponse:
    """Change a collection rule that still has the generation given."""
    return await _replace(RuleKind.COLLECT, name, query, request, here)


@router.put(
    "/process/{name}",
    response_model=RuleDocument,
    responses=errors(Code.NOT_FOUND, Code.GENERATION_CONFLICT, body=True),
    openapi_extra=rule_body(RuleKind.PROCESS),
)
async def replace_processing_rule(
    name: RuleName, query: Annotated[PutParameters, Query()], request: Request, here: Here
) -> JsonResponse:
    """Change a processing rule that still has the generation given. Its memory begins anew."""
    return await _replace(RuleKind.PROCESS, name, query, request, here)


@router.delete("/collect/{name}", status_code=204, responses=errors(Code.NOT_FOUND, Code.GENERATION_CONFLICT))
async def delete_collection_rule(name: RuleName, query: Annotated[DeleteParameters, Query()], here: Here) -> Response:
    """Delete a collection rule. Its series stop; their past stays."""
    return await _delete(RuleKind.COLLECT, name, query, here)


@router.delete("/process/{name}", status_code=204, responses=errors(Code.NOT_FOUND, Code.GENERATION_CONFLICT))
async def delete_processing_rule(name: RuleName, query: Annotated[DeleteParameters, Query()], here: Here) -> Response:
    """Delete a processing rule. Its series stop; their past stays."""
    return await _delete(RuleKind.PROCESS, name, query, here)
