"""Routes that read: entities, metrics, samples, newest values."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query

from heterotrain_core.info.values import ABSENT, Entity
from heterotrain_operator.info.store import EntityInfo, Reading
from heterotrain_operator.rest.access import Verb, about
from heterotrain_operator.rest.context import Context, Here
from heterotrain_operator.rest.cursors import page_cursor, page_key
from heterotrain_operator.rest.encoding import JsonResponse, number
from heterotrain_operator.rest.errors import Code, RestError, invalid_field
from heterotrain_operator.rest.models import (
    Entities,
    EntityDocument,
    EntityParameters,
    KindName,
    Latest,
    LatestParameters,
    Metrics,
    Page,
    RestOfName,
    SampleParameters,
    Samples,
    SeriesParameters,
)
from heterotrain_operator.rest.operations import errors

router: Final = APIRouter(prefix="/v1", tags=["information"])

VALUES_AT_A_TIME: Final = 200
SPANS_AT_A_TIME: Final = 10
"""Series whose newest value, or past, is read before others have the event loop: for a millisecond or a few."""


def wanted_labels(given: Sequence[str]) -> dict[str, str]:
    """Globs of labels by name, of ``name=glob`` each. Raises `RestError` for a name that is there twice."""
    wanted: dict[str, str] = {}
    for text in given:
        name, _, glob = text.partition("=")
        if name in wanted:
            raise invalid_field("label", f"names {name} twice: write {name}=a|b for either")
        wanted[name] = glob
    return wanted


def page_of(
    items: Sequence[Any],
    query: Page,
    name: Callable[[Any], str],
    document: Callable[[Any], Mapping[str, Any]],
    key: str,
) -> JsonResponse:
    """One page of a list that is in the order of its names."""
    asked = query.model_dump()
    after = page_key(asked, query.cursor, (str,))
    rest = [item for item in items if after is None or name(item) > str(after[0])]
    page = rest[: query.limit]
    following = page_cursor(asked, (name(page[-1]),)) if len(rest) > len(page) else None
    return JsonResponse({key: [document(item) for item in page], "next": following})


@router.get("/entities", response_model=Entities, responses=errors())
async def list_entities(query: Annotated[EntityParameters, Query()], here: Here) -> JsonResponse:
    """List what there is information about."""
    sees = await here.sees()
    found = here.world.store.entities(query.entity, wanted_labels(query.label))
    seen = [info for info in found if query.means(info.entity) and sees(info.entity)]
    return page_of(seen, query, lambda info: str(info.entity), _entity_document, "entities")


@router.get("/entities/{kind}/{name:path}", response_model=EntityDocument, responses=errors(Code.NOT_FOUND))
async def read_entity(kind: KindName, name: RestOfName, here: Here) -> JsonResponse:
    """Read one entity: its labels and metrics."""
    try:
        entity = Entity(f"{kind}/{name}")
    except ValueError as error:
        raise RestError(Code.NOT_FOUND, str(error)) from error
    await here.demand(about(Verb.GET, entity))
    found = here.world.store.entities(entity)
    if not found:
        raise RestError(Code.NOT_FOUND, f"nothing is known of {entity}; GET /v1/entities lists what there is")
    return JsonResponse(_entity_document(found[0]))


def _entity_document(info: EntityInfo) -> dict[str, Any]:
    return {
        "entity": info.entity,
        "kind": info.entity.kind,
        "name": info.entity.name,
        "labels": dict(info.labels),
        "metrics": list(info.metrics),
    }


@router.get("/metrics", response_model=Metrics, responses=errors())
async def list_metrics(query: Annotated[Page, Query()], here: Here) -> JsonResponse:
    """List the metrics that rules declare or that have samples."""
    documents = [
        {
            "metric": metric.name,
            "type": metric.type.value,
            "unit": metric.unit,
            "ttl": metric.ttl,
            "description": metric.description,
        }
        for metric in here.world.store.metrics()
    ]
    return page_of(documents, query, lambda document: str(document["metric"]), dict, "metrics")


@router.get("/latest", response_model=Latest, responses=errors())
async def list_latest(query: Annotated[LatestParameters, Query()], here: Here) -> JsonResponse:
    """List the newest values. A value that is older than its ttl is absent: it is left out."""
    asked = query.model_dump()
    after = page_key(asked, query.cursor, (str, str))
    read = _Series(here, query, await here.sees(), None if after is None else (str(after[0]), str(after[1])))
    now = here.world.now()
    samples: list[dict[str, Any]] = []
    for place, (entity, metric) in enumerate(read, start=1):
        if place % VALUES_AT_A_TIME == 0:
            await asyncio.sleep(0)
        reading = here.world.store.get(entity, metric, now)
        if reading is None or (reading.value is ABSENT and not query.absent):
            continue
        if len(samples) == query.limit:
            last = samples[-1]
            return JsonResponse({"samples": samples, "next": page_cursor(asked, (last["entity"], last["metric"]))})
        samples.append(latest_document(reading))
    return JsonResponse({"samples": samples, "next": None})


def latest_document(reading: Reading) -> dict[str, Any]:
    """JSON object of a newest value."""
    there = reading.value is not ABSENT
    return {
        "entity": reading.entity,
        "metric": reading.metric,
        "time": number(reading.time) if reading.time > float("-inf") else None,
        "value": number(reading.value),
        "expires": number(reading.expires) if there else None,
    }


@router.get("/samples", response_model=Samples, responses=errors())
async def list_samples(query: Annotated[SampleParameters, Query()], here: Here) -> JsonResponse:
    """List the samples of a time span, as they came or reduced to one for each step."""
    if query.agg is not None and query.step is None:
        raise invalid_field("agg", "must be given with step: say over how many seconds")
    if query.from_ is not None and query.to is not None and query.from_ > query.to:
        raise invalid_field("from", "must be at most to: give the older time as from")
    asked = query.model_dump()
    cursor = page_key(asked, query.cursor, (str, str, float))
    after = None if cursor is None else (str(cursor[0]), str(cursor[1]), float(cursor[2]))
    begin = None if after is None else (after[0], "")  # with the series that the page before ended in
    samples: list[dict[str, Any]] = []
    for place, (entity, metric) in enumerate(_Series(here, query, await here.sees(), begin), start=1):
        if place % SPANS_AT_A_TIME == 0:
            await asyncio.sleep(0)
        for time, value in _span(here, query, entity, metric):
            if after is not None and (entity, metric, time) <= after:
                continue
            if len(samples) == query.limit:
                last = samples[-1]
                following = page_cursor(asked, (last["entity"], last["metric"], float(last["time"])))
                return JsonResponse({"samples": samples, "next": following})
            samples.append({"entity": entity, "metric": metric, "time": time, "value": number(value)})
    return JsonResponse({"samples": samples, "next": None})


def _span(here: Context, query: SampleParameters, entity: Entity, metric: str) -> list[tuple[float, float | str]]:
    try:
        return here.world.store.span(
            entity,
            metric,
            -math.inf if query.from_ is None else query.from_,
            math.inf if query.to is None else query.to,
            step=query.step,
            aggregate=query.agg or "last",
        )
    except ValueError as error:
        raise invalid_field("agg", f"{error}; {metric} of {entity} has words") from error


class _Series:
    """The series of a query that a caller may see, in order, after a place; read from the store some at a time."""

    CHUNK: Final = 500

    def __init__(
        self, here: Context, query: SeriesParameters, sees: Callable[[Entity], bool], after: tuple[str, str] | None
    ) -> None:
        self._here = here
        self._query = query
        self._sees = sees
        self._labels = wanted_labels(query.label)
        self._after = after
        self._waiting: list[tuple[Entity, str]] = []

    def __iter__(self) -> _Series:
        return self

    def __next__(self) -> tuple[Entity, str]:
        if not self._waiting:
            self._waiting = self._here.world.store.keys(
                self.CHUNK,
                after=self._after,
                glob=self._query.entity,
                metrics=self._query.metric,
                labels=self._labels,
                wanted=self._sees,
            )[::-1]
            if not self._waiting:
                raise StopIteration
            self._after = self._waiting[0]
        return self._waiting.pop()
