"""Text and JSON read into rows: a node's exposition, paths, quantities, devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_api.info_collection import CollectedMetric, EndpointSource
from heterotrain_operator.info.sources.base import Reason, Row, SourceError
from heterotrain_operator.info.sources.documents import as_number, read_document
from heterotrain_operator.info.sources.json_path import find, parse_path
from heterotrain_operator.info.sources.linux import cgroup_series, procfs_series
from heterotrain_operator.info.sources.nvidia import parse_csv
from heterotrain_operator.info.sources.text_format import text_rows

DATA = Path(__file__).parents[2] / "data"


def make_metric(name: str, **fields: Any) -> CollectedMetric:
    return CollectedMetric.model_validate({"name": name, **fields})


def test_a_nodes_exposition_is_read_as_it_is() -> None:
    body = (DATA / "node_exposition.txt").read_bytes()
    names = (
        "node_cpu_seconds_total",
        "node_load1",
        "node_memory_MemAvailable_bytes",
        "node_uname_info",
        "node_scrape_seconds_bucket",
    )
    rows = text_rows(body, [make_metric(name) for name in names])
    assert len(rows["node_cpu_seconds_total"]) == 16
    assert rows["node_cpu_seconds_total"][0] == Row({"cpu": "0", "mode": "idle"}, 104231.42)
    assert rows["node_load1"] == [Row({}, 0.21)]
    assert rows["node_memory_MemAvailable_bytes"] == [Row({}, 7.58120448e9)]
    assert rows["node_uname_info"][0].labels["nodename"] == "worker-1"
    assert rows["node_uname_info"][0].labels["version"] == '#1 SMP "quoted" \\ C:\\dir\nnext'
    assert [row.labels["le"] for row in rows["node_scrape_seconds_bucket"]] == ["0.1", "+Inf"]


def test_times_in_the_text_are_milliseconds() -> None:
    assert text_rows(b"a 1 1700000000500\n", [make_metric("a")])["a"] == [Row({}, 1.0, 1_700_000_000.5)]


def test_a_metric_may_have_another_name_in_the_source() -> None:
    rows = text_rows(b"a 1\n", [make_metric("x", **{"from": "a"}), make_metric("y", **{"from": "a"})])
    assert rows == {"x": [Row({}, 1.0)], "y": [Row({}, 1.0)]}


@given(st.binary(max_size=80) | st.text(alphabet='ab{}=",\\\n# 0123456789.eE+-NaInf_', max_size=80).map(str.encode))
def test_any_bytes_are_read_or_refused_by_name(body: bytes) -> None:
    reason, rows = None, {}
    try:
        rows = text_rows(body, [make_metric("a"), make_metric("b")])
    except SourceError as error:
        reason = error.reason
    assert reason in (Reason.NOT_METRICS, Reason.MALFORMED, Reason.EMPTY) if not rows else set(rows) == {"a", "b"}


DEVICES = b"""{"devices": [
  {"id": 0, "board": {"host.name": "n1", "temp": 61.5}, "memory": "16Gi", "ok": true,
   "fans": [{"rpm": 900}, {"rpm": 1100}]},
  {"id": 1, "board": {"host.name": "n1", "temp": null}, "memory": "16Gi", "ok": false, "fans": []}]}"""


def test_things_in_json_become_rows_with_labels() -> None:
    layout = EndpointSource.model_validate(
        {
            "url": "http://x/",
            "format": "JSON",
            "items": "devices[*]",
            "labels": {"node": 'board["host.name"]', "id": "id"},
        }
    )
    metrics = [
        make_metric("temp", path="board.temp"),
        make_metric("memory"),
        make_metric("ok"),
        make_metric("health", path="ok", type="state"),
        make_metric("rpm", path="fans[*].rpm"),
        make_metric("none", path="a.b"),
    ]
    first, second = {"node": "n1", "id": "0"}, {"node": "n1", "id": "1"}
    assert read_document(DEVICES, layout, metrics) == {
        "temp": [Row(first, 61.5)],
        "memory": [Row(first, 2.0**34), Row(second, 2.0**34)],
        "ok": [Row(first, 1.0), Row(second, 0.0)],
        "health": [Row(first, "true"), Row(second, "false")],
        "rpm": [Row(first, 900.0), Row(first, 1100.0)],
        "none": [],
    }


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ("", [{"a": {"b.c": 1, "d": [10, 20]}, "conditions": [{"type": "Ready", "status": "True"}]}]),
        ("$.a.d[1]", [20]),
        ("a.d[*]", [10, 20]),
        ("a.d[7]", []),
        ('a["b.c"]', [1]),
        ("conditions[type=Ready].status", ["True"]),
        ("conditions[type=Other].status", []),
        ("a[*]", [1, [10, 20]]),
        ("a.d.e", []),
    ],
)
def test_paths_lead_to_values(path: str, want: list[Any]) -> None:
    value = {"a": {"b.c": 1, "d": [10, 20]}, "conditions": [{"type": "Ready", "status": "True"}]}
    assert find(value, path) == want


@pytest.mark.parametrize("path", ["a..b", "a[", "[]", "a[b", ".", "a b"])
def test_other_paths_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="is not understood"):
        parse_path(path)


@pytest.mark.parametrize(
    ("value", "want"),
    [(True, 1.0), (3, 3.0), ("500m", 0.5), ("2Gi", 2.0**31), ("-1.5", -1.5), ("2026-01-01T00:00:00Z", 1767225600.0),
     ("word", None), ("", None), (None, None), ([1], None), ("9" * 400, float("inf"))],
)  # fmt: skip
def test_scalars_as_numbers(value: Any, want: float | None) -> None:
    assert as_number(value) == want


SMI = """\
0, GPU-aa, 37, 1024, 81559, 1410, 1980, 44, 120.50, 700.00, 0x0000000000000004
1, GPU-bb, [N/A], 0, 81559, 345, 1980, 30, [N/A], 700.00, 0x0000000000000001
"""


def test_nvidia_smi_lines_become_series() -> None:
    series = parse_csv(SMI)
    first, second = {"gpu": "0", "uuid": "GPU-aa"}, {"gpu": "1", "uuid": "GPU-bb"}
    assert series["gpu_utilization_ratio"] == [Row(first, 0.37)]
    assert series["gpu_memory_used_bytes"] == [Row(first, 2.0**30), Row(second, 0.0)]
    assert series["gpu_throttled"] == [Row(first, 1.0), Row(second, 0.0)]
    with pytest.raises(SourceError, match="another form"):
        parse_csv("No devices were found\n")


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_control_groups_of_version_2(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/kubepods/pod1\n",
        "sys/fs/cgroup/kubepods/pod1/cpu.stat": "usage_usec 2500000\nnr_throttled 4\nthrottled_usec 1500000\n",
        "sys/fs/cgroup/kubepods/pod1/cpu.max": "80000 100000\n",
        "sys/fs/cgroup/kubepods/pod1/memory.current": "4096\n",
        "sys/fs/cgroup/kubepods/pod1/memory.max": "max\n",
    }
    assert {name: rows[0].value for name, rows in cgroup_series(write(tmp_path, files)).items()} == {
        "cpu_seconds_total": 2.5,
        "cpu_throttled_seconds_total": 1.5,
        "cpu_throttled_periods_total": 4.0,
        "cpu_limit_cores": 0.8,
        "memory_used_bytes": 4096.0,
    }


def test_control_groups_of_version_1(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "3:cpu,cpuacct:/\n2:memory:/docker/x\n0::/\n",
        "sys/fs/cgroup/cpu/cpu.stat": "nr_periods 10\nnr_throttled 4\nthrottled_time 1500000000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpuacct/cpuacct.usage": "2500000000\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "4096\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    assert {name: rows[0].value for name, rows in cgroup_series(write(tmp_path, files)).items()} == {
        "cpu_seconds_total": 2.5,
        "cpu_throttled_seconds_total": 1.5,
        "cpu_throttled_periods_total": 4.0,
        "memory_used_bytes": 4096.0,
    }


def test_pressure_and_times_of_proc(tmp_path: Path) -> None:
    files = {
        "proc/pressure/cpu": "some avg10=1.00 avg60=0.50 avg300=0.10 total=2500000\n",
        "proc/stat": "cpu  100 0 50 900 7 0 0 3 0 0\ncpu0 1 1\n",
        "proc/loadavg": "0.50 0.40 0.30 1/100 1234\n",
        "proc/meminfo": "MemTotal:  1024 kB\nMemFree: 1 kB\nMemAvailable: 512 kB\n",
    }
    series = procfs_series(write(tmp_path, files))
    assert series["pressure_seconds_total"] == [Row({"resource": "cpu", "kind": "some"}, 2.5)]
    assert {row.labels["mode"]: row.value for row in series["cpu_seconds_total"]}["steal"] == pytest.approx(0.03)
    assert [series[name][0].value for name in ("load1", "memory_total_bytes", "memory_available_bytes")] == [
        0.5,
        2**20,
        2**19,
    ]
