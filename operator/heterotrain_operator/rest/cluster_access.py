"""Access by the cluster's own words: who a token belongs to by TokenReview, what they may by SubjectAccessReview.

The decisions are pure (bodies out, verdicts in); `ClusterReviews` is the thin shell that asks the API server.
Answers are remembered for at most ten seconds, refusals too. Whatever cannot be asked is not allowed.

Rights that callers need are on names of our group that no resource has: ``information`` in the entity's namespace,
``clusterinformation`` for what lies in none, each with ``get`` or ``create`` (push); and for rules those on
``collectionrules`` and ``processingrules`` in the operator's namespace, as for kubectl.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from heterotrain_api.contract import GROUP
from heterotrain_operator.rest.access import AccessUnavailableError, Ask, Caller, Subject, UnauthenticatedError

if TYPE_CHECKING:
    from kubernetes.aio.client import ApiClient  # takes long to load, and a server without a cluster needs none

Json = dict[str, Any]
T = TypeVar("T")

REMEMBER_SECONDS: Final = 10.0
MOST_REMEMBERED: Final = 4096
TIMEOUT_SECONDS: Final = 5.0

RULES: Final[tuple[Mapping[str, list[str]], ...]] = (
    {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
    {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
)
"""Rights of the operator that this needs; in a ClusterRole."""


class Reviews(Protocol):
    """The API server. Raises `AccessUnavailableError`."""

    async def review_token(self, body: Json) -> Json:
        """The answer to a TokenReview."""

    async def review_access(self, body: Json) -> Json:
        """The answer to a SubjectAccessReview."""


def token_review(token: str) -> Json:
    """The question who a token belongs to."""
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}


def reviewed_caller(answer: Mapping[str, Any]) -> Caller | None:
    """Whom the API server named; `None` if it does not know the token."""
    status = answer.get("status") or {}
    user = status.get("user") or {}
    if status.get("authenticated") is not True or not user.get("username"):
        return None
    extra = {name: tuple(values or ()) for name, values in (user.get("extra") or {}).items()}
    return Caller(user["username"], user.get("uid") or "", tuple(user.get("groups") or ()), extra)


def access_review(caller: Caller, ask: Ask, rules_namespace: str) -> Json:
    """The question whether somebody may do something."""
    rules = ask.subject in (Subject.COLLECTION_RULES, Subject.PROCESSING_RULES)
    attributes = {"group": GROUP, "resource": ask.subject.value, "verb": ask.verb.value}
    namespace = rules_namespace if rules else ask.namespace
    if namespace is not None:
        attributes["namespace"] = namespace
    spec = {
        "user": caller.name,
        "uid": caller.uid,
        "groups": list(caller.groups),
        "extra": {name: list(values) for name, values in caller.extra.items()},
        "resourceAttributes": attributes,
    }
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}


def reviewed_access(answer: Mapping[str, Any]) -> bool:
    """Whether the API server allowed it; what it does not say is not allowed."""
    status = answer.get("status") or {}
    return status.get("allowed") is True and status.get("denied") is not True


class Remembered(Generic[T]):
    """Answers by question, each for `seconds`; whoever asks while an answer is on its way waits for it."""

    def __init__(
        self, now: Callable[[], float], seconds: float = REMEMBER_SECONDS, most: int = MOST_REMEMBERED
    ) -> None:
        self._now = now
        self._seconds = seconds
        self._most = most
        self._answers: dict[object, tuple[float, asyncio.Task[T]]] = {}

    async def get(self, question: object, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer, remembered or asked for; a failure is not remembered."""
        now = self._now()
        until, task = self._answers.get(question, (0.0, None))
        if task is None or (task.done() and now >= until) or _failed(task):
            self._make_room(now)
            task = asyncio.ensure_future(_await(ask()))
            self._answers[question] = (now + self._seconds, task)
        return await asyncio.shield(task)  # one who hangs up takes the answer from nobody

    def _make_room(self, now: float) -> None:
        if len(self._answers) < self._most:
            return
        self._answers = {question: known for question, known in self._answers.items() if now < known[0]}
        while len(self._answers) >= self._most:
            del self._answers[next(iter(self._answers))]


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


class ClusterAccess:
    """`heterotrain_operator.rest.access.Access` by reviews."""

    def __init__(self, reviews: Reviews, rules_namespace: str, now: Callable[[], float]) -> None:
        """`rules_namespace`: the operator's, where rules are obeyed; `now`: a monotonic clock, s."""
        self._reviews = reviews
        self._rules_namespace = rules_namespace
        self._callers: Remembered[Caller | None] = Remembered(now)
        self._allowed: Remembered[bool] = Remembered(now)

    async def identify(self, token: str | None) -> Caller:
        """See `Access`."""
        if token is None:
            raise UnauthenticatedError("send the header Authorization: Bearer TOKEN with a token of the cluster")

        async def ask() -> Caller | None:
            return reviewed_caller(await self._reviews.review_token(token_review(token)))

        caller = await self._callers.get(sha256(token.encode()).digest(), ask)
        if caller is None:
            raise UnauthenticatedError("the cluster does not know this token: it may have expired; send a new one")
        return caller

    async def allows(self, caller: Caller, ask: Ask) -> bool:
        """See `Access`."""
        body = access_review(caller, ask, self._rules_namespace)

        async def review() -> bool:
            return reviewed_access(await self._reviews.review_access(body))

        return await self._allowed.get(json.dumps(body["spec"], sort_keys=True), review)


class ClusterReviews:
    """Asks the API server with the operator's own client (`heterotrain_operator.kube.load_configuration`)."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def review_token(self, body: Json) -> Json:
        """See `Reviews`."""
        return await self._create("/apis/authentication.k8s.io/v1/tokenreviews", body)

    async def review_access(self, body: Json) -> Json:
        """See `Reviews`."""
        return await self._create("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)

    async def _create(self, path: str, body: Json) -> Json:
        import aiohttp

        what = path.rpartition("/")[2]
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                status, answer = await self._exchange(path, body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise AccessUnavailableError(f"the API server does not answer to {what}: {type(error).__name__}") from error
        if status in (401, 403):
            raise AccessUnavailableError(f"the operator may not create {what}: give it the chart's ClusterRole")
        try:
            document = json.loads(answer)
        except ValueError:
            document = None
        if status not in (200, 201) or not isinstance(document, dict):
            raise AccessUnavailableError(f"the API server answers {status} to {what}")
        return document

    async def _exchange(self, path: str, body: Json) -> tuple[int, bytes]:
        import aiohttp

        method, url, headers, content, _ = await self._client.param_serialize(
            "POST",
            path,
            header_params={"Accept": "application/json", "Content-Type": "application/json"},
            body=body,
            auth_settings=["BearerToken"],
        )
        response = await self._client.call_api(
            method, url, headers, content, _request_timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        )
        return response.status, await response.read()
