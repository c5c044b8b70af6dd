"""A worker of ``synchronisation.py``: digits, with each step padded by sleeping; in a job, or under DDP (gloo).

The first worker leaves every parameter set that it holds with its time, for accuracies to be measured afterwards.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import TensorDataset

import heterotrain
from heterotrain.randomness import SampleOrder
from heterotrain_core.types import SampleRange

TRAINING = 1500
REPEATS = 4
"""The epoch holds each image so often: what workers wait for at its end is then a small part of it."""
LEARNING_RATE = 0.8


def data() -> tuple[TensorDataset, TensorDataset]:
    """Training set (repeated) and test set."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise SystemExit("needs scikit-learn for its digits")
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = torch.from_numpy(np.loadtxt(path, delimiter=",", dtype=np.float32))
    images, labels = table[:, :64] / 16, table[:, 64].long()
    training = images[:TRAINING].repeat(REPEATS, 1), labels[:TRAINING].repeat(REPEATS)
    return TensorDataset(*training), TensorDataset(images[TRAINING:], labels[TRAINING:])


def network(seed: int) -> nn.Sequential:
    """The same initial values for a seed."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


class Trace:
    """What the first worker's model held when; written at the end."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._began = time.perf_counter()
        self._times: list[float] = []
        self._values: list[torch.Tensor] = []

    def note(self, model: nn.Module) -> None:
        """Keep the parameters as they are."""
        if self._folder is not None:
            self._times.append(time.perf_counter() - self._began)
            self._values.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())

    def write(self) -> None:
        """Times as JSON, values as one tensor."""
        if self._folder is not None:
            (self._folder / "times.json").write_text(json.dumps(self._times))
            torch.save(torch.stack(self._values), self._folder / "values.pt")


def paced(seconds: float, began: float) -> None:
    """Sleep until a step that began then has lasted `seconds`."""
    time.sleep(max(0.0, began + seconds - time.perf_counter()))


def in_job(out: Path, seconds: list[float], share: int) -> None:
    """Under heterotrain."""
    session = heterotrain.join(batch_size=0, seed=0)
    training, _ = data()
    model, optimizer, loader = session.prepare(network(session.seed), torch.optim.SGD, training, lr=LEARNING_RATE)
    trace, step = Trace(out if session.rank == 0 else None), seconds[session.rank]
    for _ in session.epochs(1):
        trace.note(model)
        for images, labels in loader:
            began = time.perf_counter()
            F.cross_entropy(model(images), labels).backward()
            paced(step * len(labels) / share, began)
            optimizer.step()
            trace.note(model)
    trace.write()


def batches(rank: int, world: int, share: int, seed: int) -> Iterator[list[int]]:
    """Equal shares of the sample order that a job has."""
    size = TRAINING * REPEATS
    order = SampleOrder(seed, size)
    for start in range(0, size - world * share + 1, world * share):
        first = start + rank * share
        yield order.indices([SampleRange(0, first, first + share)])


def under_ddp(out: Path, seconds: list[float], share: int) -> None:
    """The same steps with PyTorch's DistributedDataParallel."""
    dist.init_process_group("gloo")
    rank, seed = dist.get_rank(), int(os.environ["BENCH_SEED"])
    training, _ = data()
    model = network(seed)
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=LEARNING_RATE)
    dist.barrier()
    trace, began_all, rounds, waiting = Trace(out if rank == 0 else None), time.perf_counter(), 0, 0.0
    trace.note(model)
    for indices in batches(rank, dist.get_world_size(), share, seed):
        began = time.perf_counter()
        images, labels = training[indices]
        loss = F.cross_entropy(parallel(images), labels)
        paced(seconds[rank] * len(labels) / share, began)
        computed = time.perf_counter()
        loss.backward()  # waits for everybody
        waiting += time.perf_counter() - computed
        optimizer.step()
        optimizer.zero_grad()
        rounds += 1
        trace.note(model)
    trace.write()
    figures = {"rounds": rounds, "seconds": time.perf_counter() - began_all, "waiting_seconds": waiting / rounds}
    (out / f"ddp-{rank}.json").write_text(json.dumps(figures))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    run = under_ddp if "RANK" in os.environ else in_job
    run(Path(os.environ["BENCH_OUT"]), json.loads(os.environ["BENCH_SECONDS"]), int(os.environ["BENCH_SHARE"]))
