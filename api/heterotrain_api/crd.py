"""Makes the CustomResourceDefinitions from the models: ``python -m heterotrain_api.crd PLURAL`` prints one.

Pydantic's JSON schema is not yet structural: references are inlined, titles and ``null`` branches dropped, integers or
strings written as Kubernetes wants them; range and default are added to each description, the rules to their places.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from heterotrain_api.contract import GROUP, VERSION
from heterotrain_api.fields import INT32_MAX, INT_OR_STRING, WORDS
from heterotrain_api.immutability import IMMUTABLE, SAME_GROUPS, Immutable
from heterotrain_api.info_checks import COLLECTION_RULES, PROCESSING_RULES
from heterotrain_api.info_collection import (
    COLLECTION_KIND,
    COLLECTION_PLURAL,
    CollectionRule,
    CollectionRuleSpec,
)
from heterotrain_api.info_fields import RuleStatus
from heterotrain_api.info_rules import PROCESSING_KIND, PROCESSING_PLURAL, ProcessingRule, ProcessingRuleSpec
from heterotrain_api.rules import RULES, Figures, Rule
from heterotrain_api.v1alpha1 import (
    KIND,
    PLURAL,
    SHORT_NAME,
    SINGULAR,
    HeteroTrainJob,
    HeteroTrainJobSpec,
    HeteroTrainJobStatus,
)
from heterotrain_api.yaml_text import to_yaml

Schema = dict[str, Any]

VALIDATIONS: Final = "x-kubernetes-validations"

_KEPT: Final = (
    "description",
    "type",
    "format",
    "enum",
    "pattern",
    WORDS,
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
)
_BOUNDS: Final = {"minimum", "maximum", "pattern", WORDS, "minLength", "maxLength"}

Column = tuple[str, str, str, str]
"""Title, type, JSON path, description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceKind:
    """One kind of resource: what its CRD is made from."""

    kind: str
    plural: str
    singular: str
    short_name: str
    model: type[BaseModel]
    """Its first line of text describes the kind."""
    spec: type[BaseModel]
    status: type[BaseModel]
    columns: tuple[Column, ...]
    rules: tuple[Rule, ...]
    immutable: tuple[Immutable, ...] = ()


JOB: Final = ResourceKind(
    kind=KIND,
    plural=PLURAL,
    singular=SINGULAR,
    short_name=SHORT_NAME,
    model=HeteroTrainJob,
    spec=HeteroTrainJobSpec,
    status=HeteroTrainJobStatus,
    columns=(
        ("State", "string", ".status.state", "What the job does now."),
        ("Step", "string", ".status.progress.step", "Rounds done of rounds in all."),
        ("Samples/s", "integer", ".status.efficiency.samplesPerSecond", "Speed of the job, in samples a second."),
        ("Workers", "string", ".status.readyWorkers", "Workers that have joined, of all."),
        ("PS", "string", ".status.readyParameterServers", "Parameter servers that answer, of all."),
        ("Staleness", "string", ".status.synchronization.staleness", "Largest staleness seen, and the bound in force."),
        ("Age", "date", ".metadata.creationTimestamp", "Time since the job was created."),
    ),
    rules=(*RULES, SAME_GROUPS),
    immutable=IMMUTABLE,
)

_RULE_COLUMNS: Final[tuple[Column, ...]] = (
    ("Ready", "string", ".status.ready", "Whether the rule is obeyed and its last run gave samples."),
    ("Samples/s", "number", ".status.samplesPerSecond", "Samples stored a second."),
    ("Age of data", "integer", ".status.ageSeconds", "Age of the newest sample, in seconds."),
    ("Error", "string", ".status.error", "What is wrong, or went wrong in the last run."),
    ("Age", "date", ".metadata.creationTimestamp", "Time since the rule was created."),
)

COLLECTION: Final = ResourceKind(
    kind=COLLECTION_KIND,
    plural=COLLECTION_PLURAL,
    singular="collectionrule",
    short_name="htc",
    model=CollectionRule,
    spec=CollectionRuleSpec,
    status=RuleStatus,
    columns=_RULE_COLUMNS,
    rules=COLLECTION_RULES,
)

PROCESSING: Final = ResourceKind(
    kind=PROCESSING_KIND,
    plural=PROCESSING_PLURAL,
    singular="processingrule",
    short_name="htp",
    model=ProcessingRule,
    spec=ProcessingRuleSpec,
    status=RuleStatus,
    columns=_RULE_COLUMNS,
    rules=PROCESSING_RULES,
)

KINDS: Final = {kind.plural: kind for kind in (JOB, COLLECTION, PROCESSING)}
"""All kinds by the plural of their names, which is the name of each one's file."""

_API_VERSION: Final = f"Version of this object's schema: {GROUP}/{VERSION}."


def structural(schema: Mapping[str, Any], defs: Mapping[str, Any], *, defaults: bool) -> Schema:
    """A pydantic JSON schema as a structural one, with references into `defs` inlined.

    Raises `ValueError` for what has no structural form, so that a new kind of field is noticed at generation.
    """
    node = _resolve(schema, defs)
    unsupported = {"allOf", "oneOf", "const", "exclusiveMinimum", "exclusiveMaximum", "prefixItems"} & node.keys()
    if unsupported or ("type" not in node and INT_OR_STRING not in node):
        raise ValueError(f"no structural form for {sorted(unsupported) or node}; declare the field otherwise")
    out: Schema = {key: node[key] for key in _KEPT if key in node}
    if node.get("type") in ("integer", "number"):
        out["format"] = _number_format(node)
    if INT_OR_STRING in node:
        out["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if defaults and node.get("default") is not None and node["default"] not in ([], {}):
        out["default"] = node["default"]
    if "items" in node:
        out["items"] = structural(node["items"], defs, defaults=defaults)
    if "properties" in node:
        out["properties"] = {
            name: _property(item, defs, required=name in node.get("required", ()), defaults=defaults)
            for name, item in node["properties"].items()
        }
        if node.get("required"):
            out["required"] = list(node["required"])
    elif isinstance(node.get("additionalProperties"), dict):
        out["additionalProperties"] = structural(node["additionalProperties"], defs, defaults=defaults)
    return out | {key: value for key, value in node.items() if key.startswith("x-kubernetes-")}


def _resolve(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    """Follow ``$ref``, take the branch that is not null, hoist the bounds of an integer or string."""
    node = dict(schema)
    if "$ref" in node:
        target = defs[node.pop("$ref").removeprefix("#/$defs/")]
        node = _resolve(target, defs) | node
    if "anyOf" in node:
        branches = [branch for branch in node.pop("anyOf") if branch.get("type") != "null"]
        if INT_OR_STRING in node:
            for branch in branches:
                node |= {key: value for key, value in branch.items() if key in _BOUNDS}
        elif len(branches) == 1:
            node = _resolve(branches[0], defs) | node
        else:
            raise ValueError(f"no structural form for a union of {len(branches)} types")
    return node


def _property(schema: Mapping[str, Any], defs: Mapping[str, Any], *, required: bool, defaults: bool) -> Schema:
    out = structural(schema, defs, defaults=defaults)
    nullable = any(branch.get("type") == "null" for branch in schema.get("anyOf", ()))
    if defaults and not required and not nullable and "properties" in out:
        # An object that is left out gets the defaults inside it. They are written out: the API server holds the rules
        # against a default as it stands.
        inner = {name: item["default"] for name, item in out["properties"].items() if "default" in item}
        out["default"] = {name: value for name, value in inner.items() if value != {}}
    sentences = [" ".join(out.get("description", "").split()), _range_sentence(out), _default_sentence(out)]
    return {"description": " ".join(s for s in sentences if s)} | {k: v for k, v in out.items() if k != "description"}


def _number_format(node: Mapping[str, Any]) -> str:
    if node["type"] == "number":
        return "double"
    return "int32" if node.get("maximum", INT32_MAX + 1) <= INT32_MAX else "int64"


def _range_sentence(schema: Schema) -> str:
    if "enum" in schema:
        return f"One of {', '.join(schema['enum'])}." if len(schema["enum"]) > 1 else ""
    for low, high, unit in (
        ("minimum", "maximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " entries"),
        ("minProperties", "maxProperties", " entries"),
    ):
        if high in schema and INT_OR_STRING not in schema:
            return between(schema.get(low), schema[high], unit)
    return ""


def between(low: float | None, high: float, unit: str = "") -> str:
    """The range in words: ``Between 1 and 64.``, ``At most 16 entries.``, ``Exactly 1 entry.``."""
    if low == high:
        return f"Exactly {high:.15g}{unit}." if high != 1 else f"Exactly 1{unit.replace('entries', 'entry')}."
    return f"At most {high:.16g}{unit}." if low is None else f"Between {low:.16g} and {high:.16g}{unit}."


def _default_sentence(schema: Schema) -> str:
    default = schema.get("default")
    if default is None or isinstance(default, dict):
        return ""
    return f"Default: {default}." if default != "" else "Default: empty."


def node_at(schema: Schema, path: str) -> Schema:
    """The part of `schema` that describes `path` (``spec.workers[*].batch``); raises `KeyError` if there is none."""
    for name in re.findall(r"[^.\[\]]+", path):
        schema = schema["items"] if name == "*" else schema["properties"][name]
    return schema


def _add_rule(  # noqa: PLR0917  # as a `Rule` has them
    root: Schema, path: str, cel: str, message: str, field: str, figures: Figures | None = None
) -> Schema:
    if field.startswith(".metadata"):  # metadata has no properties in the schema to point to
        message = f"{field.lstrip('.')} {message}"
    entry = {"rule": cel, "message": message}
    if figures is not None:
        words = f"{message.replace('%', '%%')}; {figures.text}"
        entry["messageExpression"] = f"{_cel_text(words)}.format([{', '.join(figures.cel)}])"
    if field and not field.startswith(".metadata"):
        node_at(root, f"{path}{field}")
        entry["fieldPath"] = field
    node_at(root, path).setdefault(VALIDATIONS, []).append(entry)
    return entry


def kind_schema(kind: ResourceKind) -> Schema:
    """The structural schema of a kind, with its rules."""
    spec, status = (model.model_json_schema(by_alias=True) for model in (kind.spec, kind.status))
    root: Schema = {
        "description": kind.model.__doc__,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"description": _API_VERSION, "type": "string"},
            "kind": {"description": f"Kind of this object: {kind.kind}.", "type": "string"},
            "metadata": {"type": "object"},
            "spec": structural(spec, spec.get("$defs", {}), defaults=True),
            "status": structural(status, status.get("$defs", {}), defaults=False),
        },
    }
    for rule in kind.rules:
        entry = _add_rule(root, rule.path, rule.cel, rule.message, rule.field, rule.figures)
        if rule.at_creation:
            entry["optionalOldSelf"] = True  # else it would be a rule of updates only
    for fixed in kind.immutable:
        _add_rule(root, fixed.path, fixed.cel, fixed.message, f".{fixed.field}")
    return root


def patterns_as_rules(schema: Schema) -> Schema:
    """The schema with each pattern that has words as a rule that says them.

    Of a broken pattern the API server tells the pattern; of a broken rule the rule's words.
    """
    out: Schema = {}
    for key, value in schema.items():
        if key in ("items", "additionalProperties"):
            out[key] = patterns_as_rules(value)
        elif key == "properties":
            out[key] = {name: patterns_as_rules(item) for name, item in value.items()}
        elif key not in ("pattern", WORDS):
            out[key] = value
    if WORDS in schema:
        test = f".matches({_cel_text(schema['pattern'])})"
        message = f"must be {schema[WORDS]}"
        rule = {
            "rule": f"type(self) == int || string(self){test}" if INT_OR_STRING in schema else f"self{test}",
            "message": message,
            "messageExpression": f"{_cel_text(f'{message}, not %s')}.format([self])",
        }
        out[VALIDATIONS] = [rule, *out.get(VALIDATIONS, ())]
    elif "pattern" in schema:
        out["pattern"] = schema["pattern"]
    return out


def _cel_text(text: str) -> str:
    """A string literal of CEL, which escapes as JSON does."""
    return json.dumps(text, ensure_ascii=False)


def job_schema() -> Schema:
    """The structural schema of a `HeteroTrainJob`, with its rules."""
    return kind_schema(JOB)


def crd(kind: ResourceKind = JOB) -> dict[str, Any]:
    """A kind's CustomResourceDefinition. It has no ``status``, so that tools that compare do not see a difference."""
    columns = [
        {"name": name, "type": type_, "jsonPath": path, "description": text} for name, type_, path, text in kind.columns
    ]
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": patterns_as_rules(kind_schema(kind))},
        "subresources": {"status": {}},
    }
    names = {
        "kind": kind.kind,
        "listKind": f"{kind.kind}List",
        "plural": kind.plural,
        "singular": kind.singular,
        "shortNames": [kind.short_name],
        # Not in the category `all`: a job is looked for by its name, and its pods are there already.
        "categories": ["heterotrain"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {"group": GROUP, "names": names, "scope": "Namespaced", "versions": [version]},
    }


def crd_yaml(kind: ResourceKind = JOB) -> str:
    """The CRD as the text of its file in ``crds/``."""
    return "# Generated by `python -m heterotrain_api.crd`; do not edit.\n" + to_yaml(crd(kind))


def main(arguments: Sequence[str]) -> str:
    """The text to print for ``python -m heterotrain_api.crd [PLURAL]``; without a plural the job's."""
    plural = arguments[0] if arguments else PLURAL
    if len(arguments) > 1 or plural not in KINDS:
        raise SystemExit(f"usage: python -m heterotrain_api.crd [{' | '.join(KINDS)}]")
    return crd_yaml(KINDS[plural])


if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1:]))
