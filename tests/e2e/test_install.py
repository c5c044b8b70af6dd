"""The chart on a cluster: its own test, a narrower scope, and jobs that outlive its removal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.cluster import DEPLOYMENT, OPERATOR_NAMESPACE, Namespace, Operator, example, run
from support.release import RELEASE, install, kept_values

pytestmark = pytest.mark.alone


@pytest.fixture
def values(tmp_path: Path) -> Iterator[Path]:
    """The values of the release, which is installed with them again afterwards."""
    with kept_values(tmp_path) as file:
        yield file


def test_the_chart_s_own_test_passes_and_leaves_nothing() -> None:
    before = jobs_and_roles()
    answer = run("helm", "test", *RELEASE, "--timeout", "4m", seconds=250)
    assert re.search(r"Phase:\s+Succeeded", answer)
    assert jobs_and_roles() == before


def test_an_operator_of_one_namespace_runs_its_jobs_with_a_role_and_leaves_others_alone(
    namespace: Namespace, values: Path
) -> None:
    with elsewhere() as other:
        install(values, "--set", "scope=Namespace", "--set", f"watchNamespaces={{{namespace.name}}}")
        # Helm takes the rule of the wider scope away last: the operator that it started may still have seen that.
        Operator().kill()
        Operator().wait_until_ready()
        for place in (namespace, other):
            place.apply(example("digits", args=["--epochs", "1"]))
        assert namespace.wait_until_over("digits", 90).condition("Succeeded")[0] == "True"
        assert other.job("digits").status == {}
        assert other.objects("pods") == []
        roles = run("kubectl", "get", "clusterroles,clusterrolebindings", "-o", "name")
        assert f"{OPERATOR_NAMESPACE}:{DEPLOYMENT}\n" not in roles
        log = run("kubectl", "-n", OPERATOR_NAMESPACE, "logs", f"deployment/{DEPLOYMENT}")
        lines = re.sub(r"(?m)^\[[^]]*\] ", "", log).splitlines()  # a time may have 403 milliseconds
        assert [line for line in lines if re.search(r"orbidden|\b403\b", line)] == []


def jobs_and_roles() -> list[tuple[str, str]]:
    system = Namespace(OPERATOR_NAMESPACE)
    return [(kind, thing["metadata"]["name"]) for kind in ("htj", "role") for thing in system.objects(kind)]


@contextmanager
def elsewhere() -> Iterator[Namespace]:
    """A namespace that the operator is not to serve."""
    namespace = Namespace("e2e-elsewhere")
    run("kubectl", "create", "namespace", namespace.name)
    try:
        yield namespace
    finally:
        run("kubectl", "delete", "namespace", namespace.name, "--wait=false")


def test_a_running_job_outlives_uninstall_and_install(namespace: Namespace, values: Path, operator: Operator) -> None:
    namespace.apply(example("digits", args=["--epochs", "40"]))
    job = namespace.wait_for_job("digits", "trains", 90, lambda job: job.condition("Training")[0] == "True")
    pods = {pod["metadata"]["uid"] for pod in namespace.pods(job)}
    run("helm", "uninstall", *RELEASE, "--wait")
    assert namespace.job("digits").uid == job.uid, "the CRD went, and the job with it"
    install(values)
    operator.wait_until_ready()
    job = namespace.wait_until_over("digits", 120)
    assert job.condition("Succeeded")[0] == "True"
    assert {pod["metadata"]["uid"] for pod in namespace.pods(job)} == pods
