from __future__ import annotations

from pathlib import Path

import pytest

from heterotrain_operator.lab.quota import Controller, NoQuotasError, find_controller, own_controller, quota_groups


def lines(*rows: str) -> str:
    return "".join(f"{row}\n" for row in rows)


def test_version_2_alone(tmp_path: Path) -> None:
    (tmp_path / "user.slice").mkdir()
    mounts = lines("proc /proc proc rw 0 0", f"cgroup2 {tmp_path} cgroup2 rw,nsdelegate 0 0")
    assert find_controller(mounts, "0::/user.slice\n") == Controller(2, tmp_path / "user.slice")


def test_version_1_counts_where_both_are_mounted(tmp_path: Path) -> None:
    one, two = tmp_path / "cpu,cpuacct", tmp_path / "unified"
    one.mkdir()
    mounts = lines(
        f"cgroup {tmp_path}/cpuset cgroup rw,cpuset 0 0",
        f"cgroup2 {two} cgroup2 rw 0 0",
        f"cgroup {one} cgroup rw,nosuid,cpu,cpuacct 0 0",
    )
    assert find_controller(mounts, lines("3:cpuset:/", "1:cpu,cpuacct:/", "0::/")) == Controller(1, one)


def test_a_path_that_is_not_mounted_here_is_that_of_the_host(tmp_path: Path) -> None:
    mounts = lines(f"cgroup2 {tmp_path} cgroup2 rw 0 0")
    assert find_controller(mounts, "0::/kubepods/pod7\n") == Controller(2, tmp_path)


@pytest.mark.parametrize(
    ("mounts", "groups"),
    [
        pytest.param("proc /proc proc rw 0 0\n", "0::/\n", id="no control groups"),
        pytest.param("cgroup /x cgroup rw,memory 0 0\n", "4:memory:/\n", id="none for the CPU"),
    ],
)
def test_no_controller(mounts: str, groups: str) -> None:
    assert find_controller(mounts, groups) is None


@pytest.mark.parametrize(
    ("version", "cores", "want"),
    [
        pytest.param(2, 0.8, {"cpu.max": "16000 20000"}, id="version 2"),
        pytest.param(1, 0.1, {"cpu.cfs_period_us": "20000", "cpu.cfs_quota_us": "2000"}, id="version 1"),
        pytest.param(2, 0.01, {"cpu.max": "1000 20000"}, id="the least that the kernel takes"),
    ],
)
def test_what_is_written_for_a_quota(version: int, cores: float, want: dict[str, str]) -> None:
    assert Controller(version, Path("/x")).settings(cores) == want


def test_without_control_groups_level_3_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoQuotasError, match="none are mounted; use --level 2"):
        own_controller(tmp_path)


def test_a_group_without_the_cpu_controller_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory pids")
    with (
        pytest.raises(NoQuotasError, match=r"the CPU controller is not enabled for it; .*, or use --level 2"),
        quota_groups(Controller(2, tmp_path), [0.5], "lab"),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["cgroup.controllers"]
