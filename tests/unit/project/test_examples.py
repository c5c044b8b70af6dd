"""The examples: manifests that are valid and name scripts that exist; the data set's reader and its error."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml

from heterotrain_api.v1alpha1 import HeteroTrainJob
from heterotrain_api.validation import parse, validate

EXAMPLES = Path(__file__).parents[3] / "examples"
MANIFESTS = sorted(EXAMPLES.glob("*.yaml"))


def job(name: str) -> HeteroTrainJob:
    return parse(yaml.safe_load((EXAMPLES / name).read_text()))


@pytest.fixture(scope="module")
def fashion() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fashion_cnn", EXAMPLES / "fashion_cnn.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_part(folder: Path, part: str, pixels: bytes, labels: bytes) -> None:
    (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(16) + pixels))
    (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(8) + labels))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifest_is_valid_and_names_its_script(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    assert validate(document) == []
    python, switch, module = document["spec"]["command"]
    assert (python, switch) == ("python", "-m")
    assert (EXAMPLES / f"{module}.py").is_file()


def test_every_script_has_a_manifest() -> None:
    modules = {yaml.safe_load(path.read_text())["spec"]["command"][-1] for path in MANIFESTS}
    assert modules == {path.stem for path in EXAMPLES.glob("*.py")}


def test_the_demo_has_four_workers_and_start_shares_in_proportion_to_its_speeds() -> None:
    spec = job("fashion.yaml").spec
    assert spec.parameter_servers.replicas == 2
    assert [(group.replicas, group.batch.initial) for group in spec.workers] == [(1, 200), (1, 150), (1, 100), (1, 50)]


def test_fashion_reads_idx_files_normalised(fashion: ModuleType, tmp_path: Path) -> None:
    write_part(tmp_path, "train", bytes(784) + bytes([255]) * 784, bytes([3, 9]))
    images, labels = fashion.load(tmp_path, "train").tensors
    assert images.shape == (2, 1, 28, 28)
    torch.testing.assert_close(images[:, 0, 0, 0], torch.tensor([-0.2860, 1 - 0.2860]) / 0.3530)
    assert labels.tolist() == [3, 9]


def test_fashion_takes_the_folder_it_is_told(fashion: ModuleType, tmp_path: Path) -> None:
    write_part(tmp_path, "train", bytes(784), bytes(1))
    assert fashion.find_data(tmp_path) == tmp_path


def test_fashion_without_data_says_where_it_looked_and_what_to_do(fashion: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        fashion.find_data(tmp_path)
    assert str(caught.value) == (
        f"no Fashion-MNIST in {tmp_path}: run `make data` (or `apt-get install dataset-fashion-mnist`), or name the "
        "folder of its idx.gz files with --data or HETEROTRAIN_DATA"
    )


def test_fashion_gives_groupnorm_statistics_that_no_batch_changes(fashion: ModuleType) -> None:
    net = fashion.Net()
    assert list(net.buffers()) == []
    assert 100_000 < sum(parameter.numel() for parameter in net.parameters()) < 400_000
    assert net(torch.zeros(3, 1, 28, 28)).shape == (3, 10)
