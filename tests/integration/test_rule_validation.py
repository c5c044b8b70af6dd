"""Information rules that are wrong are refused by a real API server, with the field's name, as by our own check."""

from __future__ import annotations

from typing import Any, Final

import httpx
import pytest

from heterotrain_api.crd import KINDS
from heterotrain_operator.info.cluster.pack_rules import pack_documents
from heterotrain_operator.info.packs import pack_names
from manifests_info import BROKEN
from support.control_plane import Namespace

PLURALS: Final = {kind.kind: kind.plural for kind in KINDS.values()}
ELSEWHERE: Final = {"spec.metrics[1].name": "spec.metrics[1]"}
"""Fields that the API server names otherwise."""
LENIENT: Final = "an alpha of 0"
"""The API server cuts a bound's fraction off for whole numbers; then the operator's condition names the field."""


def dry_run(admin: httpx.Client, namespace: Namespace, document: dict[str, Any]) -> httpx.Response:
    strict = {"dryRun": "All", "fieldValidation": "Strict"}
    return admin.post(namespace.path(PLURALS[document["kind"]]), params=strict, json=document)


@pytest.mark.parametrize(
    ("document", "field"), [pytest.param(*case[1:3], id=case[0]) for case in BROKEN if case[0] != LENIENT]
)
def test_a_wrong_rule_is_refused_by_field(
    admin: httpx.Client, namespace: Namespace, document: dict[str, Any], field: str
) -> None:
    answer = dry_run(admin, namespace, document)
    assert answer.status_code in (400, 422), answer.text
    assert ELSEWHERE.get(field, field) in answer.json()["message"]


def test_all_packs_are_taken_strictly(admin: httpx.Client, namespace: Namespace) -> None:
    documents = [dict(document) for _, document in pack_documents(pack_names())]
    assert len(documents) > 25
    refused = [answer.text for answer in (dry_run(admin, namespace, d) for d in documents) if not answer.is_success]
    assert refused == []
