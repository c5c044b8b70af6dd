"""Unequal inference servers, and a dispatcher whose strategy is a rule of the information service.

Starts four servers of speeds 4 : 3 : 2 : 1 and one with an accelerator that nobody knows, ``heterotrain info serve``
with rules, and a dispatcher that knows all of them through the REST API alone. Then, with real requests:

1. round robin against the rule's weights, in turns;
2. a server is slowed down while requests flow, and a better rule is found for the queue that formed;
3. the strategy is changed by a rule while requests flow;
4. the accelerator is added by rules, while requests flow.

Usage: python examples/inference_dispatch/demo.py [--seconds 8] [--turns 3] [--clients 12] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from dispatcher import Dispatcher
from model import DIGITS, FASHION, classify, read_images, read_model, train, write_model
from service import Server, Service, end, read_rules, server_rule, start_servers
from traffic import Figures, Traffic, figures, pooled

SPEEDS = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}
UNKNOWN = "tpx-1"
"""The server with the made-up accelerator."""
UNKNOWN_SPEED = 4.0
SLOWER = 4.0
"""How much slower the fastest server becomes."""
IMAGES = 200
PATIENCE = 60.0


class Show:
    """The run: what it uses, and the figures so far."""

    def __init__(self, traffic: Traffic, dispatcher: Dispatcher, service: Service, servers: dict[str, Server]) -> None:
        self.traffic = traffic
        self.dispatcher = dispatcher
        self.service = service
        self.servers = servers
        self.found: dict[str, Any] = {}

    async def until(self, fulfilled: Callable[[dict[str, float]], bool], what: str) -> float:
        """Seconds until the weights are as wanted."""
        began = time.monotonic()
        while not fulfilled({name.removeprefix("server/"): w for name, w in self.dispatcher.weights().items()}):
            if time.monotonic() - began > PATIENCE:
                raise SystemExit(f"not after {PATIENCE:g} s: {what}; the weights are {self.dispatcher.weights()}")
            self.dispatcher.news.clear()
            try:
                await asyncio.wait_for(self.dispatcher.news.wait(), 0.2)
            except TimeoutError:
                continue
        return time.monotonic() - began

    def tell(self, key: str, words: str, of: Figures) -> None:
        """Print one line of figures, and keep them."""
        shares = " ".join(f"{name} {count / max(1, of.requests):.0%}" for name, count in of.by_server.items())
        print(f"  {words:44} {of.per_second:6.1f} {of.p50 * 1e3:8.0f} {of.p95 * 1e3:8.0f}   {shares}", flush=True)
        self.found[key] = {**asdict(of), "per_second": of.per_second}

    def head(self, words: str) -> None:
        print(f"\n{words}\n  {'':44} {'req/s':>6} {'p50 ms':>8} {'p95 ms':>8}   who served", flush=True)


async def compare(show: Show, seconds: float, turns: int, ideal: float) -> None:
    """Round robin and the rule's weights in turns, so that both meet the same moods of the machine."""
    show.head(
        f"1. Round robin against the rule `speed`, {turns} turns of {seconds:g} s each; all servers: {ideal:.1f}/s"
    )
    spans: dict[str, list[tuple[float, float]]] = {"round_robin": [], "rule": []}
    for _ in range(turns):
        spans["round_robin"].append(await show.traffic.span(show.dispatcher.round_robin, seconds))
        spans["rule"].append(await show.traffic.span(show.dispatcher.by_weight, seconds))
    show.tell("round_robin", "round robin", pooled(spans["round_robin"], show.traffic.done))
    show.tell("rule", "weights by the rule `speed`", pooled(spans["rule"], show.traffic.done))


async def slow_down(show: Show, seconds: float, slow_weight: float) -> None:
    """The fastest server becomes slow while requests flow, and fast again. `slow_weight`: its weight while slow."""
    show.head(f"2. Server a takes {SLOWER:g} times as long, while requests flow")
    async with show.traffic.flowing(show.dispatcher.by_weight):
        began = time.monotonic()
        await asyncio.sleep(seconds / 2)
        slowed = time.monotonic()
        await asyncio.to_thread(show.servers["a"].slow, SLOWER)
        noticed = await show.until(lambda now: "a" in now and now["a"] < 2 * slow_weight, "the slow server is noticed")
        await show.traffic.turned_over()
        settled = time.monotonic()
        await asyncio.sleep(seconds)
        changed = time.monotonic()
        await asyncio.to_thread(show.service.apply, read_rules("backlog"))
        await asyncio.sleep(seconds / 2)  # for the queue to be served
        drained = time.monotonic()
        await asyncio.sleep(seconds)
        ended = time.monotonic()
    done = show.traffic.done
    show.tell("slow_before", "before", figures(done, began, slowed))
    show.tell("slow_noticing", f"until its weight has halved: {noticed:.1f} s", figures(done, slowed, settled))
    show.tell("slow_after", "after: weights by `speed`, its queue stays", figures(done, settled, changed))
    show.tell("slow_backlog", "after the rule was changed to `backlog`", figures(done, drained, ended))
    await asyncio.to_thread(show.service.apply, read_rules("speed"))
    span = await show.traffic.span(show.dispatcher.round_robin, seconds)
    show.tell("slow_round_robin", "round robin, for comparison", figures(show.traffic.done, *span))
    await asyncio.to_thread(show.servers["a"].slow, 1.0)
    async with show.traffic.flowing(show.dispatcher.by_weight):
        back = await show.until(
            lambda now: now.get("a", 0.0) > 1.5 * slow_weight, "the server that is fast again is noticed"
        )
    print(f"  fast again: its weight is back after {back:.1f} s")
    show.found["noticed_seconds"], show.found["back_seconds"] = noticed, back


async def change_strategy(show: Show, seconds: float) -> None:
    """The rule that writes `dispatch_weight` is changed by REST; the dispatcher is not touched."""
    show.head("3. The strategy is changed by PUT /v1/rules/process/dispatch-weight, while requests flow")
    spans = {}
    async with show.traffic.flowing(show.dispatcher.by_weight):
        for name, in_force in (
            ("equal", lambda now: len(now) == len(SPEEDS) and set(now.values()) == {1.0}),
            ("fast", lambda now: {name for name, weight in now.items() if weight > 1} == {"a", "b"}),
            ("speed", lambda now: len(now) == len(SPEEDS) and set(now.values()) != {1.0}),
        ):  # fmt: skip
            await asyncio.to_thread(show.service.apply, read_rules(name))
            await show.until(in_force, f"the weights are those of the rule `{name}`")
            await show.traffic.turned_over()
            began = time.monotonic()
            await asyncio.sleep(seconds)
            spans[name] = (began, time.monotonic())
    words = {
        "equal": "equal: the same for all", "fast": "fast: those near the fastest", "speed": "speed, again",
    }  # fmt: skip
    for name, span in spans.items():
        show.tell(f"strategy_{name}", words[name], figures(show.traffic.done, *span))


async def add_accelerator(show: Show, seconds: float) -> None:
    """A server of a kind that nobody knows is made known by rules."""
    show.head(f"4. Rules make server {UNKNOWN} known, whose accelerator nobody has heard of, while requests flow")
    async with show.traffic.flowing(show.dispatcher.by_weight):
        began = time.monotonic()
        await asyncio.sleep(seconds)
        added = time.monotonic()
        await asyncio.to_thread(show.service.apply, read_rules("accelerator", show.servers[UNKNOWN].url))
        took = await show.until(lambda now: len(now) == len(SPEEDS) + 1, f"{UNKNOWN} has a weight")
        known = time.monotonic()
        await asyncio.sleep(seconds)
        ended = time.monotonic()
    show.tell("unknown_before", "before", figures(show.traffic.done, began, added))
    show.tell(
        "unknown_after",
        f"after (it has a weight {took:.1f} s after the rules)",
        figures(show.traffic.done, known, ended),
    )


async def run(options: argparse.Namespace, images: list[bytes], expected: list[int], model: Path) -> dict[str, Any]:
    """Start everything, show everything, end everything."""
    with ExitStack() as stack:
        speeds = {**SPEEDS, UNKNOWN: UNKNOWN_SPEED}
        started = start_servers(model, speeds, options.service_seconds, tpx=[UNKNOWN])
        stack.callback(end, [server.process for server in started])
        servers = {server.name: server for server in started}
        service = Service(model.parent, [*(server_rule(servers[name]) for name in SPEEDS), *read_rules("speed")])
        stack.callback(service.close)
        dispatcher = Dispatcher(service.url, service.token)
        following = asyncio.create_task(dispatcher.follow())
        show = Show(Traffic(dispatcher, images, expected, options.clients), dispatcher, service, servers)
        try:
            await show.until(lambda now: set(now) == set(SPEEDS), "all servers are known")
            async with show.traffic.flowing(dispatcher.by_weight):
                await show.until(lambda now: 1.0 not in now.values(), "all servers have served and been asked")
            await compare(show, options.seconds, options.turns, sum(SPEEDS.values()) / options.service_seconds)
            await slow_down(show, options.seconds, SPEEDS["a"] / options.service_seconds / SLOWER)
            await change_strategy(show, options.seconds)
            await add_accelerator(show, options.seconds)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await dispatcher.close()
    show.found |= {
        "requests": len(show.traffic.done), "wrong": show.traffic.wrong, "failures": dispatcher.failures,
        "without_server": show.traffic.without_server, "lost_streams": dispatcher.lost_streams,
    }  # fmt: skip
    return show.found


def prepare(options: argparse.Namespace, folder: Path) -> tuple[list[bytes], list[int], Path]:
    """Images to send, the model's own classes of them, and the model's file."""
    train_set, test_set = read_images(options.data)
    if options.model is None:
        began = time.monotonic()
        model = train(train_set, options.train_images)
        print(
            f"trained on {options.train_images} images of {options.data} for {time.monotonic() - began:.0f} s", end=""
        )
    else:
        model = read_model(options.model)
        print(f"read {options.model}", end="")
    path = folder / "model.safetensors"
    write_model(model, path)
    classes = classify(model, test_set.pixels)
    accuracy = float((classes == test_set.labels).to(torch.float32).mean())
    print(f"; right about {accuracy:.1%} of {len(classes)} test images")
    return [image.numpy().tobytes() for image in test_set.pixels[:IMAGES]], classes[:IMAGES].tolist(), path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8, help="of each part that is measured")
    parser.add_argument("--turns", type=int, default=3, help="of round robin and weights")
    parser.add_argument("--clients", type=int, default=12, help="that wait for an answer each")
    parser.add_argument("--service-seconds", type=float, default=0.16, help="that a request takes at speed 1")
    parser.add_argument(
        "--data", choices=(FASHION, DIGITS), default=FASHION, help="digits: without Fashion-MNIST's files"
    )
    parser.add_argument("--train-images", type=int, default=10_000, help="to train on, once each")
    parser.add_argument(
        "--model", type=Path, help="a safetensors file of `heterotrain run` or `export`, not to train here"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are ended too
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(run(options, *prepare(options, Path(folder))))
    print(
        f"\n{found['requests']} requests were answered, {found['wrong']} of them other than the model answers here; "
        f"{found['failures']} failed at a server, {found['without_server']} found none."
    )
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
