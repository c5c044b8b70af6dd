"""``heterotrain lab`` small: a set-up end to end, with real processes, and what it refuses."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

IMAGES = 1024
pytestmark = pytest.mark.timeout(300)  # processes that import PyTorch, perhaps on a busy machine


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images and labels by chance, in the files of Fashion-MNIST."""
    folder, chance = tmp_path_factory.mktemp("data"), random.Random(1)
    for part in ("train", "t10k"):
        with gzip.open(folder / f"{part}-images-idx3-ubyte.gz", "wb", compresslevel=1) as file:
            file.write(bytes(16) + chance.randbytes(IMAGES * 28 * 28))
        with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz", "wb", compresslevel=1) as file:
            file.write(bytes(8) + bytes(chance.randrange(10) for _ in range(IMAGES)))
    return folder


def lab(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from heterotrain_operator import cli; cli.main()", "lab", *arguments]
    environment = {**os.environ, "HETEROTRAIN_DATA": str(data)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)


def test_a_small_lab_measures_both_sides_beside_the_ideal(data: Path, tmp_path: Path) -> None:
    done = lab(
        data, "straggler-4", "--seconds", "2", "--warm-up", "1", "--runs", "adaptation,ddp-static",
        "--report", str(tmp_path), "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [run["name"] for run in told["runs"]] == ["adaptation", "ddp-static"]
    assert 0 < told["ideal_samples_per_second"] <= 1001
    assert told["s_balance"] > 1.5
    for run in told["runs"]:
        assert 0 < run["share_of_ideal"] == pytest.approx(run["samples_per_second"] / told["ideal_samples_per_second"])
        assert len(run["seeds"][0]["accuracy"]) > 1
    assert {file.name for file in tmp_path.iterdir()} >= {"lab.json", "lab.md", "throughput.png", "shares.png"}


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        pytest.param(["het-3"], "there is no set-up 'het-3'; there are: equal, het-2", id="an unknown set-up"),
        pytest.param(["noise", "--level", "3"], "use --level 2, or the set-up ladder", id="noise by 5 % at level 3"),
        pytest.param(["equal", "--cores", "1"], "add --level 3", id="cores at level 2"),
        pytest.param(["ladder", "--level", "3", "--cores", "2"], "at most 1.88", id="more than a worker can use"),
        pytest.param(["equal", "--runs", "bsp"], "there is no run 'bsp'; there are: ddp-equal", id="an unknown run"),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(
    data: Path, tmp_path: Path, arguments: list[str], want: str
) -> None:
    done = lab(data, *arguments, "--report", str(tmp_path))
    assert (done.returncode, want in done.stderr) == (2, True), done.stderr


def test_without_the_images_it_says_where_they_come_from(tmp_path: Path) -> None:
    done = lab(tmp_path, "equal", "--report", str(tmp_path / "report"))
    assert done.returncode == 2
    assert f"no Fashion-MNIST in {tmp_path}: run `make data`" in done.stderr
