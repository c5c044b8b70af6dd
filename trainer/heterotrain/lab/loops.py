"""The same steps three ways: in a job, under PyTorch's DistributedDataParallel (gloo), alone.

DDP is given what favours it: tensors indexed at once, gradients that live in its buckets, its own overlap of backward
and all-reduce.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.autograd import backward
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

import heterotrain
from heterotrain.lab.data import Batch, Images, as_it_is
from heterotrain.lab.models import make_model
from heterotrain.lab.pacing import Pacer, wait_to_join
from heterotrain.randomness import SampleOrder
from heterotrain_core.lab.task import Task
from heterotrain_core.types import SampleRange

LEARNING_RATE: Final = 2e-3
WEIGHT_DECAY: Final = 0.02
EPOCHS: Final = 100_000
"""Runs are ended from outside."""


def in_job(task: Task, worker: int) -> None:
    """As a worker of a job."""
    wait_to_join(task, worker)
    session = heterotrain.join(batch_size=task.batch, seed=task.seed)
    torch.manual_seed(task.seed)
    model, optimizer, loader = session.prepare(
        make_model(task.model), torch.optim.AdamW, Images(task.data, "train"),
        collate_fn=as_it_is, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY,
    )  # fmt: skip
    snapshots = Snapshots(task, worker, model)
    with task.trace(worker).open("a") as file:
        pacer = Pacer(task, worker, file)
        for _ in session.epochs(EPOCHS):
            for images, labels in loader:
                pacer.begin(len(labels))
                _repeat(model, (images, labels), pacer.work)
                backward(F.cross_entropy(model(images), labels))
                pacer.hold()
                optimizer.step()
                pacer.end()
                snapshots.keep()


def under_ddp(task: Task, worker: int) -> None:
    """Under DDP, from RANK, WORLD_SIZE and MASTER_ADDR in the environment; until the process is ended.

    Each local mean loss is weighted by its share, so that the gradients' plain mean is the mean over all samples
    (algorithms.md C3).
    """
    dist.init_process_group("gloo")
    torch.manual_seed(task.seed)
    model, data, share = make_model(task.model), Images(task.data, "train"), task.shares[worker]
    parallel = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    weight = dist.get_world_size() * share / task.batch
    snapshots = Snapshots(task, worker, model)
    with task.trace(worker).open("a") as file:
        pacer = Pacer(task, worker, file)
        padded = task.level == 2 or bool(task.setup.link_seconds)
        if padded:
            # A lambda: PyTorch takes hooks without annotations only, or with its own classes in them.
            parallel.register_comm_hook(None, lambda group, bucket: _padded_all_reduce(pacer, group, bucket))
        dist.barrier()
        for images, labels in own_batches(task, worker, data):
            pacer.begin(len(labels))
            _repeat(model, (images, labels), pacer.work)
            loss = F.cross_entropy(parallel(images), labels) * weight
            backward(loss)
            if not padded:
                pacer.hold()
            optimizer.step()
            optimizer.zero_grad()
            pacer.end()
            snapshots.keep()


def alone(task: Task, worker: int) -> None:
    """Gradients only, for this worker's speed without communication; until the process is ended."""
    torch.manual_seed(task.seed)
    model, data = make_model(task.model), Images(task.data, "train")
    with task.trace(worker).open("a") as file:
        pacer = Pacer(replace(task, setup=task.setup.undisturbed), worker, file)
        for images, labels in own_batches(task, worker, data):
            pacer.begin(len(labels))
            backward(F.cross_entropy(model(images), labels))
            model.zero_grad()
            pacer.hold()
            pacer.end()


def own_batches(task: Task, worker: int, data: Images) -> Iterator[Batch]:
    """A worker's part of each global batch, for ever: consecutive places of the sample order that a job has too."""
    order, size = SampleOrder(task.seed, len(data)), len(data)
    first = [0, *accumulate(task.shares)][worker]
    for epoch in range(EPOCHS):
        for start in range(0, size - task.batch + 1, task.batch):
            begin = start + first
            yield data.__getitems__(order.indices([SampleRange(epoch, begin, begin + task.shares[worker])]))


class Snapshots:
    """Keeps the parameters that worker 0 holds, every so often, each in a file named by its time."""

    def __init__(self, task: Task, worker: int, model: nn.Module) -> None:
        self._every = task.snapshot_seconds if worker == 0 else 0.0
        self._folder: Path = task.folder
        self._model = model
        self._last = -float("inf")

    def keep(self) -> None:
        """A step is over."""
        now = time.monotonic()
        if self._every <= 0 or now - self._last < self._every:
            return
        self._last = now
        vector = nn.utils.parameters_to_vector(self._model.parameters()).detach()
        vector.numpy().tofile(self._folder / f"snapshot-{now:.6f}.bin")


def _repeat(model: nn.Module, batch: Batch, work: int) -> None:
    """Compute the batch's gradient `work - 1` times, for nothing."""
    for _ in range(work - 1):
        torch.autograd.grad(F.cross_entropy(model(batch[0]), batch[1]), list(model.parameters()))


def _padded_all_reduce(pacer: Pacer, group: Any, bucket: Any) -> Any:
    """DDP's own all-reduce of a bucket; the last one's after the padding, as if computing had lasted so long."""
    if bucket.is_last():
        pacer.hold()
    return allreduce_hook(group, bucket)
