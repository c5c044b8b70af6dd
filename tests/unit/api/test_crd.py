"""The CRD is fresh, structural, bounded and reads like a manual."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_api.crd import KINDS, VALIDATIONS, crd, crd_yaml, job_schema, kind_schema, main, structural
from heterotrain_api.validation import parse
from heterotrain_api.yaml_text import to_yaml
from manifests import make_manifest

COMMITTED = Path(__file__).parents[3] / "crds"
SCHEMA = job_schema()


def walk(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, item in schema.get("properties", {}).items():
        yield from walk(item, f"{path}.{name}".lstrip("."))
    for key, suffix in (("items", "[*]"), ("additionalProperties", ".*")):
        if key in schema:
            yield from walk(schema[key], f"{path}{suffix}")


NODES = [(path, node) for path, node in walk(SCHEMA) if path not in ("", "apiVersion", "kind", "metadata")]
ALL_NODES = [
    (f"{plural}: {path}", node)
    for plural, kind in KINDS.items()
    for path, node in walk(kind_schema(kind))
    if path not in ("", "apiVersion", "kind", "metadata")
]


def breaking(rule: Any) -> list[str]:
    return [path for path, node in ALL_NODES if not rule(path, node)]


@pytest.mark.parametrize("plural", KINDS)
def test_the_committed_file_is_what_the_models_give(plural: str) -> None:
    committed = (COMMITTED / f"{plural}.yaml").read_text()
    assert committed == crd_yaml(KINDS[plural]), "run: hack/generate.sh"
    assert yaml.safe_load(committed) == crd(KINDS[plural])
    assert committed == main([plural])


def test_the_generator_prints_the_job_unless_told_otherwise() -> None:
    assert main([]) == main(["heterotrainjobs"])
    with pytest.raises(SystemExit, match=r"usage: .*collectionrules"):
        main(["pods"])


def test_every_field_has_a_description_of_whole_sentences() -> None:
    fields = [(path, node) for path, node in ALL_NODES if not path.endswith(("[*]", ".*"))]
    assert [path for path, node in fields if not re.fullmatch(r"[A-Z].*\.", node.get("description", ""))] == []


def test_every_string_is_bounded() -> None:
    assert (
        breaking(
            lambda _, n: n.get("type") != "string" or {"maxLength", "enum"} & n.keys() or n.get("format") == "date-time"
        )
        == []
    )


def test_every_number_has_a_range_and_a_format() -> None:
    numbers = ("integer", "number")
    assert breaking(lambda _, n: n.get("type") not in numbers or {"minimum", "maximum", "format"} <= n.keys()) == []


def test_every_list_and_map_is_bounded_and_every_list_has_a_type() -> None:
    assert (
        breaking(lambda _, n: n.get("type") != "array" or {"maxItems", "items", "x-kubernetes-list-type"} <= n.keys())
        == []
    )
    assert breaking(lambda _, n: "additionalProperties" not in n or "maxProperties" in n) == []
    assert breaking(lambda _, n: "x-kubernetes-preserve-unknown-fields" not in n or "maxProperties" in n) == []


def test_floats_and_booleans_are_only_where_they_are_meant() -> None:
    assert [path for path, node in NODES if node.get("type") == "number"] == [
        "spec.synchronization.discountExponent",
        "spec.synchronization.delayCompensation",
        "spec.stop.target.atLeast",
        "spec.stop.target.atMost",
    ]
    assert [path for path, node in NODES if node.get("type") == "boolean"] == [
        "status.model.durable",
        "status.requests[*].accepted",
    ]


def test_the_schema_is_structural() -> None:
    forbidden = {"$ref", "$defs", "title", "oneOf", "allOf", "not", "const", "exclusiveMinimum", "exclusiveMaximum"}
    assert breaking(lambda _, n: not forbidden & n.keys()) == []
    assert breaking(lambda _, n: ("type" in n) != ("x-kubernetes-int-or-string" in n)) == []
    assert breaking(lambda _, n: not ("properties" in n and "additionalProperties" in n)) == []
    assert breaking(lambda _, n: "anyOf" not in n or n["anyOf"] == [{"type": "integer"}, {"type": "string"}]) == []


def test_status_has_no_defaults_and_comes_with_conditions_first() -> None:
    assert [path for path, node in ALL_NODES if " status" in path and "default" in node] == []
    status = SCHEMA["properties"]["status"]["properties"]
    assert next(iter(status)) == "conditions"
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]


def test_descriptions_tell_range_and_default() -> None:
    lease = SCHEMA["properties"]["spec"]["properties"]["synchronization"]["properties"]["leaseSeconds"]
    assert lease == {
        "description": "Seconds without a sign of life after which a worker counts as lost. "
        "Between 2 and 600. Default: 15.",
        "type": "integer",
        "format": "int32",
        "minimum": 2,
        "maximum": 600,
        "default": 15,
    }


def test_every_rule_stands_in_the_schema_once() -> None:
    for kind in KINDS.values():
        entries = [entry for _, node in walk(kind_schema(kind)) for entry in node.get(VALIDATIONS, ())]
        found = [entry["rule"] for entry in entries]
        assert all(found.count(rule.cel) == sum(r.cel == rule.cel for r in kind.rules) for rule in kind.rules)
        assert all(len(entry["message"]) < 2048 for entry in entries)


def with_defaults(value: Any, schema: dict[str, Any]) -> Any:
    """What the API server stores: defaults of the schema, from the outside in."""
    if isinstance(value, dict):
        known = schema.get("properties", {})
        missing = {name: item["default"] for name, item in known.items() if name not in value and "default" in item}
        return {name: with_defaults(item, known.get(name, {})) for name, item in (value | missing).items()}
    if isinstance(value, list):
        return [with_defaults(item, schema.get("items", {})) for item in value]
    return value


def test_defaults_of_schema_and_models_are_the_same() -> None:
    document = make_manifest(stop={"target": {"value": "a", "atMost": 1}}, env=[{"name": "A"}])
    stored = with_defaults(document["spec"], SCHEMA["properties"]["spec"])
    ours = parse(document).to_document()["spec"]

    def without_empty(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: without_empty(v) for k, v in value.items() if v not in ([], {}) and without_empty(v) != {}}
        return [without_empty(v) for v in value] if isinstance(value, list) else value

    assert without_empty(ours) == without_empty(stored)


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"anyOf": [{"type": "integer"}, {"type": "string"}]}, id="a union of two types"),
        pytest.param({"const": "x", "type": "string"}, id="a constant"),
        pytest.param({"type": "integer", "exclusiveMinimum": 0}, id="an open bound"),
        pytest.param({}, id="anything"),
    ],
)
def test_a_field_without_structural_form_is_noticed(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no structural form"):
        structural(schema, {}, defaults=True)


def test_the_columns_are_those_that_people_look_for() -> None:
    names = [column["name"] for column in crd()["spec"]["versions"][0]["additionalPrinterColumns"]]
    assert names == ["State", "Step", "Samples/s", "Workers", "PS", "Staleness", "Age"]


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
texts = st.text("aAyYnNoO01.:-# ~'\"{}[]&*!|>%@`,\n\té", max_size=8)


@given(
    st.recursive(
        scalars | texts, lambda v: st.lists(v, max_size=3) | st.dictionaries(texts, v, max_size=3), max_leaves=8
    )
)
def test_yaml_reads_back_as_the_same_value(value: Any) -> None:
    assert yaml.safe_load(to_yaml({"key": value})) == {"key": value}


def test_what_breaks_a_pattern_is_told_in_words_and_not_by_the_pattern() -> None:
    entries = [
        entry
        for kind in KINDS.values()
        for version in crd(kind)["spec"]["versions"]
        for path, node in walk(version["schema"]["openAPIV3Schema"])
        if not path.startswith("status")
        for entry in [*node.get(VALIDATIONS, ()), *([{"rule": "a pattern"}] if "pattern" in node else [])]
        if "pattern" in entry["rule"] or entry["rule"].endswith('$")')
    ]
    assert len(entries) >= 15
    assert [entry for entry in entries if not entry.get("message", "").startswith("must be ")] == []
    assert "x-heterotrain-words" not in "".join(crd_yaml(kind) for kind in KINDS.values())
