"""Commands inside a pod: with the files of its service account, and no kubeconfig."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import httpx
import pytest

from heterotrain_operator.cli import main
from support.control_plane import ControlPlane, Namespace
from support.play import job

RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces"


@pytest.fixture
def mounted(plane: ControlPlane, namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that kubelet would mount; its account may read the jobs of its namespace."""
    client, name = namespace.client, namespace.name
    namespace.create("serviceaccounts", {"metadata": {"name": "ci"}})
    answer = client.post(namespace.path("serviceaccounts", "ci", "token"), json={"spec": {"expirationSeconds": 3600}})
    answer.raise_for_status()
    rules = [{"apiGroups": ["heterotrain.io"], "resources": ["heterotrainjobs"], "verbs": ["get", "list"]}]
    client.post(f"{RBAC}/{name}/roles", json={"metadata": {"name": "ci"}, "rules": rules}).raise_for_status()
    binding = {
        "metadata": {"name": "ci"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "ci"},
        "subjects": [{"kind": "ServiceAccount", "name": "ci", "namespace": name}],
    }
    client.post(f"{RBAC}/{name}/rolebindings", json=binding).raise_for_status()
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text(answer.json()["status"]["token"])
    (folder / "namespace").write_text(name)
    shutil.copy(plane.ca, folder / "ca.crt")
    url = httpx.URL(plane.url)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", url.host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(url.port))
    monkeypatch.setenv("HETEROTRAIN_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))  # no kubeconfig there
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr("heterotrain_operator.cluster.door.ACCOUNT", folder)
    client_files = "kubernetes.aio.config.incluster_config.SERVICE_{}_FILENAME"
    monkeypatch.setattr(client_files.format("TOKEN"), str(folder / "token"))
    monkeypatch.setattr(client_files.format("CERT"), str(folder / "ca.crt"))
    return folder


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out + captured.err


def test_the_account_of_the_pod_is_used_with_its_rights(
    mounted: Path, namespace: Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace.create("heterotrainjobs", job())
    code, listed = call(capsys, "list", "--json", "-n", namespace.name)
    assert (code, [found["name"] for found in json.loads(listed)]) == (0, ["fashion"])
    code, words = call(capsys, "drain", "fashion", "cpu-0", "-n", namespace.name)
    assert code == 1
    assert f'User "system:serviceaccount:{namespace.name}:ci" cannot patch resource "heterotrainjobs"' in words


def test_without_a_token_it_is_said_what_was_looked_for(
    mounted: Path, namespace: Namespace, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (mounted / "token").unlink()
    code, words = call(capsys, "list", "-n", namespace.name)
    assert code == 2
    looked = f"the kubeconfig {tmp_path / '.kube' / 'config'} does not exist"
    token = f"no service account's token is mounted at {mounted / 'token'}"
    remedy = "name a kubeconfig in KUBECONFIG, and a --context that it has"
    assert words == f"no cluster is configured: {looked}, and {token}; {remedy}\n"
