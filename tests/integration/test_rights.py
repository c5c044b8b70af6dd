"""A role that lacks a right: the operator says which, is not ready, goes on, and heals without a restart."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from heterotrain_operator.kube import RULES
from support.control_plane import Namespace, rules_of
from support.operator_process import OperatorProcess
from support.play import condition, job, until, until_complete

Start = Callable[..., OperatorProcess]
KOPF = "APIForbiddenError"


def give_role(namespace: Namespace, *, without: tuple[str, str] = ("", "")) -> None:
    """The operator's role, but for one verb of one resource."""
    rules = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if (verb, rule["resources"][0]) != without]} for rule in RULES
    ]
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace.name}/roles/operator"
    namespace.client.put(path, json=rules_of("operator", rules)).raise_for_status()


def complaint(namespace: Namespace, right: str) -> str:
    return (
        f"The operator may not {right} in namespace {namespace.name}; give its service account the chart's role "
        "(rbac.create=true; docs/installation.md, Rights of the operator). It goes on with what it may do"
    )


@pytest.mark.timeout(150)
@pytest.mark.parametrize("verb", ["list", "watch"])
def test_without_a_right_to_see_pods_it_says_so_and_lives_until_the_right_is_given(
    verb: str, start_operator: Start, namespace: Namespace
) -> None:
    give_role(namespace, without=(verb, "pods"))
    said = complaint(namespace, f"{verb} pods")
    operator = start_operator(
        full_pass_seconds=1,
        retry_seconds=1,
        watch_stale_seconds=2,
        allow=(said, KOPF, "was refused: pods is forbidden"),
    )
    until("it says so", lambda: said in operator.log.read_text())
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    if verb == "watch":  # by lists alone it does its work, later
        until_complete(namespace, uid, 4)
        until("the watch lags", lambda: 'lag_seconds{resource="pods"} 0.0' not in operator.metrics())
    assert (operator.process.poll(), operator.alive(), operator.ready()) == (None, 200, 503)

    give_role(namespace)

    until("it is ready", lambda: operator.ready() == 200)
    until_complete(namespace, uid, 4)
    assert "The operator has all its rights now." in operator.log.read_text()
    assert operator.log.read_text().count(said) == 1


def test_a_right_that_is_taken_away_while_it_runs_is_named_too(start_operator: Start, namespace: Namespace) -> None:
    said = complaint(namespace, "create pods")
    operator = start_operator(full_pass_seconds=1, allow=(said,))
    until("it is alive", lambda: operator.alive() == 200)
    until("it is ready", lambda: operator.ready() == 200)

    give_role(namespace, without=("create", "pods"))
    namespace.create("heterotrainjobs", job())

    until("it says so", lambda: said in operator.log.read_text())
    refused = until(
        "the job says so",
        lambda: (
            c
            if (c := condition(namespace.get("heterotrainjobs", "fashion"), "Accepted")).get("status") == "False"
            else {}
        ),
    )
    assert refused["reason"] == "CreateRefused"
    assert 'cannot create resource "pods"' in refused["message"]
    assert (operator.process.poll(), operator.alive(), operator.ready()) == (None, 200, 503)
