"""Whose credentials a command uses: the kubeconfig's, or those of the pod that it runs in."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from kubernetes.aio.config import ConfigException

from heterotrain_operator.cluster.door import choose_kubeconfig

DEFAULT = "/home/u/.kube/config"
HOME = {"HOME": "/home/u"}
POD = {"HOME": "/home/u", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}


def named(value: str, **environment: str) -> dict[str, str]:
    return {"KUBECONFIG": value, **HOME, **environment}


@pytest.mark.parametrize(
    ("environment", "there", "context", "account", "want"),
    [
        pytest.param(HOME, {DEFAULT}, None, False, DEFAULT, id="the default kubeconfig"),
        pytest.param(named("/k"), {"/k", DEFAULT}, None, False, "/k", id="the one that KUBECONFIG names"),
        pytest.param(named("/a:/b"), {"/b"}, None, False, "/a:/b", id="several, of which one exists"),
        pytest.param(POD, {DEFAULT}, None, True, DEFAULT, id="a kubeconfig in a pod, before its account"),
        pytest.param(named("/k") | POD, {"/k"}, None, True, "/k", id="one that KUBECONFIG names in a pod"),
        pytest.param(POD, set(), None, True, None, id="the account of the pod"),
        pytest.param(POD, {DEFAULT}, "far", True, DEFAULT, id="a context of the kubeconfig in a pod"),
    ],
)
def test_the_choice(
    environment: Mapping[str, str], there: set[str], context: str | None, account: bool, want: str | None
) -> None:
    assert choose_kubeconfig(context, environment, there, account=account) == want


@pytest.mark.parametrize(
    ("environment", "context", "account", "words"),
    [
        pytest.param(HOME, None, False, f"the kubeconfig {DEFAULT} does not exist", id="neither exists"),
        pytest.param(HOME, None, True, f"the kubeconfig {DEFAULT} does not exist", id="a token, but no API server"),
        pytest.param(
            POD,
            None,
            False,
            f"the kubeconfig {DEFAULT} does not exist, and no service account's token is mounted at "
            "/var/run/secrets/kubernetes.io/serviceaccount/token",
            id="a pod without a token",
        ),
        pytest.param(named("/k") | POD, None, True, "the kubeconfig /k does not exist", id="named, so not passed over"),
        pytest.param(POD, "far", True, f"the kubeconfig {DEFAULT} does not exist", id="a context needs a kubeconfig"),
    ],
)
def test_what_was_looked_for_is_said(
    environment: Mapping[str, str], context: str | None, account: bool, words: str
) -> None:
    with pytest.raises(ConfigException) as caught:
        choose_kubeconfig(context, environment, (), account=account)
    assert str(caught.value) == words
