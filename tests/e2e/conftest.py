"""Tests on a real cluster: hack/test-e2e.sh makes it, builds and loads the images, and installs the operator.

Those that need the cluster to themselves are marked `alone` and come after the others, which run side by side. Every
namespace enforces Pod Security `restricted`; each test has its own.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator

import pytest

from support.cluster import Namespace, Operator, run

TEST_SECONDS = 700


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: not beside other tests: it changes the operator, or measures nodes")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: "test_losses" not in item.nodeid)  # the longest: others run beside them
    for item in items:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


def make_namespace(name: str) -> Namespace:
    name = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")
    namespace = Namespace(f"e2e-{name}-{secrets.token_hex(3)}")
    run("kubectl", "create", "namespace", namespace.name)
    run("kubectl", "label", "namespace", namespace.name, "pod-security.kubernetes.io/enforce=restricted")
    return namespace


def remove(namespace: Namespace) -> None:
    # First the jobs, so that no pod is left in the way of the next test while the namespace goes in its own time.
    namespace.kubectl("delete", "htj", "--all", "--wait=false")
    run("kubectl", "delete", "namespace", namespace.name, "--wait=false")


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[Namespace]:
    namespace = make_namespace(request.node.originalname)
    yield namespace
    remove(namespace)


@pytest.fixture(scope="module")
def shared_namespace(request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """One for all tests of a module: those that only look, and those whose jobs run side by side."""
    namespace = make_namespace(request.module.__name__.rpartition(".")[2])
    yield namespace
    remove(namespace)


@pytest.fixture
def operator() -> Iterator[Operator]:
    """The operator, to be ended and started; afterwards it runs again."""
    operator = Operator()
    yield operator
    operator.scale(1)
    operator.wait_until_ready()
