"""What goes wrong is said within a minute, in words that name the cause; what cannot be right is refused at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from support.cluster import CommandFailedError, Document, Namespace, example

WITHIN = 60.0

LOSE_HEART = "import sys\nfor line in ('loading', 'no column named price'): print(line, file=sys.stderr)\nsys.exit(1)"
"""All on one stream: of two, container runtimes keep no order."""
ONE_RAISES = """
import os, runpy
if os.environ["HETEROTRAIN_NAME"] == "b-0":
    raise ValueError("no column named price")
runpy.run_module("digits", run_name="__main__")
"""


def test_a_script_that_exits_with_1_fails_the_job_and_is_named(namespace: Namespace) -> None:
    namespace.apply(example("digits", command=["python", "-c", LOSE_HEART]))
    job = namespace.wait_until_over("digits", WITHIN)
    status, reason, message = job.condition("Succeeded")
    failure = job.status["failure"]
    assert (status, reason, job.status["state"].split(":")[0]) == ("False", "WorkerFailed", "Failed")
    assert (failure["container"], failure["exitCode"]) == ("trainer", 1)
    worker = failure["pod"].removeprefix("digits-").removesuffix("-1")
    assert worker in {"a-0", "b-0", "c-0"}
    want = f"worker {worker} (pod {failure['pod']}) exited with code 1: no column named price"
    assert (failure["message"], message) == (want, want)
    assert failure["pod"] in namespace.kubectl("describe", "htj", "digits")
    namespace.told(job, "Warning WorkerFailed")
    assert "Failed" in namespace.kubectl("get", "htj", "digits")


def test_one_worker_that_raises_is_the_cause_and_the_others_are_not(namespace: Namespace) -> None:
    manifest = example("digits", command=["python", "-c", ONE_RAISES])
    namespace.apply(manifest)
    failure = namespace.wait_until_over("digits", WITHIN).status["failure"]
    assert (failure["pod"], failure["exitCode"]) == ("digits-b-0-1", 1)
    assert failure["message"].endswith("exited with code 1: ValueError: no column named price")


@dataclass(frozen=True)
class Hindrance:
    """Why no pod starts, and what `PodsReady` must say of it."""

    change: Callable[[Document], None]
    want_reason: str
    want_words: tuple[str, ...]


def wrong_image(spec: Document) -> None:
    spec["image"] = "heterotrain/no-such-image:dev"


def no_such_node(spec: Document) -> None:
    spec["workers"][1]["nodeSelector"] = {"pool": "no-such-pool"}


def too_large(spec: Document) -> None:
    spec["workers"][0]["resources"] = {"requests": {"memory": "4Ti"}}


def no_such_claim(spec: Document) -> None:
    spec["output"] = {"volume": {"persistentVolumeClaim": {"claimName": "no-such-claim"}}}


def no_such_config(spec: Document) -> None:
    source = {"configMapKeyRef": {"name": "no-such-map", "key": "x"}}
    container = {"name": "trainer", "env": [{"name": "X", "valueFrom": source}]}
    spec["workers"][0]["template"] = {"spec": {"containers": [container]}}


def no_such_file(spec: Document) -> None:
    volume = {"name": "data", "configMap": {"name": "no-such-map"}}
    container = {"name": "trainer", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    spec["workers"][0]["template"] = {"spec": {"containers": [container], "volumes": [volume]}}


def runs_as_root(spec: Document) -> None:
    spec["workers"][0]["template"] = {"spec": {"securityContext": {"runAsUser": 0, "runAsNonRoot": False}}}


HINDRANCES = {
    "an image that no registry has": Hindrance(wrong_image, "ImagePullFailed", ("heterotrain/no-such-image:dev",)),
    "a node selector that no node matches": Hindrance(no_such_node, "Unschedulable", ("digits-b-0-1", "node")),
    "more memory than any node has": Hindrance(too_large, "Unschedulable", ("digits-a-0-1", "memory")),
    "a claim that does not exist": Hindrance(no_such_claim, "VolumePending", ("digits-ps-0-1", "no-such-claim")),
    "a ConfigMap that does not exist": Hindrance(
        no_such_config, "ContainerConfigFailed", ("digits-a-0-1", "no-such-map")
    ),
    "a volume of a ConfigMap that does not exist": Hindrance(
        no_such_file, "ContainerConfigFailed", ("digits-a-0-1", "FailedMount", "no-such-map")
    ),
}


def is_described(namespace: Namespace) -> bool:
    """Whether `describe` has the condition's present words: the scheduler's change with what becomes of other nodes."""
    _, _, message = namespace.job("digits").condition("PodsReady")
    return message in namespace.kubectl("describe", "htj", "digits")


@pytest.mark.parametrize("case", HINDRANCES.values(), ids=HINDRANCES)
def test_pods_that_cannot_start_are_explained(case: Hindrance, namespace: Namespace) -> None:
    manifest = example("digits")
    case.change(manifest["spec"])
    namespace.apply(manifest)
    job = namespace.wait_for_job(
        "digits",
        f"PodsReady says {case.want_reason}",
        WITHIN,
        lambda job: job.condition("PodsReady")[1] == case.want_reason,
    )
    status, _, message = job.condition("PodsReady")
    assert status == "False"
    assert [word for word in case.want_words if word not in message] == [], message
    namespace.wait("describe says the same", 30, lambda: is_described(namespace))
    assert case.want_reason in namespace.kubectl("get", "htj", "digits")


def test_a_template_that_pod_security_refuses_is_explained_with_the_field(namespace: Namespace) -> None:
    manifest = example("digits")
    runs_as_root(manifest["spec"])
    namespace.apply(manifest)
    job = namespace.wait_for_job(
        "digits", "is not accepted", WITHIN, lambda job: job.condition("Accepted")[0] == "False"
    )
    _, reason, message = job.condition("Accepted")
    assert reason == "CreateRefused"
    assert "runAsNonRoot" in message
    assert "restricted" in message


def test_a_job_goes_on_once_its_hindrance_is_gone(namespace: Namespace) -> None:
    manifest = example("digits", args=["--epochs", "1"])
    no_such_config(manifest["spec"])
    namespace.apply(manifest)
    namespace.wait_for_job(
        "digits", "waits", WITHIN, lambda job: job.condition("PodsReady")[1] == "ContainerConfigFailed"
    )
    namespace.kubectl("create", "configmap", "no-such-map", "--from-literal=x=1")
    assert namespace.wait_until_over("digits", 90).condition("Succeeded")[0] == "True"


WRONG: dict[str, tuple[Callable[[Document], object], str]] = {
    "a field that does not exist": (lambda spec: spec.update(globalBatchsize=60), "globalBatchsize"),
    "no image": (lambda spec: spec.pop("image"), "spec.image"),
    "no command": (lambda spec: spec.update(command=[]), "spec.command"),
    "no workers": (lambda spec: spec.update(workers=[]), "spec.workers"),
    "a text for a number": (lambda spec: spec.update(globalBatchSize="60"), "spec.globalBatchSize"),
    "a batch of nothing": (lambda spec: spec.update(globalBatchSize=0), "spec.globalBatchSize"),
    "shares that do not sum to the batch": (lambda spec: spec.update(globalBatchSize=61), "spec"),
    "two groups of one name": (lambda spec: spec["workers"][1].update(name="a"), "spec.workers[1]"),
    "a group name that is no DNS label": (lambda spec: spec["workers"][0].update(name="A_1"), "spec.workers[0].name"),
    "a minimum above the maximum": (
        lambda spec: spec["workers"][0].update(batch={"initial": 30, "min": 40, "max": 35}),
        "spec.workers[0].batch",
    ),
    "a mode that does not exist": (
        lambda spec: spec.update(synchronization={"mode": "Fast"}),
        "spec.synchronization.mode",
    ),
    "a reserved variable": (
        lambda spec: spec.update(env=[{"name": "HETEROTRAIN_NAME", "value": "a-0"}]),
        "spec.env[0].name",
    ),
}


@pytest.mark.parametrize(("change", "field"), WRONG.values(), ids=WRONG)
def test_a_wrong_manifest_is_refused_at_once_with_its_field(
    change: Callable[[Document], object], field: str, shared_namespace: Namespace
) -> None:
    manifest = example("digits")
    change(manifest["spec"])
    with pytest.raises(CommandFailedError) as caught:
        shared_namespace.apply(manifest)
    assert field in caught.value.text
    assert shared_namespace.objects("htj") == []


def test_what_only_the_operator_can_see_in_a_template_is_named(namespace: Namespace) -> None:
    manifest = example("digits")
    manifest["spec"]["workers"][0]["template"] = {"spec": {"restartPolicy": "Always"}}
    namespace.apply(manifest)
    job = namespace.wait_for_job(
        "digits", "is not accepted", WITHIN, lambda job: job.condition("Accepted")[0] == "False"
    )
    _, reason, message = job.condition("Accepted")
    assert reason == "InvalidSpec"
    assert "spec.workers[0].template.spec.restartPolicy" in message
    assert namespace.objects("pods") == []
