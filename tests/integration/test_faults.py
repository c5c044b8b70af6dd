"""Faults on schedule between the operator and a real API server. Whatever happens: the right pods, each once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.api_proxy import ApiProxy, Fault, Seen
from support.control_plane import Namespace
from support.operator_process import OperatorProcess
from support.play import always, job, living_pods, owners, places, run, until, until_complete

Start = Callable[..., OperatorProcess]
PLACES = ["cpu-0", "cpu-1", "cpu-2", "ps-0"]
CHILDREN = ("secrets", "services", "pods")
CREATES = 6
"""Secret, Service, four pods."""


def assert_exactly_right(namespace: Namespace, uid: str) -> None:
    pods = until_complete(namespace, uid, 4)
    assert places(pods) == PLACES
    assert owners([*pods, *namespace.list("services"), *namespace.list("secrets")]) == {uid}
    assert (len(namespace.list("pods")), len(namespace.list("services")), len(namespace.list("secrets"))) == (4, 1, 1)


@pytest.mark.parametrize("nth", range(1, CREATES + 1))
def test_killed_after_each_create(start_operator: Start, namespace: Namespace, proxy: ApiProxy, nth: int) -> None:
    done: list[Seen] = []
    operator = start_operator(concurrent_creates=1)

    def kill(seen: Seen, _: int) -> bool:
        if seen.method == "POST" and seen.resource in CHILDREN:
            done.append(seen)
        if len(done) == nth:
            operator.kill()
        return len(done) >= nth  # the answer goes nowhere

    proxy.after_write = kill
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    until("the operator was killed", lambda: operator.process.poll() is not None)
    assert len(done) == nth
    proxy.after_write = None

    start_operator()

    assert_exactly_right(namespace, uid)
    created = [seen for seen in proxy.writes() if seen.resource == "pods" and seen.status == 201]
    assert len(created) == 4


@pytest.mark.parametrize("nth", range(1, CREATES + 1))
def test_the_answer_to_a_create_is_lost(start_operator: Start, namespace: Namespace, proxy: ApiProxy, nth: int) -> None:
    lost: list[Seen] = []
    posts: list[Seen] = []

    def lose(seen: Seen, _: int) -> bool:
        if seen.method == "POST" and seen.resource in CHILDREN:
            posts.append(seen)
            if len(posts) == nth:
                lost.append(seen)
                return True
        return False

    proxy.after_write = lose
    start_operator()

    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]

    assert_exactly_right(namespace, uid)
    assert len(lost) == 1
    created = [seen for seen in proxy.writes() if seen.resource == "pods" and seen.status == 201]
    assert len(created) == 4


def test_the_answer_to_a_status_write_is_lost(start_operator: Start, namespace: Namespace, proxy: ApiProxy) -> None:
    proxy.after_write = lambda seen, count: seen.resource == "heterotrainjobs/status" and count == 1
    start_operator()
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    assert_exactly_right(namespace, uid)
    until("the event is sent all the same", lambda: namespace.list("events"))


PASSING = {
    "overload, in plain text": Fault(429, text="Too many requests, please try again later."),
    "an internal error": Fault(500, reason="InternalError"),
    "a load balancer without a server": Fault(503, text="<html>no backend</html>"),
    "two that count against one quota": Fault(409, reason="Conflict"),
}


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
def test_an_error_that_passes_is_tried_again_and_is_no_refusal(
    start_operator: Start, namespace: Namespace, proxy: ApiProxy, fault: Fault
) -> None:
    failed: list[Seen] = []

    def once_each(seen: Seen) -> Fault | None:
        """The first create of each kind, the second pod, the first list of pods and the first status write fail."""
        key = (seen.method, seen.resource)
        before = [(f.method, f.resource) for f in failed].count(key)
        writes = seen.method in ("POST", "PUT") and before == 0
        if seen.resource.endswith("reviews"):  # the operator asks for its rights now and then
            return None
        if seen.watch or seen.resource == "events" or not (writes or (key == ("GET", "pods") and before == 0)):
            return None
        failed.append(seen)
        return fault

    start_operator()
    until("the operator listens", lambda: [seen for seen in proxy.seen if seen.watch])
    proxy.instead = once_each
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]

    assert_exactly_right(namespace, uid)
    until("that is told", lambda: _events(namespace, "PodsCreated"))
    assert [(f.method, f.resource) for f in failed] == [
        ("GET", "pods"),
        ("POST", "secrets"),
        ("POST", "services"),
        ("PUT", "heterotrainjobs/status"),
        ("POST", "pods"),
    ]
    assert {event["reason"] for event in namespace.list("events")} == {"PodsCreated"}


def test_an_expired_page_of_a_list_is_listed_anew(start_operator: Start, namespace: Namespace, proxy: ApiProxy) -> None:
    gone = iter([Fault(410, reason="Expired")] * 3)
    start_operator()
    until("the operator listens", lambda: [seen for seen in proxy.seen if seen.watch])
    proxy.instead = lambda seen: (
        next(gone, None) if seen.method == "GET" and not seen.watch and seen.resource == "pods" else None
    )
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    assert_exactly_right(namespace, uid)
    assert next(gone, None) is None


def test_frozen_connections_are_left_for_new_ones(start_operator: Start, namespace: Namespace, proxy: ApiProxy) -> None:
    operator = start_operator(
        watch_inactivity_seconds=3, request_timeout_seconds=2, full_pass_seconds=5, allow=("Request attempt",)
    )
    old = namespace.create("heterotrainjobs", job("old"))["metadata"]["uid"]
    until_complete(namespace, old, 4)

    proxy.stall()
    namespace.delete("heterotrainjobs", "old")
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    always("nothing comes through", lambda: not living_pods(namespace, uid), 8)
    assert operator.alive() == 200  # a new process would not reach the API server either
    proxy.heal()

    until_complete(namespace, uid, 4)
    until("the pods of the deleted job are gone", lambda: not living_pods(namespace, old))
    assert places(living_pods(namespace)) == PLACES


def test_connections_are_reset_again_and_again(start_operator: Start, namespace: Namespace, proxy: ApiProxy) -> None:
    start_operator(full_pass_seconds=5, allow=("Request attempt",))
    old = namespace.create("heterotrainjobs", job("old"))["metadata"]["uid"]
    until_complete(namespace, old, 4)

    for _ in range(20):
        proxy.cut()
        always("pause", lambda: True, 0.1)
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]

    assert places(until_complete(namespace, uid, 4)) == PLACES
    namespace.delete("pods", "fashion-cpu-1-1")
    assert places(until_complete(namespace, uid, 4)) == PLACES  # the watch of pods is back too


@pytest.mark.parametrize("down", [False, True], ids=["the operator is up", "the operator is down meanwhile"])
def test_pods_deleted_before_training_are_made_again(
    start_operator: Start, namespace: Namespace, proxy: ApiProxy, down: bool
) -> None:
    operator = start_operator()
    uid = namespace.create("heterotrainjobs", job(workers=31))["metadata"]["uid"]
    first = until_complete(namespace, uid, 32)
    until("that is told", lambda: _events(namespace, "PodsCreated"))

    namespace.delete("pods", first[0]["metadata"]["name"])
    second = until_complete(namespace, uid, 32)
    until("that is told", lambda: _events(namespace, "PodsReplaced"))
    if down:
        operator.stop()
    namespace.delete("pods", "")  # all at once
    if down:
        start_operator()

    third = until_complete(namespace, uid, 32)
    assert places(third) == places(first)
    assert not {pod["metadata"]["uid"] for pod in third} & {pod["metadata"]["uid"] for pod in (*first, *second)}
    assert owners(third) == {uid}
    until("that is told", lambda: len(_events(namespace, "PodsReplaced")) > 1)
    always("a burst is told in few events", lambda: len(_events(namespace, "PodsReplaced")) <= 3, 2)
    print(f"\nevents: {[event['message'][:60] for event in _events(namespace, 'PodsReplaced')]}")


def test_deleted_and_applied_again_at_once(start_operator: Start, namespace: Namespace) -> None:
    start_operator()
    old = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    for pod in until_complete(namespace, old, 4):
        run(namespace, pod["metadata"]["name"])

    namespace.delete("heterotrainjobs", "fashion")
    new = namespace.create("heterotrainjobs", job())["metadata"]["uid"]

    pods = until_complete(namespace, new, 4)
    assert places(pods) == PLACES
    until("nothing is left of the old one", lambda: owners(_all(namespace)) == {new}, 60)
    assert len(_all(namespace)) == 6


def test_deletion_needs_no_operator(start_operator: Start, namespace: Namespace) -> None:
    operator = start_operator()
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    until_complete(namespace, uid, 4)
    operator.stop()

    namespace.delete("heterotrainjobs", "fashion")

    until("the job is gone", lambda: namespace.get("heterotrainjobs", "fashion") is None, 5)
    until("its children are gone", lambda: not _all(namespace), 60)


def _events(namespace: Namespace, reason: str) -> list[dict[str, Any]]:
    return [event for event in namespace.list("events") if event["reason"] == reason]


def _all(namespace: Namespace) -> list[dict[str, Any]]:
    return [o for kind in ("pods", "services", "secrets") for o in namespace.list(kind)]
