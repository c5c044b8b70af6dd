"""Manifests of information rules: builders, and a wrong one for every rule over several fields."""

from __future__ import annotations

from typing import Any


def make_manifest(kind: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "heterotrain.io/v1alpha1", "kind": kind, "metadata": {"name": "rule"}, "spec": spec}


def process(*chain: dict[str, Any], **spec: Any) -> dict[str, Any]:
    spec = {"inputs": {"x": {"metric": "x"}}, "output": {"metric": "y"}, **spec}
    steps = list(chain) or [{"operator": "ewma", "alpha": 0.3}]
    return make_manifest("ProcessingRule", chain=steps, **{k: v for k, v in spec.items() if v is not None})


def collect(*metrics: dict[str, Any], **spec: Any) -> dict[str, Any]:
    spec = {"source": {"endpoint": {"url": "http://a/"}}, "entity": [{"name": "node/{n}"}], **spec}
    return make_manifest(
        "CollectionRule", metrics=list(metrics) or [{"name": "m"}], **{k: v for k, v in spec.items() if v is not None}
    )


PROMETHEUS = {"prometheus": {"url": "http://a:9090"}}
STEP = "spec.chain[0]"

BROKEN: list[tuple[str, dict[str, Any], str, str]] = [  # what, the rule, the field that is named, words about it
    ("ewma without alpha", process({"operator": "ewma"}), f"{STEP}.alpha", "given with operator ewma, and only"),
    ("alpha elsewhere", process({"operator": "rate", "alpha": 0.1}), f"{STEP}.alpha", "and only with it"),
    ("ewma_t without half_life", process({"operator": "ewma_t"}), f"{STEP}.half_life", "operator ewma_t"),
    ("quantile without q", process({"operator": "quantile"}), f"{STEP}.q", "operator quantile"),
    ("threshold without hi", process({"operator": "threshold", "lo": 1}), f"{STEP}.hi", "operator threshold"),
    ("threshold without lo", process({"operator": "threshold", "hi": 1}), f"{STEP}.lo", "operator threshold"),
    ("lo above hi", process({"operator": "threshold", "hi": 1, "lo": 2}), f"{STEP}.lo", "at most hi"),
    ("cusum without ref", process({"operator": "cusum", "h": 1}), f"{STEP}.ref", "operator cusum"),
    ("cusum without h", process({"operator": "cusum", "ref": 1}), f"{STEP}.h", "operator cusum"),
    ("expr without expression", process({"operator": "expr"}), f"{STEP}.expression", "operator expr"),
    ("hold elsewhere", process({"operator": "rate", "hold": 2}), f"{STEP}.hold", "unless operator is threshold"),
    ("drift elsewhere", process({"operator": "rate", "drift": 2}), f"{STEP}.drift", "unless operator is cusum"),
    ("reset elsewhere", process({"operator": "rate", "reset": True}), f"{STEP}.reset", "unless operator is cusum"),
    ("bytes elsewhere", process({"operator": "rate", "bytes": "x"}), f"{STEP}.bytes", "unless operator is alpha_beta"),
    ("seconds elsewhere", process({"operator": "rate", "seconds": "x"}), f"{STEP}.seconds", "operator is alpha_beta"),
    ("no output", process(output=None), "spec", "exactly one of output and outputs"),
    ("output and outputs", process(outputs={"value": {"metric": "z"}}), "spec", "exactly one of output and outputs"),
    ("period without trigger", process(period=5), "spec.period", "trigger: period, and only with it"),
    ("trigger without period", process(trigger="period"), "spec.period", "trigger: period, and only with it"),
    (
        "inputs of others only",
        process(inputs={"x": {"metric": "x", "of": "a/b"}}),
        "spec.inputs",
        "an input without of",
    ),
    (
        "many without aggregate",
        process(inputs={"x": {"metric": "x"}, "n": {"metric": "x", "of": "node/*"}}),
        "spec.inputs",
        "must have aggregate",
    ),
    (
        "aggregate without of",
        process(inputs={"x": {"metric": "x", "aggregate": "sum"}}),
        "spec.inputs",
        "never without of",
    ),
    ("two sources", collect(source={**PROMETHEUS, "local": {"reader": "psutil"}}), "spec.source", "exactly one of"),
    ("no source", collect(source={}), "spec.source", "exactly one of prometheus, endpoint"),
    ("a timeout above the interval", collect(interval=2, timeout=3), "spec.timeout", "at most interval"),
    ("prometheus without a query", collect(source=PROMETHEUS), "spec.metrics", "a query each with source prometheus"),
    ("a query without prometheus", collect({"name": "m", "query": "m"}), "spec.metrics", "none with another source"),
    ("nobody that it is about", collect(entity=None), "spec.entity", "must say which entity"),
    (
        "range without step",
        collect({"name": "m", "query": "m", "range": 9}, source=PROMETHEUS),
        "spec.metrics[0].range",
        "step",
    ),
    (
        "timeQuery without query",
        collect({"name": "m", "timeQuery": "m"}),
        "spec.metrics[0].timeQuery",
        "unless there is a query",
    ),
    ("valueLabel of a gauge", collect({"name": "m", "valueLabel": "a"}), "spec.metrics[0].valueLabel", "state or text"),
    ("min above max", collect({"name": "m", "min": 2, "max": 1}), "spec.metrics[0].min", "at most max"),
    ("an unknown field", process(widnow=5), "spec.widnow", "did you mean window?"),
    (
        "a parameter of another name",
        process({"operator": "ewma", "alhpa": 0.3}),
        f"{STEP}.alhpa",
        "did you mean alpha?",
    ),
    ("an operator that is none", process({"operator": "ewna"}), f"{STEP}.operator", "ewma"),
    ("two metrics of one name", collect({"name": "m"}, {"name": "m"}), "spec.metrics[1].name", "must be unique"),
    (
        "credentials that lead away",
        collect(source={"endpoint": {"url": "http://a/", "credentials": "../x"}}),
        "spec.source.endpoint.credentials",
        "must be small letters, digits and -, with no - at the ends, not '../x': for example x",
    ),
    (
        "a URL with a password",
        collect(source={"endpoint": {"url": "http://u:p@a/"}}),
        "spec.source.endpoint.url",
        "must be http:// or https://, a host",
    ),
    (
        "a file's URL",
        collect(source={"endpoint": {"url": "file:///etc/passwd"}}),
        "spec.source.endpoint.url",
        "must be http:// or https://, a host",
    ),
    ("an alpha of 0", process({"operator": "ewma", "alpha": 0}), f"{STEP}.alpha", "must be between 1e-09 and 1"),
]
