"""Rules as users write them, made into what the engine takes; from the cluster, a request or a YAML file. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from heterotrain_api.crd import COLLECTION, PROCESSING
from heterotrain_api.info_collection import CollectionRule
from heterotrain_api.info_rules import ProcessingRule, RuleInput, RuleOutput
from heterotrain_api.validation import Fault, InvalidManifestError, parse_rule, parse_spec
from heterotrain_core.info import rules as core
from heterotrain_core.info.graph import rule_faults
from heterotrain_core.info.selectors import template_faults
from heterotrain_core.info.values import MetricType
from heterotrain_operator.info.rule_state import RuleKind
from heterotrain_operator.yaml_documents import YamlError, load_documents

MAX_FILE_BYTES: Final = 4 * 2**20


def compile_processing(rule: ProcessingRule) -> core.ProcessingRule:
    """The rule as the engine takes it; the engine says whether it can be obeyed (`Engine.refusal`)."""
    spec = rule.spec
    outputs = spec.outputs if spec.output is None else {core.MAIN: spec.output}
    return core.ProcessingRule(
        name=rule.metadata.name,
        inputs={name: _input(item) for name, item in spec.inputs.items()},
        chain=tuple(core.Step(step.operator.value, step.parameters()) for step in spec.chain),
        outputs={part: _output(output) for part, output in (outputs or {}).items()},
        window=spec.window,
        window_samples=spec.window_samples,
        trigger=core.Trigger(spec.trigger.value),
        period=spec.period,
        hold=spec.hold,
        emit=core.Emit(spec.emit.value),
        message=spec.message,
        cardinality=spec.cardinality,
        generation=rule.metadata.generation or 1,
    )


def _input(item: RuleInput) -> core.Input:
    return core.Input(
        metric=item.metric,
        entity=item.entity,
        labels=item.labels,
        of=item.of,
        aggregate=None if item.aggregate is None else item.aggregate.value,
        ttl=item.ttl,
    )


def _output(output: RuleOutput) -> core.Output:
    return core.Output(
        metric=output.metric,
        type=None if output.type is None else MetricType(output.type.value),
        unit=output.unit,
        ttl=output.ttl,
        entity=output.entity,
        description=output.description,
    )


def processing_from_spec(name: str, spec: object) -> core.ProcessingRule:
    """A processing rule of a request; raises `InvalidManifestError` with everything that is wrong with it alone."""
    return compile_processing(_processing_resource(name, spec))


def rule_from_spec(kind: RuleKind, name: str, spec: object) -> CollectionRule | ProcessingRule:
    """The resource of a rule of a request; raises `InvalidManifestError`, fields are named from ``spec`` on."""
    return collection_from_spec(name, spec) if kind is RuleKind.COLLECT else _processing_resource(name, spec)


def _processing_resource(name: str, spec: object) -> ProcessingRule:
    resource = parse_spec(PROCESSING, ProcessingRule, name, spec)
    faults = list(_own_faults(resource))
    if faults:
        raise InvalidManifestError(faults)
    return resource


def _given_field(rule: ProcessingRule, field: str) -> str:
    return field.replace(f"outputs.{core.MAIN}", "output", 1) if rule.spec.output is not None else field


def collection_from_spec(name: str, spec: object) -> CollectionRule:
    """A collection rule of a request; raises `InvalidManifestError`."""
    resource = parse_spec(COLLECTION, CollectionRule, name, spec)
    faults = list(collection_faults(resource))
    if faults:
        raise InvalidManifestError(faults)
    return resource


def collection_faults(rule: CollectionRule) -> Iterator[Fault]:
    """What the schema cannot see: templates."""
    mappings = [(f"spec.entity[{i}].name", mapping.name) for i, mapping in enumerate(rule.spec.entity)]
    mappings += [(f"spec.labels.{name}", template) for name, template in rule.spec.labels.items()]
    for index, metric in enumerate(rule.spec.metrics):
        for i, mapping in enumerate(metric.entity or ()):
            mappings.append((f"spec.metrics[{index}].entity[{i}].name", mapping.name))
    for field, template in mappings:
        fault = template_faults(template)
        if fault is not None:
            yield Fault(field, fault)


def dryrun_rules(documents: Sequence[object]) -> list[core.ProcessingRule]:
    """The rules of a dry run: specs, or whole manifests; one without a name is ``rule-1``, ``rule-2`` and so on.

    Raises `InvalidManifestError`; fields are named from ``rules[0]`` on.
    """
    rules = []
    for index, document in enumerate(documents):
        name, spec = _name_and_spec(document, f"rule-{index + 1}")
        try:
            rules.append(processing_from_spec(name, spec))
        except InvalidManifestError as error:
            faults = [
                Fault(f"rules[{index}].{fault.field.removeprefix('spec.')}", fault.message) for fault in error.faults
            ]
            raise InvalidManifestError(faults) from error
    return rules


def _name_and_spec(document: object, name: str) -> tuple[str, object]:
    if not isinstance(document, dict):
        return name, document
    if "spec" in document:
        metadata = document.get("metadata")
        given = metadata.get("name") if isinstance(metadata, dict) else document.get("name")
        return given if isinstance(given, str) else name, document["spec"]
    given = document.get("name")
    spec = {key: value for key, value in document.items() if key != "name"}
    return given if isinstance(given, str) else name, spec


def rule_from_document(document: Mapping[str, Any]) -> CollectionRule | ProcessingRule:
    """The rule that an object of the API server is, with its generation; raises `InvalidManifestError`."""
    # Of metadata only what says which rule it is: the API server may add fields that we do not know.
    metadata = {key: document["metadata"].get(key) for key in ("name", "namespace")}
    known = {key: document[key] for key in ("apiVersion", "kind", "spec") if key in document}
    rule = parse_rule({**known, "metadata": metadata})
    faults = list(_own_faults(rule))
    if faults:
        raise InvalidManifestError(faults)
    generation = document["metadata"].get("generation")
    return rule.model_copy(update={"metadata": rule.metadata.model_copy(update={"generation": generation})})


def load_rules(text: str) -> list[CollectionRule | ProcessingRule]:
    """The rules of a YAML file: manifests, as ``kubectl apply`` takes them, parted by ``---``.

    Raises `InvalidManifestError` with the faults of all of them, each named by its place and rule.
    """
    if len(text) > MAX_FILE_BYTES:
        raise InvalidManifestError([Fault("", f"must have at most {MAX_FILE_BYTES} characters: split the file")])
    try:
        documents = load_documents(text)
    except YamlError as error:
        raise InvalidManifestError([Fault("", f"is not YAML that can be taken: {error}")]) from error
    rules: list[CollectionRule | ProcessingRule] = []
    faults: list[Fault] = []
    for index, document in enumerate(documents, start=1):
        try:
            rule = parse_rule(document)
            faults += [_placed(fault, index, rule.metadata.name) for fault in _own_faults(rule)]
            rules.append(rule)
        except InvalidManifestError as error:
            faults += [_placed(fault, index, "") for fault in error.faults]
    faults += list(_name_clashes(rules))
    if faults:
        raise InvalidManifestError(faults)
    return rules


def _own_faults(rule: CollectionRule | ProcessingRule) -> Iterator[Fault]:
    if isinstance(rule, CollectionRule):
        yield from collection_faults(rule)
        return
    for field, message in rule_faults(compile_processing(rule)):
        yield Fault(f"spec.{_given_field(rule, field)}", message)


def _placed(fault: Fault, index: int, name: str) -> Fault:
    return Fault(f"document {index}{f' ({name})' if name else ''}: {fault.field}", fault.message)


def _name_clashes(rules: Sequence[CollectionRule | ProcessingRule]) -> Iterator[Fault]:
    seen: set[tuple[str, str]] = set()
    for rule in rules:
        key = (rule.kind, rule.metadata.name)
        if key in seen:
            yield Fault(f"{rule.kind} {rule.metadata.name}", "is there twice: names must differ")
        seen.add(key)
