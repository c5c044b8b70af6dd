"""Train a small CNN on Fashion-MNIST: alone with ``python examples/fashion_cnn.py``, or as a job with fashion.yaml.

Reaches about 90 % test accuracy in three epochs. GroupNorm keeps no running statistics, so that the result does not
depend on how a batch is shared out among workers.
"""

from __future__ import annotations

import argparse
import gzip
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import TensorDataset

import heterotrain

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heterotrain" / "fashion-mnist"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
MEAN, DEVIATION = 0.2860, 0.3530  # of the training set's pixels, as fractions of white


def find_data(folder: Path | None) -> Path:
    """Return the first folder that holds the data set: the one asked for, else the cache, else Debian's package."""
    places = [folder] if folder else [CACHE, DEBIAN]
    for place in places:
        if (place / "train-images-idx3-ubyte.gz").exists():
            return place
    raise SystemExit(
        f"no Fashion-MNIST in {', '.join(str(p) for p in places)}: run `make data` (or `apt-get install "
        "dataset-fashion-mnist`), or name the folder of its idx.gz files with --data or HETEROTRAIN_DATA"
    )


def load(folder: Path, part: str) -> TensorDataset:
    """Read images (n, 1, 28, 28), normalised, and labels (n) of one part, ``train`` or ``t10k``, from its idx files."""
    with gzip.open(folder / f"{part}-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    pixels = (torch.from_numpy(images.astype(np.float32)) / 255 - MEAN) / DEVIATION
    return TensorDataset(pixels, torch.from_numpy(labels.astype(np.int64)))


def block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Convolution, GroupNorm, ReLU; the stride takes the place of pooling, which halves the cost."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.GroupNorm(8, outputs), nn.ReLU()
    )


class Net(nn.Sequential):
    """0.26 M parameters: 28 x 28 -> 14 -> 7 -> 4 -> 4 -> 10 classes."""

    def __init__(self) -> None:
        super().__init__(
            block(1, 32, 2), block(32, 64, 2), block(64, 128, 2), block(128, 128, 1), nn.Flatten(), nn.Linear(2048, 10)
        )


def count_correct(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Number of images in the batch that the model puts into the right class."""
    return float((model(images).argmax(1) == labels).sum())


def main() -> None:
    """Train, and report the test accuracy after every epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=500, help="alone only; in a job its globalBatchSize")
    parser.add_argument("--seed", type=int, default=7, help="alone only; in a job its seed")
    parser.add_argument("--data", type=Path, default=os.environ.get("HETEROTRAIN_DATA"), help="folder of the idx files")
    options = parser.parse_args()
    folder = find_data(options.data)
    train_set, test_set = load(folder, "train"), load(folder, "t10k")

    session = heterotrain.join(batch_size=options.batch_size, seed=options.seed)
    model, optimizer, loader = session.prepare(Net(), torch.optim.AdamW, train_set, lr=2e-3, weight_decay=0.02)
    steps = options.epochs * -(-len(train_set) // session.batch_size)
    scheduler = session.schedule(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps))
    for epoch in session.epochs(options.epochs):
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
        accuracy = session.evaluate(count_correct, test_set, batch_size=250)
        session.report(accuracy=accuracy)
        print(f"epoch {epoch}: loss {loss.item():.3f}, test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
