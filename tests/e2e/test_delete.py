"""A job that is deleted takes everything along, at once, without finalizers; its name is free for the next one."""

from __future__ import annotations

import pytest

from support.cluster import Namespace, Operator, example, slow_digits

OURS = ("htj", "pods", "services", "secrets")


def training(namespace: Namespace, *, epochs: int) -> str:
    """UID of a job that trains."""
    namespace.apply(slow_digits(epochs))
    return namespace.wait_for_job("digits", "trains", 90, lambda job: job.condition("Training")[0] == "True").uid


def left(namespace: Namespace) -> list[str]:
    objects = [(kind, thing["metadata"]["name"]) for kind in OURS for thing in namespace.objects(kind)]
    return [f"{kind}/{name}" for kind, name in objects]


def test_deleting_a_job_leaves_nothing_and_nothing_has_a_finalizer(namespace: Namespace) -> None:
    training(namespace, epochs=1000)
    objects = [thing for kind in OURS for thing in namespace.objects(kind)]
    assert len(objects) == 1 + 5 + 1 + 1
    assert [thing["metadata"].get("finalizers", []) for thing in objects] == [[]] * len(objects)
    namespace.kubectl("delete", "htj", "digits", "--timeout=10s")
    namespace.wait("nothing is left", 60, lambda: left(namespace) == [])


@pytest.mark.alone
def test_a_job_deleted_while_the_operator_is_away_leaves_nothing(namespace: Namespace, operator: Operator) -> None:
    training(namespace, epochs=1000)
    operator.scale(0)
    namespace.kubectl("delete", "htj", "digits", "--timeout=10s")
    namespace.wait("nothing is left", 60, lambda: left(namespace) == [])


def test_a_job_of_the_same_name_right_after_is_another_job(namespace: Namespace) -> None:
    first = training(namespace, epochs=1000)
    namespace.kubectl("delete", "htj", "digits", "--wait=false")
    namespace.apply(example("digits", args=["--epochs", "1"]))
    job = namespace.wait_until_over("digits", 120)
    assert job.uid != first
    assert job.condition("Succeeded")[0] == "True"
    namespace.wait("what is left is the second job's", 60, lambda: owners(namespace) == {job.uid})


def owners(namespace: Namespace) -> set[str]:
    """The jobs that own anything: the garbage collector takes its time over a busy machine."""
    return {thing["metadata"]["ownerReferences"][0]["uid"] for kind in OURS[1:] for thing in namespace.objects(kind)}
