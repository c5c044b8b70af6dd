"""kopf's handlers: ``kopf run --standalone -m heterotrain_operator.handlers``. They only wake.

kopf watches, logs in, answers probes and starts and stops. Of its handlers of objects only `on.event` is used: the
others bring finalizers or annotations to the objects. Nothing here is ever retried by kopf or written by it. Handlers
are coroutines, since kopf calls plain functions in other threads.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator
from typing import Any, Final

import kopf
from kubernetes.aio.config import ConfigException

from heterotrain_api.contract import GROUP, VERSION, Label
from heterotrain_operator.job.decide import decide
from heterotrain_operator.running import CannotStartError, Operator
from heterotrain_operator.settings import NAMESPACES, OperatorSettings, SettingsError, read_settings

JOBS: Final = (GROUP, VERSION, "heterotrainjobs")
PODS: Final = ("", "v1", "pods")
PAGE: Final = 500


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
    """Configure kopf and start the operator; an error here ends the process, with the reason as last line."""
    try:
        own, job, info = read_settings(os.environ)
        if not settings.peering.clusterwide and not own.namespaces:
            raise SettingsError(f"say which namespaces to serve in {NAMESPACES}, or give kopf --all-namespaces")
        configure(settings, own)
        memo.operator = Operator(own, job, decide, info)
        await memo.operator.start()
    except (SettingsError, CannotStartError) as error:
        raise kopf.PermanentError(str(error)) from None
    except ConfigException as error:
        raise kopf.PermanentError(f"no credentials for an API server were found: {error}") from None


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """Stop attending jobs; they go on by themselves."""
    if "operator" in memo:
        await memo.operator.stop()


@kopf.on.login()
def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """The same credentials as the operator's own client: the service account's in a cluster, else the kubeconfig's.

    kopf asks again whenever the API server says that a token has expired; the file has a new one by then.
    """
    account = kopf.login_with_service_account(**kwargs)
    if account is None:
        return kopf.login_with_kubeconfig(**kwargs)
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        return account
    address = f"[{host}]" if ":" in host else host
    return dataclasses.replace(account, server=f"https://{address}:{port}")  # works before the cluster's DNS does


@kopf.on.probe(id="operator")
async def probe(memo: kopf.Memo, **_: Any) -> str:
    """Liveness: answers with an error (HTTP 500) once a new process would do better than this one."""
    trouble = memo.operator.trouble()
    if trouble is not None:
        raise kopf.PermanentError(trouble)
    return "well"


@kopf.on.event(*JOBS)
async def job_event(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """A job is new, changed or gone."""
    memo.operator.job_event(event["type"], event["object"])


@kopf.on.event(*PODS)
async def pod_event(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """A pod of a job is new, changed or gone."""
    memo.operator.pod_event(event["type"], event["object"])


class Patience:
    """Delays between attempts of kopf's own requests: growing, then the same for ever.

    With a finite list kopf would give up on a watch after a minute without an API server, and end the process.
    """

    def __iter__(self) -> Iterator[float]:
        yield from (1, 1, 2, 3, 5)
        while True:
            yield 10


def configure(settings: kopf.OperatorSettings, own: OperatorSettings) -> None:
    """What kopf must do otherwise than by default, each with its reason."""
    settings.peering.standalone = True  # peering is no election, and would pause us for strangers
    settings.scanning.disabled = True  # else it lists namespaces and CRDs, which the role does not allow
    settings.posting.enabled = False  # events are decisions, sent by `carry_out`
    settings.watching.label_selectors[PODS] = Label.JOB_UID  # on the server: other pods are none of our business
    settings.watching.inactivity_timeout = own.watch_inactivity_seconds
    settings.watching.connect_timeout = own.request_timeout_seconds
    settings.watching.chunk_size = PAGE
    settings.networking.connect_timeout = own.request_timeout_seconds
    settings.networking.request_timeout = 3 * own.request_timeout_seconds  # of a whole page of a list
    settings.networking.error_backoffs = Patience()
    # Each event and each probe would say that it went well.
    for name in ("kopf.objects", "kopf.activities.probe", "aiohttp.access"):
        logging.getLogger(name).setLevel(logging.WARNING)
