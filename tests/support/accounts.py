"""Service accounts of a real API server: with a token that it signed, and the rights of some Roles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from heterotrain_api.contract import GROUP

RBAC = "/apis/rbac.authorization.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Right:
    """Some verbs on a resource of our group."""

    verbs: tuple[str, ...]
    resource: str
    namespace: str | None = None
    """`None`: by a ClusterRole, everywhere."""

    @property
    def _path(self) -> str:
        return RBAC if self.namespace is None else f"{RBAC}/namespaces/{self.namespace}"

    def grant(self, admin: httpx.Client, account: str, home: str) -> None:
        """Give it to the service account `account` of namespace `home`."""
        kind = "ClusterRole" if self.namespace is None else "Role"
        name = self._name(account)
        rule = {"apiGroups": [GROUP], "resources": [self.resource], "verbs": list(self.verbs)}
        role = {"metadata": {"name": name}, "rules": [rule]}
        admin.post(f"{self._path}/{kind.lower()}s", json=role).raise_for_status()
        binding = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": home}],
        }
        admin.post(f"{self._path}/{kind.lower()}bindings", json=binding).raise_for_status()

    def withdraw(self, admin: httpx.Client, account: str) -> None:
        """Take it away again."""
        kind = "clusterrole" if self.namespace is None else "role"
        for plural in (f"{kind}bindings", f"{kind}s"):
            admin.delete(f"{self._path}/{plural}/{self._name(account)}").raise_for_status()

    def _name(self, account: str) -> str:
        return f"{account}-{self.resource}-{'-'.join(self.verbs)}"


def make_account(admin: httpx.Client, home: str, name: str, rights: Sequence[Right] = ()) -> str:
    """A token of a new service account with these rights."""
    path = f"/api/v1/namespaces/{home}/serviceaccounts"
    admin.post(path, json={"metadata": {"name": name}}).raise_for_status()
    for right in rights:
        right.grant(admin, name, home)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    answer = admin.post(f"{path}/{name}/token", json=request).raise_for_status()
    token: str = answer.json()["status"]["token"]
    return token
