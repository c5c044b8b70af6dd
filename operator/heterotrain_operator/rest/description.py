"""What the API says of itself: ``/v1/schema`` (words, operators, rules) and the OpenAPI document. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from heterotrain_api.crd import COLLECTION, PROCESSING, ResourceKind, kind_schema
from heterotrain_core.info.chain import KINDS, Kind
from heterotrain_core.info.graph import MAX_RULES
from heterotrain_core.info.selectors import FILTERS
from heterotrain_core.info.stats import AGGREGATES
from heterotrain_core.info.values import NAMESPACED, PARTS, MetricType
from heterotrain_operator.info.push import MAX_SAMPLES
from heterotrain_operator.info.store import SPAN_AGGREGATES
from heterotrain_operator.rest.bodies import MAX_BYTES
from heterotrain_operator.rest.context import MAX_WATCHERS
from heterotrain_operator.rest.guard import GUARDED
from heterotrain_operator.rest.models import MAX_DRYRUN_RULES, MAX_LIMIT, DryRunRequest, Push

Schema = dict[str, Any]

TITLE: Final = "Heterotrain information"
TEXT: Final = """Whatever a scheduler must know of nodes, pods, accelerators, links, jobs and workers, as rules gather
and derive it.

- A sample is (entity, metric, time, value). Times are seconds since the epoch.
- Absent is absent: a value that is older than its ttl is left out, or null where absence is told. It is never given as
  a present one.
- A value is a number or a text. JSON has no infinite numbers: they are the texts `+Inf` and `-Inf`, in answers and in
  requests. There is no NaN.
- Lists come in pages: go on with `cursor=` what `next` says, with the same parameters, until it is null.
- All errors have one shape: `code` for programs, `message` for people, `fields` for what is wrong with the request.
- Every request below `/v1` has the header `Authorization: Bearer TOKEN`. On one machine the token is the server's; in
  a cluster it is one of the cluster's, and its owner needs `get` on `information.heterotrain.io` in the entity's
  namespace, on `clusterinformation.heterotrain.io` for nodes, links and all else that lies in no namespace, `create`
  on the same to send samples, and for rules the rights on `collectionrules` and `processingrules` in the operator's
  namespace that kubectl needs. Lists have what the caller may see.
"""


@cache
def spec_schema(kind: ResourceKind) -> Schema:
    """JSON Schema of a rule's spec: that of its resource, without what only Kubernetes understands."""
    return _plain(kind_schema(kind)["properties"]["spec"])


def _plain(schema: Mapping[str, Any]) -> Schema:
    out: Schema = {}
    for key, value in schema.items():
        if key.startswith("x-") or key == "format":
            continue  # of Kubernetes and our own; formats of Kubernetes: int32, double
        if key == "properties":
            out[key] = {name: _plain(item) for name, item in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            out[key] = _plain(value)
        else:
            out[key] = value
    if "properties" in out:
        out["additionalProperties"] = False
    return out


def schema_document() -> Schema:
    """What there is to choose from when a rule is written."""
    return {
        "kinds": {kind: list(parts) for kind, parts in PARTS.items()},
        "namespacedKinds": sorted(NAMESPACED),
        "metricTypes": [kind.value for kind in MetricType],
        "operators": {name: _operator(kind) for name, kind in KINDS.items()},
        "aggregates": list(AGGREGATES),
        "rangeAggregates": list(SPAN_AGGREGATES),
        "templateFilters": list(FILTERS),
        "rules": {"collect": spec_schema(COLLECTION), "process": spec_schema(PROCESSING)},
        "limits": {
            "bodyBytes": MAX_BYTES,
            "pageEntries": MAX_LIMIT,
            "pushedSamples": MAX_SAMPLES,
            "dryRunRules": MAX_DRYRUN_RULES,
            "dryRunSamples": MAX_SAMPLES,
            "processingRules": MAX_RULES,
            "watchStreams": MAX_WATCHERS,
        },
    }


def _general(node: Any) -> Any:
    """A schema without the words of Kubernetes in it."""
    if isinstance(node, dict):
        return {key: _general(value) for key, value in node.items() if not key.startswith("x-kubernetes-")}
    return [_general(item) for item in node] if isinstance(node, list) else node


_TYPES: Final = {float: "number", int: "integer", str: "string", bool: "boolean"}


def _operator(kind: Kind) -> Schema:
    parameters = {}
    for name, parameter in kind.parameters.items():
        bounds = {"exclusiveMinimum" if parameter.above else "minimum": parameter.low, "maximum": parameter.high}
        finite = {key: bound for key, bound in bounds.items() if math.isfinite(bound)}
        default = {} if parameter.default is None else {"default": parameter.default}
        parameters[name] = {"type": _TYPES[parameter.type], **finite, **default}
    return {"parameters": parameters, "outputs": list(kind.parts)}


def openapi_document(routes: FastAPI) -> Schema:
    """The OpenAPI document of the routes."""
    document = get_openapi(title=TITLE, version=version("heterotrain"), description=TEXT, routes=routes.routes)
    components = document.setdefault("components", {})
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    schemas = components.setdefault("schemas", {})
    for model in (Push, DryRunRequest):
        _add_model(schemas, model)
    for name, kind in (("CollectionRule", COLLECTION), ("ProcessingRule", PROCESSING)):
        schemas[f"{name}Spec"] = spec_schema(kind)
        schemas[f"Given{name}"] = _given_rule(name)
    schemas["DryRunRequest"]["properties"]["rules"]["items"] = _given_rule("ProcessingRule")
    for path, operations in document["paths"].items():
        if path.startswith(GUARDED):
            for operation in operations.values():
                operation["security"] = [{"token": []}]
        for operation in operations.values():
            for answer in operation["responses"].values():
                answer["description"] = answer["description"].replace("Successful Response", "Done.")
    components["schemas"] = {name: _general(schema) for name, schema in sorted(schemas.items())}
    return document


def _add_model(schemas: Schema, model: type[BaseModel]) -> None:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    for name, definition in schema.pop("$defs", {}).items():
        schemas.setdefault(name, definition)
    schemas[model.__name__] = schema


def _given_rule(name: str) -> Schema:
    """A rule as it may be sent: with its generation, or its spec alone."""
    spec = {"$ref": f"#/components/schemas/{name}Spec"}
    generation = {"type": "integer", "minimum": 1, "maximum": 2**53, "description": "That the sender has seen."}
    full = {
        "type": "object",
        "description": f"A {name} as GET gives it, or a manifest of it. What else those have is left aside.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string", "enum": [name]},
            "metadata": {"type": "object", "description": "Of a manifest; its name must be the path's."},
            "name": {"type": "string", "description": "The path's, or left out."},
            "generation": generation,
            "spec": spec,
            "status": {"type": "object", "description": "Changes nothing."},
        },
        "additionalProperties": False,
    }
    return {"anyOf": [full, spec]}
