"""Rows made samples: whose they are, which count, what several of one become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from heterotrain_api.info_collection import EntityMapping
from heterotrain_core.info.values import Entity, Sample
from heterotrain_operator.info.extract import Extracted, Refused, extract, map_entity
from heterotrain_operator.info.packs import load_packs
from heterotrain_operator.info.sources.base import Reply, Row
from support.info_world import make_collection

NODE = [{"name": "node/{node}"}]


def extracted(rows: Mapping[str, Sequence[Row]], received: float = 100.0, skew: float = 0.0, **spec: Any) -> Extracted:
    spec.setdefault("entity", NODE)
    return extract(make_collection(**spec).spec, Reply(rows), received, skew)


def dcgm_pod_mappings() -> Sequence[EntityMapping]:
    (rule,) = load_packs(["dcgm"])
    metric = next(m for m in rule.spec.metrics if m.name == "pod_accelerator_utilization")  # type: ignore[union-attr]
    assert metric.entity is not None
    return metric.entity


GPU = {"Hostname": "n1", "gpu": "0", "instance": "10.0.0.1:9400"}
EXPORTER = {"namespace": "gpu", "pod": "nvidia-dcgm-exporter-x7", "container": "nvidia-dcgm-exporter"}


@pytest.mark.parametrize(
    ("labels", "pod"),
    [
        pytest.param(
            {"namespace": "ml", "pod": "fashion-gpu-0-1"}, "pod/ml/fashion-gpu-0-1", id="as pod: labels are honoured"
        ),
        pytest.param(
            {**EXPORTER, "exported_namespace": "ml", "exported_pod": "fashion-gpu-0-1"},
            "pod/ml/fashion-gpu-0-1",
            id="as exported_pod beside the exporter's own",
        ),
        pytest.param(
            {**EXPORTER, "exported_namespace": "", "exported_pod": ""}, None, id="exported, but nobody uses the GPU"
        ),
        pytest.param(EXPORTER, None, id="only the exporter's own pod"),
        pytest.param({}, None, id="no pod at all"),
        pytest.param({"pod": "fashion-gpu-0-1"}, None, id="a pod without a namespace"),
        pytest.param({"namespace": "ml", "pod": "no/such name"}, None, id="a name that none can have"),
    ],
)
def test_a_gpu_is_never_tied_to_a_pod_that_is_not_its_user(labels: dict[str, str], pod: str | None) -> None:
    assert map_entity(dcgm_pod_mappings(), GPU | labels) == pod


@pytest.mark.parametrize(
    ("labels", "want"),
    [
        pytest.param(GPU, "accelerator/n1/0", id="a whole GPU"),
        pytest.param(GPU | {"GPU_I_ID": "3", "GPU_I_PROFILE": "1g.10gb"}, "accelerator/n1/0.3", id="a MIG device"),
        pytest.param({"node": "n2", "gpu": "1"}, "accelerator/n2/1", id="a node by another label"),
        pytest.param({"gpu": "1"}, None, id="no node"),
    ],
)
def test_a_gpu_is_named_by_node_and_index(labels: dict[str, str], want: str | None) -> None:
    (rule,) = load_packs(["dcgm"])
    assert map_entity(rule.spec.entity, labels) == want  # type: ignore[union-attr]


def test_two_pods_that_share_a_gpu_both_have_its_number() -> None:
    rows = [Row(GPU | {"namespace": "ml", "pod": pod}, 80.0) for pod in ("a-gpu-0", "b-gpu-0")]
    (rule,) = load_packs(["dcgm"])
    out = extract(rule.spec, Reply({"pod_accelerator_utilization": rows}), 100.0)  # type: ignore[arg-type]
    assert [(s.entity, s.value) for s in out.samples] == [("pod/ml/a-gpu-0", 0.8), ("pod/ml/b-gpu-0", 0.8)]


CORES = [Row({"node": "a", "cpu": str(cpu), "mode": mode}, value) for cpu, mode, value in [
    (0, "user", 1.0), (0, "idle", 10.0), (1, "user", 3.0), (1, "system", 2.0)]]  # fmt: skip


@pytest.mark.parametrize(
    ("combine", "want"),
    [("sum", 6.0), ("mean", 2.0), ("min", 1.0), ("max", 3.0), ("count", 3.0), ("refuse", 1.0)],
)
def test_several_series_of_one_entity_become_one(combine: str, want: float) -> None:
    metric = {"name": "busy", "match": {"mode": "!idle"}, "combine": combine}
    out = extracted({"busy": CORES}, metrics=[metric])
    assert out.samples == [Sample(Entity("node/a"), "busy", 100.0, want)]
    assert out.refused[Refused.SEVERAL] == (2 if combine == "refuse" else 0)


def test_parts_with_slightly_different_times_are_one_and_a_range_is_many() -> None:
    parts = [Row({"node": "a", "c": "1"}, 1.0, 90.0), Row({"node": "a", "c": "2"}, 2.0, 91.0)]
    labels = [{"node": "a", "c": "1"}, {"node": "a", "c": "2"}]
    ranges = [Row(one, value, time) for one in labels for time, value in ((80.0, 1.0), (90.0, 2.0))]
    metric = [{"name": "m", "combine": "sum"}]
    assert [(s.time, s.value) for s in extracted({"m": parts}, metrics=metric).samples] == [(91.0, 3.0)]
    assert [(s.time, s.value) for s in extracted({"m": ranges}, metrics=metric).samples] == [(80.0, 2.0), (90.0, 4.0)]


def test_source_times_are_moved_by_the_skew_and_samples_come_in_order() -> None:
    rows = [Row({"node": "a"}, 1.0, 50.0), Row({"node": "b"}, 1.0), Row({"node": "c"}, 1.0, 20.0)]
    out = extracted({"m": rows}, skew=7.0, metrics=[{"name": "m"}])
    assert [(s.entity, s.time) for s in out.samples] == [("node/c", 27.0), ("node/a", 57.0), ("node/b", 100.0)]


def test_more_series_than_the_cardinality_are_left_out_and_named() -> None:
    rows = [Row({"node": f"n{index}"}, 1.0) for index in range(5)]
    out = extracted({"m": rows}, metrics=[{"name": "m"}], cardinality=3)
    assert (len(out.samples), out.refused[Refused.CARDINALITY]) == (3, 2)
    assert out.trouble() == "2 series above cardinality 3: m of node/n3"


@pytest.mark.parametrize(
    ("metric", "row", "want", "refused"),
    [
        pytest.param({"scale": 0.01, "max": 1}, Row({"node": "a"}, 55.0), 0.55, {}, id="scaled"),
        pytest.param({"max": 1}, Row({"node": "a"}, 55.0), None, {Refused.OUT_OF_BOUNDS: 1}, id="out of bounds"),
        pytest.param({"min": 0}, Row({"node": "a"}, -1.0), None, {Refused.OUT_OF_BOUNDS: 1}, id="below the bounds"),
        pytest.param({}, Row({"node": "a"}, "ready"), None, {Refused.WRONG_TYPE: 1}, id="a word for a gauge"),
        pytest.param({"type": "state"}, Row({"node": "a"}, "ready"), "ready", {}, id="a word for a state"),
        pytest.param({"type": "text"}, Row({"node": "a"}, 1.0), "1", {}, id="a number for a text"),
        pytest.param(
            {"type": "state", "valueLabel": "phase"},
            Row({"node": "a", "phase": "Running"}, 1.0),
            "Running",
            {},
            id="a label's text",
        ),
        pytest.param(
            {"type": "state", "valueLabel": "phase"}, Row({"node": "a"}, 1.0), None, {}, id="a label that is not there"
        ),
    ],
)
def test_values_are_scaled_bounded_and_of_their_type(
    metric: dict[str, Any], row: Row, want: Any, refused: dict[Refused, int]
) -> None:
    out = extracted({"m": [row]}, metrics=[{"name": "m", **metric}])
    assert [s.value for s in out.samples] == (
        [] if want is None else [pytest.approx(want) if isinstance(want, float) else want]
    )
    assert dict(out.refused) == refused


def test_entities_get_the_labels_that_the_rule_names() -> None:
    rows = [Row({"node": "a", "pool": "old", "zone": ""}, 1.0)]
    out = extracted(
        {"m": rows}, metrics=[{"name": "m"}], labels={"pool": "{pool}", "zone": "{zone}", "id": "{node}-{pool}"}
    )
    assert out.labels == {Entity("node/a"): {"pool": "old", "id": "a-old"}}


def test_a_metric_without_series_is_trouble_only_if_all_are() -> None:
    both = [{"name": "m"}, {"name": "n"}]
    some = extracted({"m": [Row({"node": "a"}, 1.0)]}, metrics=both)
    assert (some.refused[Refused.EMPTY], some.trouble()) == (1, "")
    assert extracted({}, metrics=both).trouble() == "2 metrics without a series: none for m"
