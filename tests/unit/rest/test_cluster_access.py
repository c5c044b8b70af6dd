"""Access by the cluster's words: what is asked, what an answer means, how long it is remembered, who sees what."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from heterotrain_core.info.values import Entity
from heterotrain_operator.info.rule_state import RuleKind
from heterotrain_operator.rest.access import (
    AccessUnavailableError,
    Ask,
    Caller,
    LocalAccess,
    Subject,
    UnauthenticatedError,
    Verb,
    about,
    about_rules,
    bearer_token,
)
from heterotrain_operator.rest.cluster_access import (
    ClusterAccess,
    Remembered,
    access_review,
    reviewed_access,
    reviewed_caller,
)
from support.fake_reviews import FakeReviews

ANN = Caller("ann", "u1", ("devs",), {"scopes": ("a", "b")})


@pytest.mark.parametrize(
    ("header", "want"),
    [
        ("Bearer abc", "abc"),
        ("bearer abc ", "abc"),
        ("Bearer", None),
        ("Bearer ", None),
        ("Basic abc", None),
        (None, None),
        ("Bearer " + "x" * 20_000, None),
    ],
)
def test_tokens_of_headers(header: str | None, want: str | None) -> None:
    assert bearer_token(header) == want


@pytest.mark.parametrize(
    ("ask", "want"),
    [
        pytest.param(about(Verb.GET, Entity("pod/shop/a")),
                     {"verb": "get", "resource": "information", "namespace": "shop"}, id="an entity in a namespace"),
        pytest.param(about(Verb.CREATE, Entity("node/a")),
                     {"verb": "create", "resource": "clusterinformation"}, id="an entity outside all"),
        pytest.param(Ask(Verb.GET, Subject.INFORMATION),
                     {"verb": "get", "resource": "information"}, id="all namespaces"),
        pytest.param(about_rules(Verb.UPDATE, RuleKind.COLLECT),
                     {"verb": "update", "resource": "collectionrules", "namespace": "system"}, id="rules"),
        pytest.param(about_rules(Verb.DELETE, RuleKind.PROCESS),
                     {"verb": "delete", "resource": "processingrules", "namespace": "system"}, id="processing rules"),
    ],
)  # fmt: skip
def test_questions(ask: Ask, want: dict[str, str]) -> None:
    assert access_review(ANN, ask, "system") == {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": "ann",
            "uid": "u1",
            "groups": ["devs"],
            "extra": {"scopes": ["a", "b"]},
            "resourceAttributes": {"group": "heterotrain.io", **want},
        },
    }


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        ({"status": {"authenticated": True, "user": {"username": "ann", "uid": "u1", "groups": ["devs"]}}},
         Caller("ann", "u1", ("devs",))),
        ({"status": {"authenticated": True, "user": {"username": "ann", "extra": {"k": ["v"]}}}},
         Caller("ann", extra={"k": ("v",)})),
        ({"status": {"authenticated": False, "user": {"username": "ann"}}}, None),
        ({"status": {"authenticated": "true", "user": {"username": "ann"}}}, None),
        ({"status": {"authenticated": True, "user": {}}}, None),
        ({"status": {"authenticated": True}}, None),
        ({}, None),
        ({"status": None}, None),
    ],
)  # fmt: skip
def test_who_a_token_belongs_to(answer: dict[str, Any], want: Caller | None) -> None:
    assert reviewed_caller(answer) == want


@pytest.mark.parametrize(
    ("status", "want"),
    [
        ({"allowed": True}, True),
        ({"allowed": True, "denied": True}, False),
        ({"allowed": "true"}, False),
        ({"allowed": False}, False),
        ({}, False),
        (None, False),
    ],
)
def test_what_is_not_allowed_in_words_is_not_allowed(status: Any, want: bool) -> None:
    assert reviewed_access({"status": status}) is want


async def test_answers_are_remembered_for_ten_seconds_and_refusals_too() -> None:
    now = 0.0
    reviews = FakeReviews({"good": "ann"}, {("ann", "get", "information", "shop")})
    access = ClusterAccess(reviews, "system", lambda: now)
    for now in (0.0, 5.0, 9.9):  # noqa: B007  # the clock reads it
        assert (await access.identify("good")).name == "ann"
        assert await access.allows(ANN, Ask(Verb.GET, Subject.INFORMATION, "shop"))
        assert not await access.allows(ANN, Ask(Verb.GET, Subject.INFORMATION, "bank"))
        with pytest.raises(UnauthenticatedError):
            await access.identify("bad")
    assert reviews.asked == ["token", "get information shop", "get information bank", "token"]
    reviews.tokens.clear()
    reviews.allowed.clear()
    now = 10.0
    with pytest.raises(UnauthenticatedError):
        await access.identify("good")
    assert not await access.allows(ANN, Ask(Verb.GET, Subject.INFORMATION, "shop"))


async def test_many_who_ask_at_once_are_one_question() -> None:
    reviews = FakeReviews({"good": "ann"}, set())
    access = ClusterAccess(reviews, "system", lambda: 0.0)
    callers = await asyncio.gather(*(access.identify("good") for _ in range(50)))
    assert {caller.name for caller in callers} == {"ann"}
    assert reviews.asked == ["token"]


async def test_one_who_hangs_up_takes_the_answer_from_nobody() -> None:
    reviews = FakeReviews({"good": "ann"}, set())
    access = ClusterAccess(reviews, "system", lambda: 0.0)
    first = asyncio.create_task(access.identify("good"))
    second = asyncio.create_task(access.identify("good"))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).name == "ann"


async def test_without_an_answer_nothing_is_allowed_and_nothing_is_remembered() -> None:
    reviews = FakeReviews({"good": "ann"}, set())
    access = ClusterAccess(reviews, "system", lambda: 0.0)
    reviews.down = True
    with pytest.raises(AccessUnavailableError):
        await access.identify("good")
    with pytest.raises(AccessUnavailableError):
        await access.allows(ANN, Ask(Verb.GET, Subject.INFORMATION))
    reviews.down = False
    assert (await access.identify("good")).name == "ann"
    with pytest.raises(UnauthenticatedError):
        await access.identify(None)


async def test_what_is_remembered_is_bounded() -> None:
    asked = 0

    async def answer() -> int:
        nonlocal asked
        asked += 1
        return asked

    known = Remembered[int](lambda: 0.0, most=10)
    for question in range(100):
        await known.get(question, answer)
    assert await known.get(99, answer) == 100
    assert await known.get(0, answer) == 101


async def test_the_local_token_opens_everything_and_nothing_else_does() -> None:
    access = LocalAccess("secret")
    assert await access.allows(await access.identify("secret"), Ask(Verb.DELETE, Subject.PROCESSING_RULES))
    for wrong in (None, "", "secre", "secret ", "geheim", "sécret"):
        with pytest.raises(UnauthenticatedError):
            await access.identify(wrong)
    for unusable in ("", "two words", "line\nfeed", "ä"):
        with pytest.raises(ValueError, match="must have"):
            LocalAccess(unusable)
