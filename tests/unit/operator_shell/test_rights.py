"""Which rights are asked for, when again, and how those that are missing are told."""

from __future__ import annotations

import logging

import pytest

from heterotrain_operator.errors import ApiError, ApiUnreachableError
from heterotrain_operator.kube import RULES
from heterotrain_operator.rights import Right, Rights, in_words, needed

LIST_PODS, WATCH_PODS = Right("ml", "", "pods", "list"), Right("ml", "", "pods", "watch")


class Cluster:
    """Answers by what is denied now, or with an error."""

    def __init__(self, *denied: Right) -> None:
        self.denied = set(denied)
        self.error: Exception | None = None
        self.asked: list[Right] = []
        self.refused = 0

    async def may(self, right: Right) -> bool:
        self.asked.append(right)
        if self.error is not None:
            raise self.error
        return right not in self.denied

    def rights(self) -> Rights:
        return Rights(self.may, ("ml",), lambda: self.refused)


def test_every_verb_of_the_role_is_needed_in_each_namespace() -> None:
    verbs = sum(len(rule["verbs"]) * len(rule["resources"]) for rule in RULES)
    assert len(needed(("ml", "web"))) == 2 * verbs
    assert {right.namespace for right in needed(())} == {None}
    assert LIST_PODS in needed(("ml",))


@pytest.mark.parametrize(
    ("missing", "want"),
    [
        ((LIST_PODS,), "list pods in namespace ml"),
        ((WATCH_PODS, LIST_PODS), "list, watch pods in namespace ml"),
        (
            (Right("ml", "", "secrets", "get"), LIST_PODS, Right("web", "", "pods", "list")),
            "list pods and get secrets in namespace ml; list pods in namespace web",
        ),
        (
            (Right(None, "heterotrain.io", "heterotrainjobs/status", "update"),),
            "update heterotrainjobs/status in all namespaces",
        ),
    ],
    ids=["one", "two verbs", "two resources and two namespaces", "in all namespaces"],
)
def test_what_is_missing_is_said_by_verb_resource_and_namespace(missing: tuple[Right, ...], want: str) -> None:
    assert in_words(missing) == want


async def test_what_is_missing_is_said_once_and_that_it_is_there_again(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(WATCH_PODS)
    rights = cluster.rights()
    with caplog.at_level(logging.INFO):
        await rights.look()
        await rights.look()
        assert (rights.missing, rights.lacks("watch", "pods"), rights.lacks("list", "pods")) == (
            (WATCH_PODS,), True, False,
        )  # fmt: skip
        cluster.denied.clear()
        await rights.look()
    assert rights.missing == ()
    told = [record.message.split(";")[0] for record in caplog.records]
    assert told == ["The operator may not watch pods in namespace ml", "The operator has all its rights now."]


async def test_when_all_is_well_it_is_not_asked_again_before_something_is_refused() -> None:
    cluster = Cluster()
    rights = cluster.rights()
    once = len(needed(("ml",)))
    await rights.look()
    await rights.look()
    assert len(cluster.asked) == once
    cluster.refused = 1
    await rights.look()
    await rights.look()
    assert len(cluster.asked) == 2 * once
    await rights.look(anew=True)
    assert len(cluster.asked) == 3 * once


@pytest.mark.parametrize(
    ("error", "settled"),
    [
        pytest.param(ApiUnreachableError("no answer"), False, id="it does not answer: asked again"),
        pytest.param(ApiError(503, "Unavailable", "soon"), False, id="it is in trouble: asked again"),
        pytest.param(ApiError(403, "Forbidden", "no reviews"), True, id="it does not say: nothing is held missing"),
    ],
)
async def test_without_an_answer_nothing_is_held_missing(error: Exception, settled: bool) -> None:
    cluster = Cluster(LIST_PODS)
    cluster.error = error
    rights = cluster.rights()
    await rights.look()
    assert (rights.missing, rights.settled) == ((), settled)
