"""One control plane for the whole run, a fresh namespace with the operator's rights for each test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from heterotrain_operator.info import api_reader
from heterotrain_operator.info.cluster import door
from heterotrain_operator.kube import RULES
from heterotrain_operator.rest import cluster_access
from support.api_proxy import ApiProxy, api_proxy
from support.control_plane import OPERATOR, ControlPlane, Namespace, control_plane, rules_of
from support.operator_process import OperatorProcess
from support.zygote import OF_THE_OPERATOR, Zygote

_numbers = itertools.count(1)
NAMESPACED = (*RULES, *door.RULES)
"""What the chart's Roles give in the operator's own namespace, when it serves that one."""


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("plane")) as found:
        yield found


@pytest.fixture
def admin(plane: ControlPlane) -> Iterator[httpx.Client]:
    with plane.client() as client:
        yield client


@pytest.fixture
def make_namespace(admin: httpx.Client) -> Iterator[Callable[..., Namespace]]:
    made: list[Namespace] = []

    def make(**labels: str) -> Namespace:
        name = f"test-{next(_numbers)}"
        admin.post("/api/v1/namespaces", json={"metadata": {"name": name, "labels": labels}}).raise_for_status()
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{name}"
        admin.post(f"{rbac}/roles", json=rules_of("operator", NAMESPACED)).raise_for_status()
        binding = {
            "metadata": {"name": "operator"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": OPERATOR}],
        }
        admin.post(f"{rbac}/rolebindings", json=binding).raise_for_status()
        made.append(Namespace(admin, name))
        return made[-1]

    yield make
    for namespace in made:
        admin.delete(f"/api/v1/namespaces/{namespace.name}")


@pytest.fixture
def namespace(make_namespace: Callable[..., Namespace]) -> Namespace:
    return make_namespace()


@pytest.fixture
def wide_rights(admin: httpx.Client) -> Iterator[None]:
    """The operator's rights in all namespaces. To be asked for before `start_operator`: it needs them to its end."""
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    admin.post(f"{rbac}/clusterroles", json=rules_of("operator", RULES) | {"kind": "ClusterRole"}).raise_for_status()
    binding = {
        "metadata": {"name": "operator"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "operator"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": OPERATOR}],
    }
    admin.post(f"{rbac}/clusterrolebindings", json=binding).raise_for_status()
    yield
    for kind in ("clusterrolebindings", "clusterroles"):
        admin.delete(f"{rbac}/{kind}/operator").raise_for_status()


@pytest.fixture
def optional_rights(admin: httpx.Client) -> Iterator[None]:
    """What the chart's optional ClusterRole gives: nodes, and who may do what. Before `start_operator`, too."""
    rbac, name = "/apis/rbac.authorization.k8s.io/v1", "operator-information"
    rules = (*api_reader.NODE_RULES, *cluster_access.RULES)
    admin.post(f"{rbac}/clusterroles", json=rules_of(name, rules) | {"kind": "ClusterRole"}).raise_for_status()
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": OPERATOR}],
    }
    admin.post(f"{rbac}/clusterrolebindings", json=binding).raise_for_status()
    yield
    for kind in ("clusterrolebindings", "clusterroles"):
        admin.delete(f"{rbac}/{kind}/{name}").raise_for_status()


@pytest.fixture
def proxy(plane: ControlPlane) -> Iterator[ApiProxy]:
    with api_proxy(plane.url, plane.ca) as found:
        yield found


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """What operators are forked from."""
    made = Zygote(OF_THE_OPERATOR)
    yield made
    made.close()


RETRIED_BY_KOPF = ("Connector is closed", "TCP closed; will re-authenticate")
"""Its look for webhooks, if it comes while it logs in: it calls that an error, logs in and asks again."""


@pytest.fixture
def start_operator(
    zygote: Zygote, proxy: ApiProxy, namespace: Namespace, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., OperatorProcess]]:
    """Start operators for the test's namespace; at the end they are stopped, and no log may tell of an error."""
    started: list[OperatorProcess] = []
    allowed = list(RETRIED_BY_KOPF)

    def start(*, allow: tuple[str, ...] = (), cluster: bool = False, **settings: object) -> OperatorProcess:
        folder = tmp_path / f"operator-{len(started)}"
        allowed.extend(allow)
        started.append(OperatorProcess(zygote, folder, proxy.url, None if cluster else namespace.name, **settings))
        return started[-1]

    yield start
    for operator in started:
        operator.stop()
    errors = [line for operator in started for line in operator.errors()]
    unexpected = [line for line in errors if not any(text in line for text in allowed)]
    assert not unexpected, "\n".join(unexpected)
