"""The REST API over the information service: one app, served by the operator and by ``heterotrain info serve``.

How a process puts it together, in its own event loop::

    app = create_app(service, access, rules)           # service: heterotrain_operator.info.loop.InfoService
    task = asyncio.create_task(serve(app, "0.0.0.0", 8443, Tls(certificate, key)))
    ...
    task.cancel()                                      # ends watch streams, lets requests finish, closes the port

``access`` says who calls and what the caller may do: `LocalAccess(token)` on one machine, `ClusterAccess` (TokenReview,
SubjectAccessReview) in a cluster. ``rules`` is the `RuleDesk`: where rules are kept that the API shows and changes.
`LocalDesk` keeps them in memory; in a cluster they are resources, so the desk there writes to the API server, and
`InfoService.set_rule` is called by whoever watches them. The app itself never calls `set_rule`.
"""

from __future__ import annotations

from heterotrain_operator.rest.access import Access, AccessUnavailableError, Ask, Caller, LocalAccess, Verb
from heterotrain_operator.rest.app import create_app
from heterotrain_operator.rest.cluster_access import ClusterAccess, ClusterReviews
from heterotrain_operator.rest.desk import (
    DeskUnavailableError,
    GenerationConflictError,
    LocalDesk,
    NoSuchRuleError,
    RuleDesk,
    RuleExistsError,
    RuleView,
)
from heterotrain_operator.rest.server import Tls, serve

__all__ = [
    "Access",
    "AccessUnavailableError",
    "Ask",
    "Caller",
    "ClusterAccess",
    "ClusterReviews",
    "DeskUnavailableError",
    "GenerationConflictError",
    "LocalAccess",
    "LocalDesk",
    "NoSuchRuleError",
    "RuleDesk",
    "RuleExistsError",
    "RuleView",
    "Tls",
    "Verb",
    "create_app",
    "serve",
]
