"""The pack derived-node: whom it holds a node's use against, and what it leaves open."""

from __future__ import annotations

import pytest

from heterotrain_api.info_rules import ProcessingRule
from heterotrain_core.info.processing import Processor
from heterotrain_core.info.values import Entity, Sample, Value
from heterotrain_operator.info.packs import load_packs
from heterotrain_operator.info.rules import compile_processing

NODE, POD = Entity("node/a"), Entity("pod/ml/job-cpu-0-1")
END = 100.0
Told = dict[str, list[float | str]]

CAPACITY: Told = {"node_cpu_cores": [4.0], "node_allocatable_cpu_cores": [4.0]}
QUIET_GROUP: Told = {"node_cgroup_cpu_seconds_total": [0.0, 2.0, 4.0]}
BUSY_HOST: Told = {"node_cpu_busy_seconds_total": [0.0, 38.0, 76.0]}
RUNNING: Told = {"trainer_pod_started_seconds": [70.0], "pod_phase": ["Running"]}


def derive(node: Told, pod: Told) -> dict[tuple[Entity, str], Value]:
    """What is there after samples 10 s apart, the last ones at `END`. The pod is on the node."""
    rules = [rule for rule in load_packs(["derived-node"]) if isinstance(rule, ProcessingRule)]
    processor = Processor(lambda _: 60.0, {POD: {"node": "a"}, NODE: {}}.__getitem__)
    for rule in rules:
        processor.set(compile_processing(rule))
    samples = [
        Sample(entity, metric, END - 10 * (len(values) - 1 - i), value)
        for entity, told in ((NODE, node), (POD, pod))
        for metric, values in told.items()
        for i, value in enumerate(values)
    ]
    found: dict[tuple[Entity, str], Value] = {}
    for time in sorted({sample.time for sample in samples}):
        effects = processor.feed([sample for sample in samples if sample.time == time], time)
        found |= {(made.sample.entity, made.sample.metric): made.sample.value for made in effects.derived}
        for key in effects.withdrawn:
            found.pop(key, None)
    return found


@pytest.mark.parametrize(
    ("node", "pod", "contention"),
    [
        pytest.param(BUSY_HOST, {}, 0.95, id="a machine is told by its kernel"),
        pytest.param(BUSY_HOST | QUIET_GROUP, {}, 0.05, id="a container by its control group, not by the kernel"),
        pytest.param(
            BUSY_HOST | {"node_cgroup_cpu_seconds_total": [0.0]}, {}, None,
            id="a container whose control group has told once: nothing, rather than what the kernel says",
        ),
        pytest.param(
            BUSY_HOST, RUNNING | {"pod_cpu_seconds_total": [0.0, 36.0, 72.0]}, 0.05,
            id="what a trainer uses is not others' use",
        ),
        pytest.param(BUSY_HOST, RUNNING | {"pod_cpu_seconds_total": [0.0]}, None, id="an unmeasured trainer: nothing"),
        pytest.param(
            BUSY_HOST, {"trainer_pod_started_seconds": [70.0], "pod_phase": ["Succeeded"]}, 0.95,
            id="a trainer that has ended is not waited for",
        ),
        pytest.param(BUSY_HOST, {"pod_phase": ["Running"]}, 0.95, id="nor is a pod that is no trainer"),
        pytest.param(
            BUSY_HOST | {"node_trainer_cpu_cores": [3.0]}, RUNNING, 0.2,
            id="a trainer's use that is told from elsewhere counts",
        ),
    ],
)  # fmt: skip
def test_contention_of_a_node(node: Told, pod: Told, contention: float | None) -> None:
    found = derive(CAPACITY | node, pod)
    assert found.get((NODE, "node_contention")) == (None if contention is None else pytest.approx(contention))
    assert found[NODE, "node_capability_cores"] == pytest.approx(4 * (1 - (contention or 0)))
