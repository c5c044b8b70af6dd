"""`validate` says where and what; every rule is tried both ways."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_api.names import MAX_ATTEMPT, MAX_LABEL, NAME_BUDGET, pod_name
from heterotrain_api.v1alpha1 import MAX_REPLICAS, Device, Volume
from heterotrain_api.validation import InvalidManifestError, parse, validate
from manifests import batches, make_group, make_manifest, random_manifest

GROUP_NAME = "small letters, digits and -, with a letter first and no - at the end"
RANGE = {"min": 3, "max": 3}

GOOD: list[tuple[str, dict[str, Any]]] = [
    ("the smallest manifest", make_manifest()),
    ("null in place of an optional field", make_manifest() | {"status": None}),
    ("a status, which is ignored", make_manifest() | {"status": {"state": 5}}),
    ("the longest name that fits", make_manifest("x" * (NAME_BUDGET - 3))),
    ("a name of one letter", make_manifest("a")),
    ("minimum equal to maximum", make_manifest(workers=batches({"min": 4, "max": 4}, {"min": 4, "max": 4}))),
    (
        "initial at the minimum and at the maximum",
        make_manifest(workers=batches({"min": 3, "initial": 3}, {"max": 5, "initial": 5})),
    ),
    ("minima that use up the batch", make_manifest(workers=batches({"min": 4}, replicas=2))),
    ("a batch on the grain", make_manifest(globalBatchSize=12, batchGrain=4, workers=batches({"min": 2}, replicas=2))),
    ("initial shares that sum up", make_manifest(workers=batches({"initial": 5}, {"initial": 2}, {"initial": 1}))),
    ("one initial share, the rest left", make_manifest(workers=batches({"initial": 5}, {"max": 3}))),
    ("an integral number written with a point", make_manifest(globalBatchSize=8.0)),
    (
        "a quantity as integer and as string",
        make_manifest(workers=[make_group(resources={"limits": {"cpu": 1, "memory": "1.5Gi"}})]),
    ),
    ("an integer as key, as YAML reads 1: a", make_manifest(workers=[make_group(nodeSelector={1: "a"})])),
    ("null inside a template", make_manifest(workers=[make_group(template={"spec": {"hostname": None}})])),
    ("an empty volume", make_manifest(output={"volume": {"emptyDir": {}}})),
    ("a target from below", make_manifest(stop={"target": {"value": "accuracy", "atLeast": 0.9}})),
    ("a target from above, as integer", make_manifest(stop={"target": {"value": "loss", "atMost": 1}})),
    (
        "Delay with all of its settings",
        make_manifest(
            synchronization={
                "mode": "Delay",
                "stalenessBound": 3,
                "adaptive": {"min": 0, "max": 8},
                "delayWindowMilliseconds": 50,
                "discount": "Polynomial",
                "discountExponent": 0.5,
                "normalization": "Arrived",
                "delayCompensation": 0.04,
                "leaseSeconds": 10,
            }
        ),
    ),
    (
        "Delay that waits for everybody, without a bound",
        make_manifest(synchronization={"mode": "Delay", "stalenessBound": "None", "delayWindowMilliseconds": "None"}),
    ),
    ("the default bound at the edge of its range", make_manifest(synchronization={"mode": "SSP", "adaptive": RANGE})),
    ("DSSP with one of its bounds", make_manifest(synchronization={"mode": "DSSP", "dssp": {"range": 4}})),
    ("one backup worker of two", make_manifest(synchronization={"mode": "Backup"})),
    ("a label without value", make_manifest() | {"metadata": {"name": "a", "labels": {"a/b": None}}}),
    ("a toleration of everything", make_manifest(workers=[make_group(tolerations=[{"operator": "Exists"}])])),
]


@pytest.mark.parametrize("document", [d for _, d in GOOD], ids=[name for name, _ in GOOD])
def test_accepts(document: dict[str, Any]) -> None:
    before = copy.deepcopy(document)
    assert validate(document) == []
    assert parse(document).metadata.name == document["metadata"]["name"]
    assert document == before


BAD: list[tuple[str, object, list[str]]] = [
    (
        "nothing at all",
        None,
        [
            (
                "manifest: must be an object with apiVersion: heterotrain.io/v1alpha1, kind: HeteroTrainJob, "
                "metadata and spec"
            )
        ],
    ),
    ("another kind", make_manifest() | {"kind": "Job"}, ["kind: must be HeteroTrainJob"]),
    (
        "no kind",
        {"apiVersion": "v1"},
        ["apiVersion: must be heterotrain.io/v1alpha1", "kind: is required: HeteroTrainJob"],
    ),
    (
        "no spec",
        {k: v for k, v in make_manifest().items() if k != "spec"},
        ["spec: is required: what to train, on what, and in what shares"],
    ),
    (
        "no name",
        make_manifest() | {"metadata": {}},
        ["metadata.name: is required: the job's name, small letters, digits and -"],
    ),
    (
        "a number as name",
        make_manifest() | {"metadata": {"name": 1}},
        ['metadata.name: must be a string: put it in quotes ("1")'],
    ),
    (
        "a number as label",
        make_manifest() | {"metadata": {"name": "a", "labels": {"a": 1}}},
        ['metadata.labels.a: must be a string: put it in quotes ("1")'],
    ),
    (
        "a misspelt field",
        make_manifest(globalBatchsize=8),
        ["spec.globalBatchsize: unknown field: did you mean globalBatchSize?"],
    ),
    (
        "snake case",
        make_manifest(global_batch_size=8),
        ["spec.global_batch_size: unknown field: did you mean globalBatchSize?"],
    ),
    (
        "a field at the wrong place",
        make_manifest(output={"image": "x"}),
        ["spec.output.image: unknown field: must be one of volume"],
    ),
    (
        "an unknown field of the status",
        make_manifest() | {"status": {"stat": 1}},
        ["status.stat: unknown field: did you mean state?"],
    ),
    (
        "no command",
        make_manifest(command=None),
        ["spec.command: is required: command of each worker, one list entry per word"],
    ),
    (
        "a command as one string",
        make_manifest(command="python"),
        ["spec.command: must be a list, not the string 'python': write [python]"],
    ),
    ("null in a list", make_manifest(command=[None]), ["spec.command[0]: must be a string, not null"]),
    (
        "a number in quotes",
        make_manifest(globalBatchSize="8"),
        ["spec.globalBatchSize: must be an integer, not the string '8': take the quotes away"],
    ),
    ("true is not a number", make_manifest(seed=True), ["spec.seed: must be an integer, not true"]),
    ("a fraction", make_manifest(seed=1.5), ["spec.seed: must be an integer, not the number 1.5"]),
    (
        "not a number",
        make_manifest(stop={"target": {"value": "a", "atLeast": float("nan")}}),
        ["spec.stop.target.atLeast: must be between -1000000000000 and 1000000000000, not nan"],
    ),
    ("too small", make_manifest(batchGrain=0), ["spec.batchGrain: must be between 1 and 65536, not 0"]),
    ("an empty image", make_manifest(image=""), ["spec.image: must have between 1 and 512 characters, not 0"]),
    (
        "a line break at the end of a name",
        make_manifest(workers=[make_group("cpu\n")]),
        [f"spec.workers[0].name: must be {GROUP_NAME}, not 'cpu\\n': for example cpu"],
    ),
    (
        "a name with what names do not take",
        make_manifest(workers=[make_group("Old GPUs_1")]),
        [f"spec.workers[0].name: must be {GROUP_NAME}, not 'Old GPUs_1': for example old-gpus-1"],
    ),
    (
        "a name that is near none that is taken",
        make_manifest(workers=[make_group("été")]),
        [f"spec.workers[0].name: must be {GROUP_NAME}, not 'été': for example t"],
    ),
    (
        "a variable that begins with a digit",
        make_manifest(env=[{"name": "1 A"}]),
        [
            "spec.env[0].name: must be letters, digits, -, _ and ., with no digit first, not '1 A': for example A",
        ],
    ),
    (
        "no limit in small letters",
        make_manifest(synchronization={"mode": "SSP", "stalenessBound": "none"}),
        [
            (
                "spec.synchronization.stalenessBound: must be a number, or the word None for no limit, not 'none': "
                "for example None"
            )
        ],
    ),
    ("no worker group", make_manifest(workers=[]), ["spec.workers: must have between 1 and 16 entries, not 0"]),
    (
        "an enumeration in small letters",
        make_manifest(workers=[make_group(device="cuda")]),
        ["spec.workers[0].device: must be one of CPU, CUDA, not 'cuda': did you mean CUDA?"],
    ),
    (
        "a mode that is not served",
        make_manifest(synchronization={"mode": "asp"}),
        ["spec.synchronization.mode: must be one of BSP, ASP, SSP, DSSP, Delay, Backup, not 'asp': did you mean ASP?"],
    ),
    (
        "a fraction as quantity",
        make_manifest(workers=[make_group(resources={"limits": {"cpu": 0.5}})]),
        [
            (
                "spec.workers[0].resources.limits.cpu: must be an integer or a string, not the number 0.5: "
                'put it in quotes ("0.5")'
            )
        ],
    ),
    (
        "a quantity with a blank",
        make_manifest(workers=[make_group(resources={"limits": {"memory": "1 Gi"}})]),
        [
            (
                "spec.workers[0].resources.limits.memory: must be a quantity such as 2, 500m or 1.5Gi, not '1 Gi': "
                "for example 1Gi"
            )
        ],
    ),
    (
        "two groups of one name",
        make_manifest(workers=[make_group(), make_group()]),
        ["spec.workers[1].name: must be unique in the list, but workers[0] has the same"],
    ),
    (
        "a variable twice",
        make_manifest(env=[{"name": "A"}, {"name": "A"}]),
        ["spec.env[1].name: must be unique in the list, but env[0] has the same"],
    ),
    (
        "two volumes",
        make_manifest(output={"volume": {"emptyDir": {}, "nfs": {}}}),
        ["spec.output.volume: must have exactly 1 entry, not 2"],
    ),
    (
        "no volume",
        make_manifest(output={"volume": {"emptyDir": None}}),
        ["spec.output.volume: must have exactly 1 entry, not 0"],
    ),
    (
        "two faults are told at once",
        make_manifest(seed=-1, stop={"rounds": 0}),
        [
            "spec.seed: must be between 0 and 4294967295, not -1",
            "spec.stop.rounds: must be between 1 and 2147483647, not 0",
        ],
    ),
]


@pytest.mark.parametrize(("document", "want"), [(d, w) for _, d, w in BAD], ids=[name for name, _, _ in BAD])
def test_refuses_with_place_and_remedy(document: object, want: list[str]) -> None:
    assert [str(fault) for fault in validate(document)] == want
    with pytest.raises(InvalidManifestError) as error:
        parse(document)
    assert str(error.value) == "\n".join(want)


@given(st.randoms(use_true_random=False))
def test_any_manifest_gets_a_verdict_and_a_valid_one_a_model(random: Any) -> None:
    document = random_manifest(random)
    if validate(document):
        with pytest.raises(InvalidManifestError):
            parse(document)
    else:
        job = parse(document)
        assert parse(job.to_document()) == job, "what was parsed can be written and parsed again"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(field=st.sampled_from(["metadata", "spec", "status", "workers", "output", "stop"]), value=json_values)
def test_any_value_anywhere_is_judged_without_a_crash(field: str, value: Any) -> None:
    document = make_manifest()
    (document["spec"] if field in ("workers", "output", "stop") else document)[field] = value
    assert all(fault.message for fault in validate(document))


def test_defaults_are_in_place() -> None:
    job = parse(make_manifest())
    group = job.spec.workers[0]
    assert (group.device, group.batch.min, group.batch.max, group.batch.initial) == (Device.CPU, 1, None, None)
    assert (job.spec.seed, job.spec.batch_grain, job.spec.parameter_servers.replicas) == (0, 1, 1)
    assert (job.spec.synchronization.mode, job.spec.synchronization.lease_seconds) == ("BSP", 15)


def test_a_volume_is_written_as_a_pod_has_it() -> None:
    volume = parse(make_manifest(output={"volume": {"persistentVolumeClaim": {"claimName": "c"}}})).spec.output.volume
    assert isinstance(volume, Volume)
    assert volume.to_document() == {"persistentVolumeClaim": {"claimName": "c"}}


def test_the_longest_pod_name_fits_exactly() -> None:
    name = pod_name("j" * (NAME_BUDGET - 3), "cpu", MAX_REPLICAS - 1, MAX_ATTEMPT)
    assert len(name) == MAX_LABEL
