"""`heterotrain validate` says of a manifest what a real API server says of it: accepted or refused."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import httpx
import pytest

from heterotrain_api.validation import validate
from manifests import random_manifest
from support.control_plane import Namespace

MANIFESTS = 2_000


@pytest.mark.timeout(300)
def test_two_thousand_manifests_get_the_same_verdict(admin: httpx.Client, namespace: Namespace) -> None:
    random = Random(20_261_128)
    jobs = f"/apis/heterotrain.io/v1alpha1/namespaces/{namespace.name}/heterotrainjobs"
    verdicts: Counter[bool] = Counter()
    different: list[str] = []
    for _ in range(MANIFESTS):
        manifest = random_manifest(random)
        answer = admin.post(jobs, params={"dryRun": "All", "fieldValidation": "Strict"}, json=manifest)
        assert answer.status_code in {201, 400, 422}, answer.text
        faults = validate(manifest)
        accepted = answer.status_code == 201
        verdicts[accepted] += 1
        if accepted != (not faults):
            ours = "; ".join(map(str, faults)) or "accepted"
            different.append(f"{json.dumps(manifest)}\n  server: {answer.text}\n  validate: {ours}")
    print(f"{verdicts[True]} accepted, {verdicts[False]} refused, {len(different)} verdicts differ")
    assert not different, "\n".join(different[:3])
    assert min(verdicts[True], verdicts[False]) > MANIFESTS // 5
