# ruff: noqa: T201  # what `helm test --logs` shows
"""`helm test`: start the job in the environment variable JOB, wait for its end, delete it. Standard library only."""

import json
import os
import ssl
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SECONDS = 170

host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
namespace = (ACCOUNT / "namespace").read_text()
address = f"[{host}]" if ":" in host else host
jobs = f"https://{address}:{port}/apis/heterotrain.io/v1alpha1/namespaces/{namespace}/heterotrainjobs"
trust = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))


def ask(method: str, url: str, body: object = None) -> dict[str, Any]:
    """One request to the API server; raises for a refusal."""
    headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310
    with urllib.request.urlopen(request, context=trust, timeout=10) as answer:  # noqa: S310
        document: dict[str, Any] = json.load(answer)
    return document


def wait_until_over(url: str) -> tuple[bool, str]:
    """Whether the job succeeded, and what it says."""
    end, said = time.monotonic() + SECONDS, ""
    while time.monotonic() < end:
        status = ask("GET", url).get("status", {})
        if status.get("state") != said:
            said = status.get("state", "")
            print(said, flush=True)
        for condition in status.get("conditions", []):
            if condition["type"] == "Succeeded" and condition["status"] != "Unknown":
                return condition["status"] == "True", condition["message"]
        time.sleep(1)
    return False, f"the job is not over after {SECONDS} s: {json.dumps(status.get('conditions'))}"


job = f"{jobs}/{ask('POST', jobs, json.loads(os.environ['JOB']))['metadata']['name']}"
try:
    succeeded, message = wait_until_over(job)
finally:
    ask("DELETE", job)
print(message)
sys.exit(0 if succeeded else 1)
