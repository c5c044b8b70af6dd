from __future__ import annotations

import json
import re
from typing import Any

import pytest

from heterotrain_operator.cluster.asking import Answered, Asked, AskingError, Wish, answer_in, ask, is_over
from heterotrain_operator.cluster.door import UserKube, api_words
from heterotrain_operator.errors import ApiError

ASKED = Asked("fashion", "u-1", "r-2", "heterotrain.io/plan-request")


def make_job(*, uid: str = "u-1", standing: str = "r-2", **status: Any) -> dict[str, Any]:
    annotations = {ASKED.annotation: json.dumps({"id": standing})}
    meta = {"name": "fashion", "namespace": "one", "uid": uid, "annotations": annotations}
    return {"metadata": meta, "status": status}


def answers(*found: tuple[str, bool, str]) -> list[dict[str, Any]]:
    return [{"id": name, "accepted": accepted, "message": message} for name, accepted, message in found]


@pytest.mark.parametrize(
    ("job", "want"),
    [
        pytest.param(make_job(), None, id="nobody has answered"),
        pytest.param(make_job(requests=answers(("r-1", True, "old"))), None, id="an older request was answered"),
        pytest.param(
            make_job(requests=answers(("r-1", True, "old"), ("r-2", True, "plan 2"))),
            Answered(True, "plan 2"),
            id="it was accepted",
        ),
        pytest.param(
            make_job(requests=answers(("r-2", False, "the sum"))), Answered(False, "the sum"), id="it was refused"
        ),
        pytest.param(
            make_job(standing="r-3", requests=answers(("r-2", True, "plan 2"))),
            Answered(True, "plan 2"),
            id="it was answered, then replaced",
        ),
    ],
)
def test_the_answer_is_the_one_of_this_request(job: dict[str, Any], want: Answered | None) -> None:
    assert answer_in(job, ASKED) == want


@pytest.mark.parametrize(
    ("job", "words"),
    [
        pytest.param(None, "was deleted", id="the job is gone"),
        pytest.param(make_job(uid="u-2"), "was deleted", id="another job has its name"),
        pytest.param(make_job(standing="r-3"), "took the place", id="somebody wrote another request"),
    ],
)
def test_it_is_said_when_no_answer_will_come(job: dict[str, Any] | None, words: str) -> None:
    with pytest.raises(AskingError, match=words):
        answer_in(job, ASKED)


@pytest.mark.parametrize(("status", "over"), [("True", True), ("False", True), ("Unknown", False)])
def test_a_job_is_over_when_it_has_succeeded_or_not(status: str, over: bool) -> None:
    assert is_over(make_job(conditions=[{"type": "Succeeded", "status": status}])) is over


class SilentKube(UserKube):
    """Takes annotations, and never shows an answer."""

    def __init__(self) -> None:
        self.written: dict[str, str] = {}

    async def annotate_job(self, namespace: str, name: str, uid: str, annotations: dict[str, str]) -> dict[str, Any]:
        self.written |= annotations
        return {}

    async def get_job(self, namespace: str, name: str) -> dict[str, Any] | None:
        return make_job()


async def test_an_operator_that_is_silent_is_named() -> None:
    kube, wish = SilentKube(), Wish(ASKED.annotation, "r-2", '{"id": "r-2"}')
    with pytest.raises(AskingError) as caught:
        await ask(kube, make_job(), wish, timeout_seconds=0.0)
    assert str(caught.value) == (
        "the operator has not answered within 0 s; the request stays with the job, and the plan may still be carried "
        "out. To take it back: `kubectl annotate htj fashion -n one heterotrain.io/plan-request-`. "
        "Does the operator run? `kubectl get pods -A -l app.kubernetes.io/name=heterotrain-operator`"
    )
    assert kube.written == {ASKED.annotation: '{"id": "r-2"}'}


async def test_nothing_is_written_on_a_job_that_is_over() -> None:
    kube = SilentKube()
    over = make_job(state="Stopped", conditions=[{"type": "Succeeded", "status": "False"}])
    with pytest.raises(AskingError, match="job fashion does not run: it is Stopped"):
        await ask(kube, over, Wish(ASKED.annotation, "r-2", "{}"), timeout_seconds=0.0)
    assert kube.written == {}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ApiError(401, "Unauthorized", "no"), "log in again"),
        (ApiError(403, "Forbidden", 'User "u" cannot patch resource'), 'a right is missing.*"u" cannot patch'),
        (ApiError(404, "NotFound", "the server could not find the requested resource"), "install the chart"),
        (ApiError(409, "Conflict", "uid"), "replaced by another one"),
        (ApiError(500, "InternalError", "etcd"), "the API server refused: etcd"),
    ],
)
def test_refusals_say_what_to_do(error: ApiError, words: str) -> None:
    assert re.search(words, api_words(error))
