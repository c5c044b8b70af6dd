from __future__ import annotations

import copy
from typing import Any

import pytest

from heterotrain_api.v1alpha1 import HeteroTrainJob
from heterotrain_operator.local.overrides import Override, OverrideError, apply_overrides, parse_override

SCHEMA = HeteroTrainJob.model_json_schema(by_alias=True)


def document() -> dict[str, Any]:
    return {
        "metadata": {"name": "tiny"},
        "spec": {
            "globalBatchSize": 8,
            "command": ["python", "x.py"],
            "workers": [{"name": "gpu"}, {"name": "cpu", "replicas": 2, "batch": {"initial": 3}}],
            "parameterServers": {"template": {"spec": {"hostNetwork": False}}},
        },
    }


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("spec.seed=9", Override(("spec", "seed"), 9)),
        ('spec.image="9"', Override(("spec", "image"), "9")),
        ("spec.args=[--lr, 0.1]", Override(("spec", "args"), ["--lr", 0.1])),
        ("spec.image=a=b", Override(("spec", "image"), "a=b")),
        ("spec.stop.rounds=", Override(("spec", "stop", "rounds"), None)),
    ],
)
def test_an_override_is_typed_as_in_yaml(text: str, want: Override) -> None:
    assert parse_override(text) == want


@pytest.mark.parametrize("text", ["spec.seed", "=3", "spec..seed=3", "spec.seed=[1", "spec.seed={"])
def test_what_is_no_override_is_refused(text: str) -> None:
    with pytest.raises(OverrideError, match=r"^--set "):
        parse_override(text)


@pytest.mark.parametrize(
    ("texts", "path", "want"),
    [
        pytest.param(["spec.globalBatchSize=16"], ("spec", "globalBatchSize"), 16, id="a value is replaced"),
        pytest.param(["spec.workers.0.replicas=3"], ("spec", "workers", 0, "replicas"), 3, id="an item by its index"),
        pytest.param(
            ["spec.workers.cpu.batch.max=7"],
            ("spec", "workers", 1, "batch"),
            {"initial": 3, "max": 7},
            id="an item by its name",
        ),
        pytest.param(["spec.stop.rounds=5"], ("spec", "stop"), {"rounds": 5}, id="what is on the way is made"),
        pytest.param(["spec.adaptation.mode=Off"], ("spec", "adaptation"), {"mode": "Off"}, id="a word, as written"),
        pytest.param(["spec.seed=1", "spec.seed=2"], ("spec", "seed"), 2, id="the last one wins"),
        pytest.param(
            ["spec.workers.gpu.resources.limits.memory=1Gi"],
            ("spec", "workers", 0, "resources"),
            {"limits": {"memory": "1Gi"}},
            id="the keys of a map are free",
        ),
        pytest.param(
            ["spec.parameterServers.template.spec.hostNetwork=true"],
            ("spec", "parameterServers", "template", "spec"),
            {"hostNetwork": True},
            id="what the schema leaves open is not looked at",
        ),
        pytest.param(["spec.command.1=y.py"], ("spec", "command"), ["python", "y.py"], id="a word of the command"),
    ],
)
def test_overrides_change_the_manifest(texts: list[str], path: tuple[Any, ...], want: object) -> None:
    node: Any = apply_overrides(document(), [parse_override(text) for text in texts], SCHEMA)
    for part in path:
        node = node[part]
    assert node == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(
            "spec.globlBatchSize=1", "spec has no field 'globlBatchSize'; did you mean globalBatchSize?", id="a slip"
        ),
        pytest.param("specs.seed=1", "the manifest has no field 'specs'; did you mean spec?", id="a slip at the top"),
        pytest.param(
            "spec.workers.tpu.replicas=1", "spec.workers has no item 'tpu'; its items: gpu, cpu", id="no such group"
        ),
        pytest.param("spec.workers.².replicas=1", "spec.workers has no item '²'", id="a digit that is no number"),
        pytest.param("spec.workers.2.replicas=1", "spec.workers has 2 items; 2 must be below that", id="no such index"),
        pytest.param("spec.output.folder=x", "spec.output has no field 'folder'; it has: volume", id="nothing like it"),
        pytest.param(
            "spec.workers.cpu.batch.initial.x=1",
            "spec.workers.cpu.batch.initial is 3 in the manifest",
            id="below a number",
        ),
    ],
)
def test_an_unknown_path_is_refused(text: str, want: str) -> None:
    with pytest.raises(OverrideError) as caught:
        apply_overrides(document(), [parse_override(text)], SCHEMA)
    assert want in str(caught.value)


def test_the_manifest_itself_is_left_alone() -> None:
    before = document()
    after = copy.deepcopy(before)
    apply_overrides(after, [parse_override("spec.workers.cpu.replicas=9")], SCHEMA)
    assert after == before
