"""A real control plane on loopback, without kubelets: etcd, kube-apiserver, and the garbage collector.

Made once per test run from the binaries that `hack/cluster/build-binaries.sh` leaves; ended with it.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from heterotrain_api.contract import Role
from heterotrain_api.crd import KINDS
from heterotrain_rpc.certificates import make_authority
from heterotrain_rpc.identity import Identity
from support.ports import free_port

ROOT = Path(__file__).parents[2]
ADMIN = "test-admin"
OPERATOR = "test-operator"
START_SECONDS = 60.0
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager")
CONTROLLERS = ("garbage-collector-controller", "namespace-controller", "resourcequota-controller")


class MissingProgramError(Exception):
    """A binary is not built. Says which, and how to build it."""


def program(name: str) -> Path:
    folder = Path(os.environ.get("CLUSTER_CACHE", Path.home() / ".cache" / "heterotrain-cluster")) / "bin"
    path = folder / name
    if not path.exists():
        raise MissingProgramError(f"{path} does not exist; `make test-integration` builds it")
    return path


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """Where it is."""

    url: str
    ca: Path

    def client(self, user: str = ADMIN) -> httpx.Client:
        return httpx.Client(
            base_url=self.url,
            verify=ssl.create_default_context(cafile=str(self.ca)),
            headers={"Authorization": f"Bearer {user}"},
            timeout=30,
        )


@contextmanager
def control_plane(folder: Path) -> Iterator[ControlPlane]:
    """Start it, apply the CRDs, end it."""
    for name in PROGRAMS:
        program(name)
    etcd, etcd_peer, api = free_port(), free_port(), free_port()
    files = _write_files(folder)
    with ExitStack() as stack:
        _start(
            stack,
            folder,
            "etcd",
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{etcd}",
            f"--advertise-client-urls=http://127.0.0.1:{etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{etcd_peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{etcd_peer}",
            f"--initial-cluster=default=http://127.0.0.1:{etcd_peer}",
            "--unsafe-no-fsync",
            "--log-level=error",
        )
        server = _start(
            stack,
            folder,
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={api}",
            f"--tls-cert-file={files['server.crt']}",
            f"--tls-private-key-file={files['server.key']}",
            f"--token-auth-file={files['tokens.csv']}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={files['accounts.key']}",
            f"--service-account-signing-key-file={files['accounts.key']}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--disable-admission-plugins=ServiceAccount",
            # Some distributions have it: owner references that block need a right of their own.
            "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
            f"--cert-dir={folder}",
        )
        plane = ControlPlane(f"https://127.0.0.1:{api}", files["ca.crt"])
        with plane.client() as client:
            _until_healthy(client, server)
            kubeconfig = write_kubeconfig(folder / "admin.yaml", plane.url, ADMIN, plane.ca)
            _start(
                stack,
                folder,
                "kube-controller-manager",
                f"--kubeconfig={kubeconfig}",
                f"--controllers={','.join(CONTROLLERS)}",
                "--leader-elect=false",
                f"--secure-port={free_port()}",
                f"--cert-dir={folder}",
                "--namespace-sync-period=5s",
            )
            for plural in KINDS:
                _apply_crd(client, plural)
        yield plane


def write_kubeconfig(path: Path, server: str, token: str, ca: Path | None = None) -> Path:
    cluster: dict[str, str] = {"server": server}
    if ca is not None:
        cluster["certificate-authority"] = str(ca)
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    path.write_text(yaml.safe_dump(document))
    return path


def _write_files(folder: Path) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    authority = make_authority("control-plane", now, timedelta(days=1))
    identity = Identity("control-plane", Role.PS, "api")
    server = authority.issue(identity, now, timedelta(days=1), addresses=["127.0.0.1", "localhost"])
    accounts = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    contents = {
        "ca.crt": server.ca_pem,
        "server.crt": server.certificate_pem,
        "server.key": server.key_pem,
        "accounts.key": accounts,
        "tokens.csv": f'{ADMIN},{ADMIN},1,"system:masters"\n{OPERATOR},{OPERATOR},2\n'.encode(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {name: folder / name for name in contents}


@dataclass(frozen=True, slots=True)
class Server:
    """A program that is to run until the end."""

    process: subprocess.Popen[bytes]
    log: Path

    def last_words(self) -> str:
        ended = self.process.poll()
        words = self.log.read_text(errors="replace").splitlines()[-5:]
        return "\n".join([f"it {'runs' if ended is None else f'ended with {ended}'}; its log:", *words])


def _start(stack: ExitStack, folder: Path, name: str, *arguments: str) -> Server:
    path = folder / f"{name}.log"
    log = stack.enter_context(path.open("wb"))
    process = subprocess.Popen([program(name), *arguments], stdout=log, stderr=log)
    stack.callback(_end, process)
    return Server(process, path)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _until_healthy(client: httpx.Client, server: Server) -> None:
    deadline, last = time.monotonic() + START_SECONDS, "nobody was asked"
    # Were it gone, another server might answer at its port.
    while server.process.poll() is None:
        try:
            answer = client.get("/readyz")
            if answer.status_code == 200:
                return
            last = answer.text
        except httpx.TransportError as error:
            last = str(error)
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    raise AssertionError(f"the API server is not ready: {last}; {server.last_words()}")


def _apply_crd(client: httpx.Client, plural: str) -> None:
    document = yaml.safe_load((ROOT / "crds" / f"{plural}.yaml").read_text())
    name = document["metadata"]["name"]
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    answer = client.post(path, json=document)
    assert answer.is_success, answer.text  # of its own words: rules that cost too much, among others
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        conditions = (client.get(f"{path}/{name}").json().get("status") or {}).get("conditions") or []
        if any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
            return
        time.sleep(0.1)
    raise AssertionError(f"the CRD of {plural} was not established")


@dataclass(frozen=True, slots=True)
class Namespace:
    """One namespace, as its admin sees it: JSON in and out."""

    client: httpx.Client
    name: str

    def path(self, resource: str, name: str = "", subresource: str = "") -> str:
        group = "/apis/heterotrain.io/v1alpha1" if resource in KINDS else "/api/v1"
        return "/".join(part for part in (f"{group}/namespaces/{self.name}/{resource}", name, subresource) if part)

    def create(self, resource: str, document: Mapping[str, Any]) -> dict[str, Any]:
        return _json(self.client.post(self.path(resource), json=document))

    def get(self, resource: str, name: str) -> dict[str, Any] | None:
        answer = self.client.get(self.path(resource, name))
        return None if answer.status_code == 404 else _json(answer)

    def list(self, resource: str, selector: str = "") -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = _json(
            self.client.get(self.path(resource), params={"labelSelector": selector} if selector else {})
        )["items"]
        return sorted(items, key=lambda item: str(item["metadata"]["name"]))

    def delete(self, resource: str, name: str, *, grace: int | None = None, policy: str | None = None) -> None:
        options: dict[str, Any] = {"gracePeriodSeconds": grace, "propagationPolicy": policy}
        body = {key: value for key, value in options.items() if value is not None}
        answer = self.client.request("DELETE", self.path(resource, name), json=body)
        assert answer.status_code in (200, 202, 404), answer.text

    def patch(self, resource: str, name: str, patch: Mapping[str, Any], subresource: str = "") -> dict[str, Any]:
        headers = {"Content-Type": "application/merge-patch+json"}
        return _json(self.client.patch(self.path(resource, name, subresource), json=patch, headers=headers))


def _json(answer: httpx.Response) -> dict[str, Any]:
    assert answer.is_success, f"{answer.request.method} {answer.request.url}: {answer.text}"
    document: dict[str, Any] = answer.json()
    return document


def rules_of(role: str, rules: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": role},
        "rules": [dict(rule) for rule in rules],
    }
