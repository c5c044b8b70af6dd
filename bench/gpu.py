"""What a worker on CUDA pays to push and pull a model, beside plain copies and a worker on the CPU. Needs a GPU.

    python bench/gpu.py                             # 256 MB, two shards, five repeats
    python bench/gpu.py --megabytes 64 --shards 4 --json gpu.json

A worker's arena lies on its device and has a page-locked twin in host memory; the transport sends from and receives
into the twin. Measured, for one model of float32 parameters:

    plain copy           one tensor of the model's size between host and device, page-locked and pageable memory
    arena                `Arena.before_push` and `Arena.after_pull`: the copy of the arena and all that is around it
    gradients            `Gradients.add`: the gradients of all parameters into the arena, scaled
    whole push, pull     the above and the transport: to and from shards in processes of their own, over the loopback

Medians; variants take turns within a repeat. What was pushed is checked to be what comes back to the device.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from transport import CLIENT, SERVER, serve_heterotrain, server_process, write_credentials

from heterotrain.arena import Arena
from heterotrain.gradients import Gradients
from heterotrain.manifest import describe_model
from heterotrain.shards import Shards, make_links
from heterotrain.transport.base import PushKey
from heterotrain.transport.tcp import Hello, TcpTensorClient
from heterotrain_core.layout import make_layout

PARAMETERS: Final = 64
KEY: Final = PushKey(1, 0, 1, 0)


class Worker:
    """A model in its arena on a device, connected to its shards."""

    def __init__(self, device: torch.device, num_bytes: int, num_shards: int, folder: Path, stack: ExitStack) -> None:
        self.device = device
        size = num_bytes // 4 // PARAMETERS
        self.model = nn.ParameterList(torch.randn(size, device=device) for _ in range(PARAMETERS))
        tensors = describe_model(self.model, [{"params": list(self.model)}])
        layout = make_layout(tensors.specs, num_shards)
        self.arena = Arena(tensors, layout, device)
        self.gradients = Gradients([p for _, p in tensors.trained], self.arena.gradient_targets())
        clients = []
        for num_bytes_of_shard in layout.shard_bytes:
            address, _ = stack.enter_context(server_process(serve_heterotrain, folder, num_bytes_of_shard))
            clients.append(TcpTensorClient(address, SERVER, folder / CLIENT, Hello(CLIENT, 0, 1, 1)))
        memory = {"values": self.arena.values_memory, "pushed": self.arena.pushed_memory}
        links = make_links([SERVER] * num_shards, clients, layout, **memory)
        self.shards = Shards(links, lambda: None, time.sleep)
        stack.callback(self.shards.close)
        self.num_bytes = layout.global_bytes

    def compute(self) -> None:
        """Leave a gradient in every parameter, as a backward pass does."""
        for parameter in self.model:
            parameter.grad = torch.full_like(parameter, 0.5).mul_(parameter.detach())
        self.settle()

    def settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def add(self) -> None:
        self.gradients.add(0.5)
        self.settle()

    def after_pull(self) -> None:
        self.arena.after_pull()
        self.settle()

    def push(self) -> None:
        self.arena.before_push()
        self.shards.push(KEY)

    def pull(self) -> None:
        self.shards.pull(1, 0, frozen=False)
        self.after_pull()

    def check(self) -> None:
        """The shards here publish what was pushed: after a pull the model is its own gradient."""
        self.compute()
        want = [parameter.grad * 0.5 for parameter in self.model if parameter.grad is not None]
        self.add()
        self.push()
        self.pull()
        if not all(torch.equal(p.detach(), w) for p, w in zip(self.model, want, strict=True)):
            raise AssertionError(f"{self.device}: what came back is not what was pushed")
        self.gradients.clear()


def plain_copies(device: torch.device, num_bytes: int) -> dict[str, Callable[[], None]]:
    """Copies of one tensor, by name."""
    on_device = torch.randint(0, 255, (num_bytes,), dtype=torch.uint8, device=device)
    hosts = {
        "page-locked": torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=True),
        "pageable": torch.zeros(num_bytes, dtype=torch.uint8),
    }

    def copy(target: torch.Tensor, source: torch.Tensor) -> Callable[[], None]:
        def run() -> None:
            target.copy_(source)
            torch.cuda.synchronize(device)

        return run

    made: dict[str, Callable[[], None]] = {}
    for kind, host in hosts.items():
        made[f"plain copy to host, {kind}"] = copy(host, on_device)
        made[f"plain copy to device, {kind}"] = copy(on_device, host)
    return made


def measure(workers: dict[str, Worker], copies: dict[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    """Seconds by variant and repeat; the first, unmeasured round warms everything up."""
    seconds: dict[str, list[float]] = {}

    def timed(name: str, work: Callable[[], None]) -> None:
        began = time.perf_counter()
        work()
        seconds.setdefault(name, []).append(time.perf_counter() - began)

    for repeat in range(repeats + 1):
        if repeat == 1:
            seconds.clear()
        for name, work in copies.items():
            timed(name, work)
        for name, worker in workers.items():
            worker.compute()
            timed(f"{name}: gradients into the arena", worker.add)
            timed(f"{name}: arena before a push", worker.arena.before_push)
            timed(f"{name}: arena after a pull", worker.after_pull)
            timed(f"{name}: whole push", worker.push)
            timed(f"{name}: whole pull", worker.pull)
            worker.gradients.clear()
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=256, help="size of the model, 10^6 bytes each (default 256)")
    parser.add_argument("--shards", type=int, default=2, help="parameter servers (default 2)")
    parser.add_argument("--repeats", type=int, default=5, help="measured repeats (default 5)")
    parser.add_argument("--json", type=Path, help="also write every measurement to this file")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: no NVIDIA GPU that PyTorch can use (torch.cuda.is_available() is False)")
        return 0
    num_bytes, cuda = options.megabytes * 1_000_000, torch.device("cuda", 0)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        write_credentials(Path(name))
        workers = {
            str(device): Worker(device, num_bytes, options.shards, Path(name), stack)
            for device in (cuda, torch.device("cpu"))
        }
        for worker in workers.values():
            worker.check()
        seconds = measure(workers, plain_copies(cuda, num_bytes), options.repeats)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(
        f"{options.megabytes} MB in {PARAMETERS} parameters, {options.shards} shards over the loopback, medians of"
        f" {options.repeats}; {torch.cuda.get_device_name(cuda)}, {os.cpu_count()} cores, torch {torch.__version__}"
    )
    width = max(map(len, medians))
    print(f"{'':{width}}{'ms':>9}{'GB/s':>8}")
    for name, value in medians.items():
        print(f"{name:{width}}{value * 1e3:9.2f}{num_bytes / value / 1e9:8.2f}")
    if options.json:
        circumstances: dict[str, Any] = {
            "bytes": num_bytes,
            "shards": options.shards,
            "repeats": options.repeats,
            "gpu": torch.cuda.get_device_name(cuda),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        }
        options.json.write_text(json.dumps({"circumstances": circumstances, "seconds": seconds}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
