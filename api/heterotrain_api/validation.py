"""Checks a manifest without a cluster, with the verdict that the API server gives when it validates strictly.

The schema is the one of the CRD, the rules are those whose CEL stands in the CRD: nothing is declared twice. Pure; a
document is what a YAML or JSON parser returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from heterotrain_api.contract import API_VERSION
from heterotrain_api.crd import COLLECTION, JOB, PROCESSING, ResourceKind, kind_schema
from heterotrain_api.fields import PRESERVE_UNKNOWN
from heterotrain_api.immutability import IMMUTABLE, SAME_GROUPS, same_groups
from heterotrain_api.info_collection import CollectionRule
from heterotrain_api.info_rules import ProcessingRule
from heterotrain_api.rules import RULES, Rule
from heterotrain_api.schema_check import Fault, Schema, check, join, matches, normalize, unknown_fields
from heterotrain_api.v1alpha1 import HeteroTrainJob, ObjectMeta

__all__ = ["Fault", "InvalidManifestError", "parse", "parse_rule", "parse_spec", "validate", "validate_update"]

M = TypeVar("M", bound=BaseModel)

_RULE_KINDS: Final = {COLLECTION.kind: COLLECTION, PROCESSING.kind: PROCESSING}

MAX_NAME: Final = 253
_OBJECT_NAME: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_NAMESPACE: Final = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_KEY: Final = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
_LABEL_VALUE: Final = "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"

_OPAQUE: Final[Schema] = {PRESERVE_UNKNOWN: True}
_METADATA: Final[Schema] = {
    "properties": dict.fromkeys(
        (
            "name",
            "namespace",
            "labels",
            "annotations",
            "generateName",
            "ownerReferences",
            "finalizers",
            "uid",
            "resourceVersion",
            "generation",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "managedFields",
            "selfLink",
        ),
        _OPAQUE,
    )
}


class InvalidManifestError(ValueError):
    """A manifest that is not a valid resource of its kind."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults: Final = tuple(faults)
        """What is wrong; never empty."""


def validate(document: object) -> list[Fault]:
    """Everything that is wrong with the manifest; empty if the API server would take it.

    Rules over several fields are looked at once the fields by themselves are right, as the API server does.
    """
    faults, _ = _examine(document, JOB)
    return faults


def parse(document: object) -> HeteroTrainJob:
    """The job that a manifest describes, with defaults in place; a ``status`` in it is dropped, as the API server does.

    Raises `InvalidManifestError` with all faults.
    """
    faults, job = _examine(document, JOB)
    if not isinstance(job, HeteroTrainJob) or faults:
        raise InvalidManifestError(faults)
    return job


def parse_rule(document: object) -> CollectionRule | ProcessingRule:
    """The information rule that a manifest describes, with defaults in place; a ``status`` in it is dropped.

    Raises `InvalidManifestError` with all faults.
    """
    kind = _RULE_KINDS.get(document.get("kind", "")) if isinstance(document, dict) else None
    if kind is None:
        names = " or ".join(_RULE_KINDS)
        raise InvalidManifestError(
            [Fault("kind", f"must be {names}, with apiVersion: {API_VERSION}, metadata and spec")]
        )
    faults, rule = _examine(document, kind)
    if not isinstance(rule, CollectionRule | ProcessingRule) or faults:
        raise InvalidManifestError(faults)
    return rule


def parse_spec(kind: ResourceKind, model: type[M], name: str, spec: object) -> M:
    """The resource `name` of a kind (of `model`) with `spec`, when there is only the spec, as in a request.

    Raises `InvalidManifestError`; fields are named from ``spec`` on.
    """
    document = {"apiVersion": API_VERSION, "kind": kind.kind, "metadata": {"name": name}, "spec": spec}
    faults, resource = _examine(document, kind)
    if not isinstance(resource, model) or faults:
        raise InvalidManifestError(faults)
    return resource


def validate_update(old: HeteroTrainJob, new: HeteroTrainJob) -> list[Fault]:
    """Changes from `old` to `new`, both valid, that a job does not take once it exists."""
    faults = []
    for fixed in IMMUTABLE:
        before = {_group_key(node, path): node for path, node in _nodes(old, fixed.path)}
        for path, node in _nodes(new, fixed.path):
            was = before.get(_group_key(node, path))
            if was is None:
                continue  # a group that is new; SAME_GROUPS says so
            if fixed.identity(getattr(was, fixed.attribute)) != fixed.identity(getattr(node, fixed.attribute)):
                faults.append(Fault(join(path, fixed.field), fixed.message))
    if not same_groups(old.spec, new.spec):
        faults.append(Fault(f"{SAME_GROUPS.path}{SAME_GROUPS.field}", SAME_GROUPS.message))
    return faults


def _examine(document: object, kind: ResourceKind) -> tuple[list[Fault], BaseModel | None]:
    if not isinstance(document, dict):
        want = f"must be an object with apiVersion: {API_VERSION}, kind: {kind.kind}, metadata and spec"
        return [Fault("", want)], None
    foreign = list(_check_kind(document, kind))
    if foreign:  # another kind has other fields: no use in going on
        return foreign, None
    schema = _schema(kind)
    faults = list(unknown_fields(document, schema, ""))
    metadata = normalize_metadata(document.get("metadata"))
    faults += _check_metadata(metadata, kind)
    spec = normalize(document.get("spec"), schema["properties"]["spec"])
    faults += check({"spec": spec} if spec is not None else {}, _only_spec(schema), "")
    if faults:
        return faults, None
    known = {key: metadata[key] for key in ("name", "namespace", "labels", "annotations") if key in metadata}
    resource = kind.model.model_validate({"metadata": ObjectMeta.model_validate(known), "spec": spec})
    return list(broken_rules(resource, kind.rules if kind is not JOB else RULES)), resource


@cache
def _schema(kind: ResourceKind) -> Schema:
    schema = kind_schema(kind)
    schema["properties"]["metadata"] = _METADATA
    return schema


def _only_spec(schema: Schema) -> Schema:
    return {"type": "object", "required": ["spec"], "properties": {"spec": schema["properties"]["spec"]}}


def _check_kind(document: dict[Any, Any], kind: ResourceKind) -> Iterator[Fault]:
    for field, want in (("apiVersion", API_VERSION), ("kind", kind.kind)):
        if document.get(field) != want:
            yield Fault(field, f"must be {want}" if field in document else f"is required: {want}")


def normalize_metadata(metadata: Any) -> Any:
    """Metadata as the API server reads it: null is absent, and an empty text as the value of a label or annotation."""
    if not isinstance(metadata, dict):
        return metadata
    given = {key: value for key, value in metadata.items() if value is not None}
    for field in ("labels", "annotations"):
        if isinstance(given.get(field), dict):
            given[field] = {key: "" if value is None else value for key, value in given[field].items()}
    return given


def _check_metadata(metadata: Any, kind: ResourceKind) -> Iterator[Fault]:
    if not isinstance(metadata, dict):
        yield Fault("metadata", "must be an object with a name")
        return
    name = metadata.get("name", "")
    if name == "":
        whose = "the job's" if kind is JOB else "the rule's"
        yield Fault("metadata.name", f"is required: {whose} name, small letters, digits and -")
    elif not isinstance(name, str):
        yield Fault("metadata.name", f'must be a string: put it in quotes ("{name}")')
    elif kind is not JOB and (len(name) > MAX_NAME or not matches(_OBJECT_NAME, name)):
        yield Fault(
            "metadata.name", f"must have at most {MAX_NAME} small letters, digits, - and ., no - or . at the ends"
        )
    namespace = metadata.get("namespace", "default")
    if not isinstance(namespace, str) or (namespace and not matches(_NAMESPACE, namespace)):
        yield Fault("metadata.namespace", "must be a string of small letters, digits and -, at most 63 characters")
    for field in ("labels", "annotations"):
        yield from _check_string_map(metadata.get(field, {}), f"metadata.{field}", labels=field == "labels")


def _check_string_map(value: Any, path: str, *, labels: bool) -> Iterator[Fault]:
    if not isinstance(value, dict):
        yield Fault(path, "must be an object (key: value)")
        return
    for key, text in value.items():
        # Keys of annotations may have capitals: the API server lowers them before it looks.
        name = key if labels or not isinstance(key, str) else key.lower()
        if not isinstance(name, str) or not matches(_KEY, name):
            yield Fault(f"{path}.{key}", "must be a name of at most 63 letters, digits, -, _ and ., or prefix/name")
        if not isinstance(text, str):
            yield Fault(f"{path}.{key}", f'must be a string: put it in quotes ("{text}")')
        elif labels and not matches(_LABEL_VALUE, text):
            yield Fault(
                f"{path}.{key}",
                "must have at most 63 letters, digits, -, _ and ., and begin and end with one of the first two",
            )


def broken_rules(resource: BaseModel, rules: Sequence[Rule] = RULES) -> Iterator[Fault]:
    """Faults by the rules over several fields; `rules`: those of the resource's kind."""
    for rule in rules:
        for path, node in _nodes(resource, rule.path):
            if not rule.holds(node):
                yield Fault(f"{path}{rule.field}".lstrip("."), rule.told(node))


def _nodes(job: BaseModel, path: str) -> Iterator[tuple[str, Any]]:
    """The objects at `path`, each with its place in the manifest; none where something on the way is not given."""
    found: list[tuple[str, Any]] = [("", job)]
    for segment in path.split(".") if path else ():
        name = segment.removesuffix("[*]")
        found = [(join(where, name), _child(node, name)) for where, node in found]
        if segment.endswith("[*]"):
            found = [(f"{where}[{i}]", item) for where, items in found for i, item in enumerate(items)]
        found = [(where, node) for where, node in found if node is not None]
    yield from found


def _child(node: BaseModel, name: str) -> Any:
    attribute = next(key for key, info in type(node).model_fields.items() if info.alias == name)
    return getattr(node, attribute)


def _group_key(node: Any, path: str) -> str:
    """What tells which old object a new one is compared with: the name in a list, else the place."""
    return str(getattr(node, "name", path))
