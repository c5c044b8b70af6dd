"""The chart, rendered by helm: what each switch changes, and what is refused. Run by hack/check-chart.sh."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from heterotrain_api.validation import validate
from heterotrain_operator.info import api_reader
from heterotrain_operator.info.cluster import door
from heterotrain_operator.info.packs import CLUSTER, PROMETHEUS, pack_names
from heterotrain_operator.job.settings import JobSettings
from heterotrain_operator.kube import RULES
from heterotrain_operator.rest import cluster_access
from heterotrain_operator.settings import InfoSettings, OperatorSettings, read_settings

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "charts" / "heterotrain-operator"
RELEASE: Final = "heterotrain-operator"
SCHEMA: Final = json.loads((CHART / "values.schema.json").read_text())
VALUES: Final = yaml.safe_load((CHART / "values.yaml").read_text())

Document = dict[str, Any]


def helm(*options: str) -> subprocess.CompletedProcess[str]:
    command = ["helm", "template", RELEASE, str(CHART), "--namespace", "system", "--kube-version", "1.34.0"]
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
        ("ClusterRole", "system:heterotrain-operator:cluster-information", None),
        ("ClusterRole", "system:heterotrain-operator:edit", None),
        ("ClusterRole", "system:heterotrain-operator:information", None),
        ("ClusterRole", "system:heterotrain-operator:view", None),
        ("ClusterRoleBinding", "system:heterotrain-operator", None),
        ("ClusterRoleBinding", "system:heterotrain-operator:information", None),
        ("CustomResourceDefinition", "collectionrules.heterotrain.io", None),
        ("CustomResourceDefinition", "heterotrainjobs.heterotrain.io", None),
        ("CustomResourceDefinition", "processingrules.heterotrain.io", None),
        ("Deployment", "heterotrain-operator", "system"),
        ("Role", "heterotrain-operator-rules", "system"),
        ("RoleBinding", "heterotrain-operator-rules", "system"),
        ("Service", "heterotrain-operator", "system"),
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


def test_the_crds_are_the_generated_ones_and_stay() -> None:
    crds = pick(render(), "CustomResourceDefinition")
    for crd in crds:
        assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        assert crd["metadata"].pop("labels")["app.kubernetes.io/managed-by"] == "Helm"
    generated = [yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml")]
    assert {crd["metadata"]["name"]: crd for crd in crds} == {crd["metadata"]["name"]: crd for crd in generated}


def test_the_crds_can_be_left_out_or_left_to_go() -> None:
    assert pick(render("crds.enabled=false"), "CustomResourceDefinition") == []
    crds = pick(render("crds.keep=false"), "CustomResourceDefinition")
    assert [crd["metadata"].get("annotations") for crd in crds] == [None] * 3


def rules(*parts: Sequence[Mapping[str, Sequence[str]]]) -> list[dict[str, list[str]]]:
    """As a rendered role has them."""
    return [{key: list(values) for key, values in rule.items()} for part in parts for rule in part]


def test_the_roles_give_what_the_operator_uses_and_nothing_else() -> None:
    documents = render()
    (role,) = pick(documents, "ClusterRole", "operator")
    assert role["rules"] == rules(RULES)
    (role,) = pick(documents, "Role", "operator-rules")
    assert role["rules"] == rules(door.RULES)
    (role,) = pick(documents, "ClusterRole", "operator:information")
    assert role["rules"] == rules(api_reader.NODE_RULES, cluster_access.RULES)


def test_what_kubelets_can_do_is_given_only_if_asked_for() -> None:
    (role,) = pick(render("information.kubelet=true"), "ClusterRole", "operator:information")
    assert role["rules"] == rules(api_reader.NODE_RULES, cluster_access.RULES, api_reader.KUBELET_RULES)
    (role,) = pick(render("rest.enabled=false"), "ClusterRole", "operator:information")
    assert role["rules"] == rules(api_reader.NODE_RULES)


@pytest.mark.parametrize(
    ("settings", "made"),
    [
        (("scope=Cluster",), True),
        (("scope=Namespace",), False),
        (("scope=Namespace", "information.clusterRole=Always"), True),
        (("information.clusterRole=Never",), False),
        (("information.clusterRole=Always", "rbac.create=false"), False),
    ],
)
def test_the_optional_cluster_role(settings: tuple[str, ...], made: bool) -> None:
    documents = render(*settings)
    found = [*pick(documents, "ClusterRole", ":information"), *pick(documents, "ClusterRoleBinding", ":information")]
    assert len(found) == (2 if made else 0)


def test_without_the_information_service_nothing_of_it_is_there() -> None:
    documents = without_hooks(render("information.enabled=false", "information.credentials.a=b", "rest.tlsSecret=c"))
    (role,) = pick(documents, "ClusterRole", "operator")
    assert role["rules"] == rules(RULES)
    kinds = [d["kind"] for d in documents if d["kind"] in ("Role", "RoleBinding", "Service")]
    assert (kinds, pick(documents, "ClusterRole", ":information")) == ([], [])
    _, _, info = read_settings(environment(documents))
    assert info == InfoSettings()
    assert [volume["name"] for volume in the_pod(documents)["volumes"]] == ["tmp"]


def info_settings(*settings: str) -> InfoSettings:
    _, _, info = read_settings(environment(render(*settings)))
    return info


def test_the_information_service_gets_what_is_set() -> None:
    assert info_settings() == InfoSettings(
        rules_namespace="system", rule_packs=tuple(pack for pack in CLUSTER if pack != "cadvisor"), rest_port=8082
    )
    assert info_settings("information.kubelet=true").rule_packs == CLUSTER
    assert info_settings("information.packs={none}").rule_packs == ()
    assert info_settings("information.packs={trainer,dcgm}").rule_packs == ("trainer", "dcgm")
    assert info_settings(
        "information.prometheus.url=http://prometheus:9090",
        "information.prometheus.credentials=prom",
        "information.credentials.prom=prometheus-token",
        "information.withoutRules={node-steal}",
        "information.allowedHosts={*.svc,n1}",
        "information.history.enabled=true",
        "rest.tlsSecret=rest-tls",
        "ports.rest=9000",
        "settings.retentionSeconds=7200",
    ) == InfoSettings(
        rules_namespace="system",
        rule_packs=PROMETHEUS,
        without_rules=("node-steal",),
        prometheus_url="http://prometheus:9090",
        prometheus_credentials="prom",
        allowed_hosts=("*.svc", "n1"),
        history_file="/var/lib/heterotrain/history.sqlite",
        rest_port=9000,
        rest_certificates="/etc/heterotrain/rest",
        retention_seconds=7200,
    )


def test_without_rights_on_nodes_there_is_no_rule_that_could_only_fail() -> None:
    assert info_settings("scope=Namespace").without_rules == ("kubernetes-nodes",)
    assert info_settings("scope=Namespace", "information.withoutRules={a}").without_rules == ("a", "kubernetes-nodes")
    assert info_settings("scope=Namespace", "information.clusterRole=Always").without_rules == ()
    assert info_settings("information.clusterRole=Never").without_rules == ("kubernetes-nodes",)
    # Somebody else gives the rights.
    assert info_settings("rbac.create=false").without_rules == ()


def test_packs_that_can_be_chosen_are_those_that_there_are() -> None:
    choice = SCHEMA["properties"]["information"]["properties"]["packs"]["items"]["enum"]
    assert choice == ["none", *pack_names()]


def test_files_of_the_information_service_are_mounted_where_it_looks() -> None:
    documents = render("information.credentials.prom=yes", "information.history.enabled=true", "rest.tlsSecret=n")
    pod = the_pod(documents)
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts == {
        "tmp": "/tmp",
        "history": "/var/lib/heterotrain",
        "credentials-prom": f"{InfoSettings().credentials_folder}/prom",
        "rest": "/etc/heterotrain/rest",
    }
    assert pod["securityContext"]["fsGroup"] == 65532
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["history"]["emptyDir"] == {"sizeLimit": "2Gi"}
    assert volumes["rest"]["secret"] == {"secretName": "n"}
    assert volumes["credentials-prom"]["secret"] == {"secretName": "yes", "optional": True}
    # A name that YAML would read as a truth value.
    pod = the_pod(render("information.history.enabled=true", "information.history.existingClaim=on"))
    assert {"name": "history", "persistentVolumeClaim": {"claimName": "on"}} in pod["volumes"]


def test_the_rest_service_leads_to_the_operator_s_port() -> None:
    documents = render("rest.service.port=8443")
    (service,) = pick(documents, "Service")
    assert service["spec"]["ports"] == [{"name": "rest", "port": 8443, "targetPort": "rest"}]
    ports = {port["name"]: port["containerPort"] for port in the_pod(documents)["containers"][0]["ports"]}
    assert ports["rest"] == 8082
    assert pick(render("rest.enabled=false"), "Service") == []


def test_namespaced_scope_has_roles_in_its_namespaces_only() -> None:
    documents = without_hooks(render("scope=Namespace", "watchNamespaces={a,b}", "rbac.aggregate=false"))
    assert pick(documents, "ClusterRole") == pick(documents, "ClusterRoleBinding") == []
    roles, bindings = pick(documents, "Role"), pick(documents, "RoleBinding")
    places = [("heterotrain-operator", "a"), ("heterotrain-operator", "b"), ("heterotrain-operator-rules", "system")]
    for objects in (roles, bindings):
        assert sorted((o["metadata"]["name"], o["metadata"]["namespace"]) for o in objects) == places
    assert {subject["namespace"] for binding in bindings for subject in binding["subjects"]} == {"system"}
    assert environment(documents)["KOPF_RUN_NAMESPACES"] == "a b"
    assert "--all-namespaces" not in the_pod(documents)["containers"][0]["args"]


def test_namespaced_scope_without_namespaces_is_the_release_s_own() -> None:
    documents = without_hooks(render("scope=Namespace"))
    assert {role["metadata"]["namespace"] for role in pick(documents, "Role")} == {"system"}
    assert environment(documents)["KOPF_RUN_NAMESPACES"] == "system"


def test_the_operator_reads_what_the_chart_sets() -> None:
    chosen = ("settings.statusIntervalSeconds=30", "settings.coordinatorRequests.cpu=10m", "settings.runAsUser=")
    shell, job, _ = read_settings(environment(render(*chosen)))
    assert shell == OperatorSettings(metrics_port=8081)
    assert job == JobSettings(
        trainer_image="heterotrain/trainer:0.1.0",
        status_interval_seconds=30,
        coordinator_requests={"cpu": "10m"},
        run_as_user=None,
    )


def test_the_schema_has_every_setting_of_the_operator() -> None:
    elsewhere = {"namespaces", "metrics_port", "trainer_image", "rules_namespace", "rule_packs", "without_rules"}
    elsewhere |= {"prometheus_url", "prometheus_credentials", "allowed_hosts", "credentials_folder", "history_file"}
    elsewhere |= {"rest_port", "rest_certificates"}
    kinds = (OperatorSettings, JobSettings, InfoSettings)
    names = {field.name for kind in kinds for field in fields(kind)} - elsewhere
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
    bindings = [d for d in documents if d["kind"].endswith("Binding")]
    assert [s["name"] for binding in bindings for s in binding["subjects"]] == ["other"] * 3


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
    (reader,) = pick(documents, "ClusterRole", name=":cluster-information")
    assert [key for key in reader["metadata"]["labels"] if key.startswith(aggregates)] == []
    assert reader["rules"][0]["resources"] == ["information", "clusterinformation"]


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
        ("app.kubernetes.io/instance", RELEASE)
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
        pytest.param("information.packs={gpus}", "at '/information/packs/0'", id="a pack that there is not"),
        pytest.param("information.clusterRole=true", "at '/information/clusterRole'", id="a choice that is none"),
        pytest.param("information.prometheus.url=prometheus", "at '/information/prometheus/url'", id="no address"),
        pytest.param(
            "information.prometheus.credentials=x", "x is not in information.credentials", id="credentials of nobody"
        ),
        pytest.param("watchNamespaces={A_b}", "at '/watchNamespaces/0'", id="a namespace that cannot be"),
    ],
)
def test_wrong_values_are_refused_by_name(setting: str, want: str) -> None:
    done = helm("--set", setting)
    assert done.returncode != 0
    assert want in done.stderr


def test_schema_is_closed_and_explains_every_value() -> None:
    maps = {"global", "commonLabels", "nodeSelector", "podLabels", "podAnnotations", "annotations", "affinity"}
    maps |= {"credentials"}
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
