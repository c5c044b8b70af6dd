"""Train a small MLP on the digits of scikit-learn, in seconds: ``python examples/digits.py``, or with digits.yaml."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import TensorDataset

import heterotrain

TRAINING = 1500  # of 1797 images; the rest is the test set
IMAGE = Path("/usr/share/datasets/digits/digits.csv.gz")  # where the examples image has the data


def find_data() -> Path:
    """Return scikit-learn's file of digits, without the seconds that importing scikit-learn takes."""
    package = find_spec("sklearn")
    if package is not None and package.origin is not None:
        return Path(package.origin).parent / "datasets" / "data" / IMAGE.name
    if not IMAGE.exists():
        raise SystemExit(f"no digits in {IMAGE}, and no scikit-learn: pip install 'heterotrain[examples]'")
    return IMAGE


def count_correct(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Number of images in the batch that the model puts into the right class."""
    return float((model(images).argmax(1) == labels).sum())


def main() -> None:
    """Train, and report the test accuracy after every epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=60, help="alone only; in a job its globalBatchSize")
    parser.add_argument("--seed", type=int, default=7, help="alone only; in a job its seed")
    options = parser.parse_args()
    table = torch.from_numpy(np.loadtxt(find_data(), delimiter=",", dtype=np.float32))  # 64 pixels and the digit
    images, labels = table[:, :64] / 16, table[:, 64].long()
    train_set = TensorDataset(images[:TRAINING], labels[:TRAINING])
    test_set = TensorDataset(images[TRAINING:], labels[TRAINING:])

    session = heterotrain.join(batch_size=options.batch_size, seed=options.seed)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model, optimizer, loader = session.prepare(net, torch.optim.SGD, train_set, lr=0.2, momentum=0.9)
    scheduler = session.schedule(torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.3), per="epoch")
    for epoch in session.epochs(options.epochs):
        for image, label in loader:
            loss = F.cross_entropy(model(image), label)
            loss.backward()
            optimizer.step()
        scheduler.step()
        accuracy = session.evaluate(count_correct, test_set, batch_size=100)
        session.report(accuracy=accuracy)
        print(f"epoch {epoch}: test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
