"""Routes that take samples: pushes, and dry runs of rules."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final

from fastapi import APIRouter, Request

from heterotrain_api.validation import InvalidManifestError
from heterotrain_core.info.dryrun import DryRun, dryrun
from heterotrain_core.info.rules import ProcessingRule
from heterotrain_core.info.values import Entity, Sample
from heterotrain_operator.info.rule_state import RuleKind
from heterotrain_operator.info.rules import dryrun_rules
from heterotrain_operator.rest.access import Verb, about, about_rules
from heterotrain_operator.rest.bodies import as_model, read_json
from heterotrain_operator.rest.context import Here
from heterotrain_operator.rest.encoding import JsonResponse, event_document, sample_document, value_of
from heterotrain_operator.rest.errors import invalid, invalid_field
from heterotrain_operator.rest.models import DryRunAnswer, DryRunRequest, Push, Pushed
from heterotrain_operator.rest.operations import errors, json_body

DRYRUN_SECONDS: Final = 10.0
"""For one dry run; then it is given up."""

router: Final = APIRouter(prefix="/v1")


@router.post(
    "/samples",
    tags=["information"],
    response_model=Pushed,
    responses=errors(body=True),
    openapi_extra=json_body("Push"),
)
async def push_samples(request: Request, here: Here) -> JsonResponse:
    """Send samples. They are taken up as the collection rules with source push say; each refusal is told."""
    given = as_model(Push, await read_json(request))
    entities = {sample.entity: Entity(sample.entity) for sample in given.samples}
    for ask in {about(Verb.CREATE, entity) for entity in entities.values()}:
        await here.demand(ask)
    now = here.world.now()
    pushed = here.world.service.push([
        Sample(entities[one.entity], one.metric, now if one.time is None else one.time, value_of(one.value))
        for one in given.samples
    ])  # fmt: skip
    refused = [{"index": index, "message": message} for index, message in pushed.refused]
    return JsonResponse({"stored": pushed.stored, "refused": refused})


@router.post(
    "/rules/process:dryrun",
    tags=["rules"],
    response_model=DryRunAnswer,
    response_model_exclude_none=True,
    responses=errors(body=True),
    openapi_extra=json_body("DryRunRequest"),
)
async def dry_run(request: Request, here: Here) -> JsonResponse:
    """Apply processing rules to samples, as they would be applied, and keep nothing."""
    await here.demand(about_rules(Verb.GET, RuleKind.PROCESS))
    given = as_model(DryRunRequest, await read_json(request))
    samples = [Sample(Entity(one.entity), one.metric, one.time, value_of(one.value)) for one in given.samples]
    try:
        rules = dryrun_rules(given.rules)
        async with here.world.dryruns:
            result = await asyncio.to_thread(_run, rules, samples, given.now)
    except InvalidManifestError as error:
        raise invalid(error.faults) from error
    except TimeoutError as error:
        raise invalid_field("samples", f"{error}: send fewer samples, or fewer rules") from error
    except ValueError as error:
        raise invalid_field("rules", str(error)) from error
    return JsonResponse(_answer(result, explain=given.explain))


def _run(rules: Sequence[ProcessingRule], samples: Sequence[Sample], now: float | None) -> DryRun:
    deadline = monotonic() + DRYRUN_SECONDS

    def look() -> None:
        if monotonic() > deadline:
            raise TimeoutError(f"the dry run took more than {DRYRUN_SECONDS:g} s")

    return dryrun(rules, samples, now, look)


def _answer(result: DryRun, *, explain: bool) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "samples": [sample_document(sample) for sample in result.samples],
        "events": [event_document(event) for event in result.events],
    }
    if explain:
        answer["absent"] = [{"entity": entity, "metric": metric} for entity, metric in result.absent]
    if explain or result.errors:
        answer["errors"] = dict(result.errors)
    return answer
