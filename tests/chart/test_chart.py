"""The chart, rendered by helm: what each switch changes, and what is refused. Run by hack/check-chart.sh."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from heterotrain_api.validation import validate
from heterotrain_operator.job.settings import JobSettings
from heterotrain_operator.kube import RULES
from heterotrain_operator.settings import OperatorSettings, read_settings

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "charts" / "heterotrain-operator"
SCHEMA: Final = json.loads((CHART / "values.schema.json").read_text())
VALUES: Final = yaml.safe_load((CHART / "values.yaml").read_text())

Document = dict[str, Any]


def helm(*options: str) -> subprocess.CompletedProcess[str]:
    command = ["helm", "template", "heterotrain", str(CHART), "--namespace", "system", "--kube-version", "1.34.0"]
    return subprocess.run([*command, *options], check=False, capture_output=True, text=True)


def render(*settings: str) -> list[Document]:
    done = helm(*(part for setting in settings for part in ("--set", setting)))
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document is not None]


def without_hooks(documents: list[Document]) -> list[Document]:
    return [d for d in documents if "helm.sh/hook" not in d["metadata"].get("annotations", {})]


def pick(documents: list[Document], kind: str, name: str = "") -> list[Document]:
    return [d for d in documents if d["kind"] == kind and d["metadata"]["name"].endswith(name)]


def the_pod(documents: list[Document]) -> Document:
    (deployment,) = pick(documents, "Deployment")
    pod: Document = deployment["spec"]["template"]["spec"]
    return pod


def environment(documents: list[Document]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in the_pod(documents)["containers"][0]["env"]}


def test_default_objects() -> None:
    documents = without_hooks(render())
    assert sorted((d["kind"], d["metadata"]["name"], d["metadata"].get("namespace")) for d in documents) == [
        ("ClusterRole", "system:heterotrain-operator", None),
        ("ClusterRole", "system:heterotrain-operator:edit", None),
        ("ClusterRole", "system:heterotrain-operator:view", None),
        ("ClusterRoleBinding", "system:heterotrain-operator", None),
        ("CustomResourceDefinition", "heterotrainjobs.heterotrain.io", None),
        ("Deployment", "heterotrain-operator", "system"),
        ("ServiceAccount", "heterotrain-operator", "system"),
    ]


def test_the_default_pod_is_one_that_pod_security_restricted_admits() -> None:
    pod = the_pod(render())
    (container,) = pod["containers"]
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"requests", "limits"} <= container["resources"].keys()
    assert pod["volumes"] == [{"name": "tmp", "emptyDir": {}}]


def test_there_is_one_operator_and_never_two() -> None:
    (deployment,) = pick(render(), "Deployment")
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})


def test_the_crd_is_the_generated_one_and_stays() -> None:
    (crd,) = pick(render(), "CustomResourceDefinition")
    assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert crd["metadata"].pop("labels")["app.kubernetes.io/managed-by"] == "Helm"
    assert crd == yaml.safe_load((ROOT / "crds" / "heterotrainjobs.yaml").read_text())


def test_the_crd_can_be_left_out_or_left_to_go() -> None:
    assert pick(render("crds.enabled=false"), "CustomResourceDefinition") == []
    (crd,) = pick(render("crds.keep=false"), "CustomResourceDefinition")
    assert "annotations" not in crd["metadata"]


def test_the_role_gives_what_the_operator_uses_and_nothing_else() -> None:
    (role,) = pick(render(), "ClusterRole", "operator")
    want = [{key: list(values) for key, values in rule.items()} for rule in RULES]
    assert role["rules"] == want


def test_namespaced_scope_has_roles_in_its_namespaces_only() -> None:
    documents = without_hooks(render("scope=Namespace", "watchNamespaces={a,b}", "rbac.aggregate=false"))
    assert pick(documents, "ClusterRole") == pick(documents, "ClusterRoleBinding") == []
    roles, bindings = pick(documents, "Role"), pick(documents, "RoleBinding")
    assert [role["metadata"]["namespace"] for role in roles] == ["a", "b"]
    assert [binding["metadata"]["namespace"] for binding in bindings] == ["a", "b"]
    assert {subject["namespace"] for binding in bindings for subject in binding["subjects"]} == {"system"}
    assert environment(documents)["KOPF_RUN_NAMESPACES"] == "a b"
    assert "--all-namespaces" not in the_pod(documents)["containers"][0]["args"]


def test_namespaced_scope_without_namespaces_is_the_release_s_own() -> None:
    documents = without_hooks(render("scope=Namespace"))
    assert [role["metadata"]["namespace"] for role in pick(documents, "Role")] == ["system"]
    assert environment(documents)["KOPF_RUN_NAMESPACES"] == "system"


def test_the_operator_reads_what_the_chart_sets() -> None:
    chosen = ("settings.statusIntervalSeconds=30", "settings.coordinatorRequests.cpu=10m", "settings.runAsUser=")
    shell, job = read_settings(environment(render(*chosen)))
    assert shell == OperatorSettings(metrics_port=8081)
    assert job == JobSettings(
        trainer_image="heterotrain/trainer:0.1.0",
        status_interval_seconds=30,
        coordinator_requests={"cpu": "10m"},
        run_as_user=None,
    )


def test_the_schema_has_every_setting_of_the_operator() -> None:
    elsewhere = {"namespaces", "metrics_port", "trainer_image"}
    names = {field.name for kind in (OperatorSettings, JobSettings) for field in fields(kind)} - elsewhere
    camel = {re.sub("_([a-z])", lambda match: match[1].upper(), name) for name in names}
    assert set(SCHEMA["properties"]["settings"]["properties"]) == camel


def test_images_by_digest_and_registry() -> None:
    digest = "sha256:" + "a" * 64
    documents = render(f"image.digest={digest}", "image.registry=mirror.example/x", "trainerImage.tag=1.2")
    assert the_pod(documents)["containers"][0]["image"] == f"mirror.example/x/heterotrain/operator@{digest}"
    assert environment(documents)["HETEROTRAIN_OPERATOR_TRAINER_IMAGE"] == "heterotrain/trainer:1.2"


def test_a_service_account_of_somebody_else() -> None:
    documents = without_hooks(render("serviceAccount.create=false", "serviceAccount.name=other"))
    assert pick(documents, "ServiceAccount") == []
    assert the_pod(documents)["serviceAccountName"] == "other"
    (binding,) = pick(documents, "ClusterRoleBinding")
    assert [subject["name"] for subject in binding["subjects"]] == ["other"]


def test_no_right_is_given_if_somebody_else_does() -> None:
    documents = without_hooks(render("rbac.create=false", "rbac.aggregate=false"))
    assert [d["kind"] for d in documents if "Role" in d["kind"]] == []


def test_people_who_edit_a_namespace_may_edit_its_jobs() -> None:
    documents = render()
    ((view,), (edit,)) = (pick(documents, "ClusterRole", name) for name in (":view", ":edit"))
    aggregates = "rbac.authorization.k8s.io/aggregate-to-"
    assert [key for key in view["metadata"]["labels"] if key.startswith(aggregates)] == [
        f"{aggregates}view",
        f"{aggregates}edit",
        f"{aggregates}admin",
    ]
    assert [key for key in edit["metadata"]["labels"] if key.startswith(aggregates)] == [
        f"{aggregates}edit",
        f"{aggregates}admin",
    ]
    assert edit["rules"][0]["verbs"] == ["create", "update", "patch", "delete", "deletecollection"]


def test_helm_test_starts_a_valid_job_in_a_pod_that_the_deployment_does_not_select() -> None:
    documents = render("trainerImage.tag=1.2")
    (pod,) = pick(documents, "Pod")
    (container,) = pod["spec"]["containers"]
    job = json.loads(container["env"][0]["value"])
    assert validate({**job, "metadata": {"name": "helm-test-x"}}) == []
    assert job["spec"]["image"] == "heterotrain/trainer:1.2"
    for code in (job["spec"]["command"][-1], container["command"][-1]):
        compile(code, "of the chart", "exec")
    (deployment,) = pick(documents, "Deployment")
    assert pod["metadata"]["labels"].items() & deployment["spec"]["selector"]["matchLabels"].items() == {
        ("app.kubernetes.io/instance", "heterotrain")
    }


def test_helm_test_needs_the_release_s_namespace_to_be_served() -> None:
    assert pick(render("scope=Namespace", "watchNamespaces={a}"), "Pod") == []
    assert len(pick(render("scope=Namespace", "watchNamespaces={a,system}"), "Pod")) == 1


@pytest.mark.parametrize(
    ("setting", "want"),
    [
        pytest.param("replicas=2", "at '/replicas'", id="two operators"),
        pytest.param("scpoe=Cluster", "additional properties 'scpoe'", id="a typing error"),
        pytest.param("settings.statusInterval=3", "additional properties 'statusInterval'", id="an unknown setting"),
        pytest.param("scope=Everything", "at '/scope'", id="an unknown scope"),
        pytest.param("image.tag=latest", "must name a version, not be latest", id="a floating tag"),
        pytest.param("trainerImage.tag=latest", "must name a version, not be latest", id="a floating trainer"),
        pytest.param("image.digest=abc", "at '/image/digest'", id="a digest that is none"),
        pytest.param("ports.health=80", "at '/ports/health'", id="a port that needs rights"),
        pytest.param("watchNamespaces={A_b}", "at '/watchNamespaces/0'", id="a namespace that cannot be"),
    ],
)
def test_wrong_values_are_refused_by_name(setting: str, want: str) -> None:
    done = helm("--set", setting)
    assert done.returncode != 0
    assert want in done.stderr


def test_schema_is_closed_and_explains_every_value() -> None:
    maps = {"global", "commonLabels", "nodeSelector", "podLabels", "podAnnotations", "annotations", "affinity"}
    maps |= {"requests", "limits", "podSecurityContext", "securityContext", "coordinatorRequests", "coordinatorLimits"}
    faults = []
    for path, schema in walk(SCHEMA, "values"):
        if not schema.get("description"):
            faults.append(f"{path}: no description")
        is_open = schema.get("type") == "object" and schema.get("additionalProperties") is not False
        if is_open and path.split(".")[-1] not in maps:
            faults.append(f"{path}: open")
    assert faults == []


def walk(schema: Document, path: str) -> Iterator[tuple[str, Document]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")


def test_every_value_is_in_the_schema() -> None:
    assert set(VALUES) == set(SCHEMA["properties"]) - {"global"}
