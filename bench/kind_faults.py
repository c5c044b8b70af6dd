"""Ten faults on a real cluster of unequal nodes: what `kubectl describe` says of each, and how fast training stays.

Needs the kind cluster (`hack/install.sh` and `hack/monitoring.sh images`). Nodes get 0.8, 0.4, 0.2 and 0.1 cores, and a
Prometheus looks at them. The network of examples/fashion_cnn.py, a batch of 500, one parameter server. First a minute
with equal shares; then `spec.adaptation.mode` is set to Apply, and the faults come one after the other, in an order and
against workers that the seed picks. For each: the sentences that a person reads in `kubectl describe`, when they were
there, and the slowest minute, as the median of its pieces of 5 s, beside equal shares without any fault; where the
fault makes a node slower, beside equal shares under the same fault too.
Usage: bench/kind_faults.py [--seed 0] [--only WORD,...] [--quick] [--json FILE]        # about half an hour
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from heterotrain_api.contract import Label, Port
from support.cluster import OPERATOR_NAMESPACE, CommandFailedError, Document, Namespace, Operator, example, run
from support.release import install, kept_values
from support.rest_api import forwarded
from support.unequal_nodes import MONITORING, hog, monitoring, program, set_cores, unequal_nodes

JOB: Final = "fashion"
CORES: Final = {"new": 0.8, "mid": 0.4, "old": 0.2, "tiny": 0.1}
BATCH: Final = 500
PIECE_SECONDS: Final = 5.0
MINUTE_PIECES: Final = 12
SETTLE_SECONDS: Final = 60.0
POLL_SECONDS: Final = 2.0
SYSTEM: Final = Namespace(OPERATOR_NAMESPACE)
ANYTHING: Final = r".*(PlanAgreed|PlanDerived|Straggler|slower|faster|Message:).*"
"""What may say it in other words."""
RULE: Final = "cadvisor"
"""The one that tells what pods use: without it no cause is known."""

TRAINING: Final = """
import fashion_cnn as f, torch, heterotrain
data = f.load(f.find_data(None), "train")
session = heterotrain.join()
model, optimizer, loader = session.prepare(f.Net(), torch.optim.AdamW, data, lr=2e-3)
for _ in session.epochs(100000):
    for images, labels in loader:
        f.F.cross_entropy(model(images), labels).backward()
        optimizer.step()
"""

LIAR: Final = """
import json, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Liar(BaseHTTPRequestHandler):
    def do_GET(self):
        with urllib.request.urlopen("http://prometheus-itself.monitoring:9090" + self.path) as answer:
            told = json.load(answer)
        times = "query=timestamp" in self.path
        for series in told["data"]["result"]:
            if "value" not in series:
                continue
            at, value = series["value"]
            if "MODE" == "stale":
                at, value = at - 600, str(float(value) - 600) if times else value
            elif not times:
                value = "NaN"
            series["value"] = [at, value]
        body = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
ThreadingHTTPServer(("", 9090), Liar).serve_forever()
"""


@dataclass(frozen=True)
class Sentence:
    """What `kubectl describe` is to say, as a regular expression, within so many seconds."""

    pattern: str
    seconds: float = 120.0
    of_rule: bool = False
    """In the description of `RULE` instead of the job's."""


@dataclass(frozen=True)
class Fault:
    """`begin`, `seconds` later `end`; both with what is said then."""

    name: str
    seconds: float
    begin: Callable[[], object]
    end: Callable[[], object]
    said: Sequence[Sentence] = ()
    said_after: Sequence[Sentence] = ()
    slows: bool = False
    """A node becomes slower, and equal shares with it."""


@dataclass
class Meter:
    """Samples trained, asked of the coordinator each second; a background thread."""

    url: str
    seen: list[tuple[float, float]] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[Meter]:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.stop.set()
            thread.join()

    def _run(self) -> None:
        with httpx.Client(timeout=5, trust_env=False) as client:
            while not self.stop.wait(1.0):
                with contextlib.suppress(httpx.HTTPError):
                    found = re.search(r"^heterotrain_trainer_samples(?:\{.*\})? (\S+)", client.get(self.url).text, re.M)
                    if found:
                        self.seen.append((time.monotonic(), float(found[1])))

    def pieces(self, begin: float, end: float) -> list[float]:
        """Samples/s of each 5 s; silence of the coordinator is spread over the time that it took.

        Silence throughout is no training.
        """
        seen = [(at, samples) for at, samples in self.seen if begin - PIECE_SECONDS <= at <= end]
        if not seen:
            return [0.0]
        marks = [seen[0]]
        for at, samples in seen:
            if at - marks[-1][0] >= PIECE_SECONDS:
                marks.append((at, samples))
        return [
            rate
            for (t0, s0), (t1, s1) in itertools.pairwise(marks)
            for rate in [(s1 - s0) / (t1 - t0)] * max(1, round((t1 - t0) / PIECE_SECONDS))
        ]

    def slowest_minute(self, begin: float, end: float) -> float:
        """The smallest median of the pieces of any minute."""
        pieces = self.pieces(begin, end)
        whole = max(1, len(pieces) - MINUTE_PIECES + 1)
        return min(statistics.median(pieces[i : i + MINUTE_PIECES]) for i in range(whole))


class World:
    """The job, and the hand that hurts it."""

    def __init__(self, namespace: Namespace, nodes: dict[str, str]) -> None:
        self.namespace, self.nodes, self.operator = namespace, nodes, Operator()

    def describe(self, sentence: Sentence) -> str:
        if sentence.of_rule:
            return SYSTEM.kubectl("describe", "collectionrule", RULE)
        return self.namespace.kubectl("describe", "htj", JOB)

    def pod(self, worker: str) -> Document:
        """The pod of a group's worker that runs now."""
        for pod in self.namespace.objects("pods", f"{Label.GROUP}={worker}"):
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]:
                return pod
        raise AssertionError(f"no pod of {worker} runs")

    def kill_process(self, worker: str) -> None:
        """SIGKILL to the worker's process: nodes are containers here, and this machine sees into them."""
        uid = self.pod(worker)["metadata"]["uid"]
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                groups = Path(f"/proc/{process.pid}/cgroup").read_text().replace("_", "-")
                if uid in groups and "python" in process.name():
                    process.send_signal(signal.SIGKILL)

    def lie(self, how: str) -> None:
        """Whoever asks Prometheus is answered by a program that changes what it says."""
        MONITORING.apply(service("prometheus-itself", "prometheus"))
        MONITORING.apply(program("liar", LIAR.replace("MODE", how)))
        MONITORING.kubectl("wait", "pod/liar", "--for=condition=Ready", "--timeout=60s")
        MONITORING.apply(service("prometheus", "liar"))
        self.end_prometheus()  # connections that are open lead to it and not to the service

    def tell_the_truth(self) -> None:
        MONITORING.apply(service("prometheus", "prometheus"))
        MONITORING.kubectl("delete", "pod", "liar", "--force", "--grace-period=0")

    def stop_prometheus(self) -> None:
        MONITORING.kubectl("scale", "deployment/prometheus", "--replicas=0")
        self.end_prometheus()

    def end_prometheus(self) -> None:
        MONITORING.kubectl("delete", "pod", "-l", "app.kubernetes.io/name=prometheus", "--force", "--grace-period=0")

    def away(self) -> None:
        self.operator.scale(0)
        self.operator.kill()


def service(name: str, app: str) -> Document:
    spec = {
        "selector": {"app.kubernetes.io/name": app},
        "ports": [{"name": "web", "port": 9090, "targetPort": 9090}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def faults(world: World, chance: random.Random, long: float) -> list[Fault]:
    """All ten, in the order and against the workers that chance picks."""
    hogged, halved = chance.sample(sorted(CORES), 2)
    deleted, killed = chance.sample(["new", "mid", "old"], 2)
    paused = chance.choice(["new", "mid", "old"])
    node = world.nodes

    def back(worker: str) -> list[Sentence]:
        return [Sentence(rf".*PlanDerived.*{worker}-0 takes part with a share.*", 240)]

    rule_is_well = [Sentence(r"Reason: +Samples(Stored|Missing)", 120, of_rule=True)]

    def lie(name: str, how: str, complaint: str) -> Fault:
        said = [Sentence(rf"Message: .*{complaint}.*", 90, of_rule=True)]
        return Fault(name, 90, lambda: world.lie(how), world.tell_the_truth, said, rule_is_well)

    told = [
        Fault(
            f"a hog on the node of {hogged}-0",
            90,
            lambda: world.namespace.apply(hog(node[hogged], cpu="100m")),
            lambda: world.namespace.kubectl("delete", "pod", "hog", "--force", "--grace-period=0"),
            [
                Sentence(rf".*PlanAgreed.*{hogged}-0.*"),
                Sentence(rf".*{hogged}-0 .*slower.*: node {node[hogged]} is \d+% busy with other pods.*"),
            ],
            [Sentence(rf".*{hogged}-0 became .*x faster.*")],
            slows=True,
        ),
        Fault(
            f"the node of {halved}-0 at half of its cores",
            75,
            lambda: set_cores(node[halved], CORES[halved] / 2),
            lambda: set_cores(node[halved], CORES[halved]),
            [Sentence(rf".*{halved}-0 (became|is) .*x slower.*: .*")],
            [Sentence(rf".*{halved}-0 became .*x faster.*")],
            slows=True,
        ),
        Fault(
            "the node of mid-0 at a tenth of its cores",
            90,
            lambda: set_cores(node["mid"], CORES["mid"] / 10),
            lambda: set_cores(node["mid"], CORES["mid"]),
            [Sentence(r".*mid-0 takes .* s with its smallest share of 40, the others .* s: .*")],
            [Sentence(r".*mid-0 became .*x faster.*")],
            slows=True,
        ),
        Fault(
            f"the pod of {deleted}-0 deleted",
            20,
            lambda: world.namespace.kubectl(
                "delete", "pod", world.pod(deleted)["metadata"]["name"], "--force", "--grace-period=0"
            ),
            lambda: None,
            [Sentence(rf".*PodRestarted.*{deleted}-0.*"), *back(deleted)],
        ),
        Fault(
            f"the process of {killed}-0 killed",
            20,
            lambda: world.kill_process(killed),
            lambda: None,
            [Sentence(rf".*PodRestarted.*{killed}-0.*"), *back(killed)],
        ),
        Fault(
            f"the node of {paused}-0 stands still for a minute",
            60,
            lambda: run("docker", "pause", node[paused]),
            lambda: run("docker", "unpause", node[paused]),
            [Sentence(rf".*WorkerLost.*{paused}-0.*")],
            back(paused),
        ),
        Fault(
            "Prometheus away",
            long,
            world.stop_prometheus,
            lambda: MONITORING.kubectl("scale", "deployment/prometheus", "--replicas=1"),
            [Sentence(r"Reason: +SourceUnreachable", 90, of_rule=True)],
            rule_is_well,
        ),
        lie("Prometheus says NaN", "nan", "values are not finite"),
        lie("Prometheus tells what was ten minutes ago", "stale", "no sample is fresh: the newest is .* old"),
        Fault(
            "the operator away",
            long,
            world.away,
            lambda: (world.operator.scale(1), world.operator.wait_until_ready()),
            [],
            [Sentence(r"Round: +\d+"), Sentence(r'Record: +\{"action".*')],  # a new one: the shares were looked at
        ),
    ]
    return chance.sample(told, len(told))


def manifest() -> Document:
    """The example with equal shares, which nobody changes at first."""
    job = example(
        JOB,
        command=["python", "-c", TRAINING],
        globalBatchSize=BATCH,
        adaptation={"mode": "Off"},
    )
    job["spec"]["parameterServers"]["replicas"] = 1
    for group in job["spec"]["workers"]:
        group["batch"] = {"initial": BATCH // 4, "min": 10 if group["name"] in ("old", "tiny") else 40}
    return job


def await_sentences(world: World, sentences: Sequence[Sentence], before: set[str]) -> list[float | None]:
    """When each was there, in seconds from now; `None` for one that did not come in time."""
    began = time.monotonic()
    found: list[float | None] = [None] * len(sentences)
    while any(answer is None for answer in found):
        for i, sentence in enumerate(sentences):
            if found[i] is None:
                fresh = [line for line in lines(world, sentence) if line not in before]
                if fresh:
                    found[i] = time.monotonic() - began
                    print(f"    after {found[i]:.1f} s: {fresh[-1][:400]}", flush=True)
        if all(a is not None or time.monotonic() - began > s.seconds for a, s in zip(found, sentences, strict=True)):
            break
        time.sleep(POLL_SECONDS)
    for sentence, answer in zip(sentences, found, strict=True):
        if answer is None:
            print(f"    NOT SAID within {sentence.seconds:.0f} s: {sentence.pattern}", flush=True)
            newest = [line for line in lines(world, replace(sentence, pattern=ANYTHING)) if line not in before]
            print(*(f"        {line[:300]}" for line in newest[-8:]), sep="\n", flush=True)
    return found


def lines(world: World, sentence: Sentence) -> list[str]:
    """What of the description fits, each without the times that `describe` puts before it."""
    try:
        text = world.describe(sentence)
    except CommandFailedError:
        return []
    found = [match[0] for match in re.finditer(sentence.pattern, text)]
    return [
        re.sub(r"^\s*(Normal|Warning)\s+(\S+)\s+.*?(heterotrain\S*)\s+", r"\1 \2: ", line).strip() for line in found
    ]


def play(world: World, fault: Fault, meter: Meter) -> dict[str, Any]:
    """One fault from its beginning to the end of its settling."""
    print(f"== {fault.name}", flush=True)
    plans = generation(world)
    before = {line for s in (*fault.said, *fault.said_after) if not s.of_rule for line in lines(world, s)}
    began = time.monotonic()
    fault.begin()
    said = await_sentences(world, fault.said, before)
    time.sleep(max(0.0, began + fault.seconds - time.monotonic()))
    before |= {line for s in fault.said_after if not s.of_rule for line in lines(world, s)}
    ended = time.monotonic()
    fault.end()
    said_after = await_sentences(world, fault.said_after, before)
    time.sleep(max(0.0, ended + SETTLE_SECONDS - time.monotonic()))
    slowest = meter.slowest_minute(began, time.monotonic())
    changes = generation(world) - plans
    print(f"    slowest minute {slowest:.0f} samples/s; plans {changes}", flush=True)
    return {
        "fault": fault.name,
        "seconds": ended - began,
        "said_after_seconds": said,
        "said_after_end_seconds": said_after,
        "slowest_minute_samples_per_second": slowest,
        "plans": changes,
    }


def under(fault: Fault, meter: Meter) -> float:
    """Samples/s under a fault while nobody changes the shares: the slowest minute, as in `play`."""
    fault.begin()
    began = time.monotonic()
    time.sleep(fault.seconds)
    slowest = meter.slowest_minute(began, time.monotonic())
    fault.end()
    time.sleep(SETTLE_SECONDS / 2)
    print(f"    {slowest:.0f} samples/s with equal shares: {fault.name}", flush=True)
    return slowest


def generation(world: World) -> int:
    return int(world.namespace.job(JOB).status.get("plan", {}).get("generation", 0))


def measure(world: World, meter: Meter, chance: random.Random, options: argparse.Namespace) -> dict[str, Any]:
    """Equal shares, adaptation, then the faults."""
    time.sleep(90)
    now = time.monotonic()
    equal = statistics.median(meter.pieces(now - 60, now))
    print(f"equal shares: {equal:.0f} samples/s (median of a minute)", flush=True)
    told = faults(world, chance, 90.0 if options.quick else 300.0)
    told = [fault for fault in told if any(word in fault.name for word in options.only.split(","))]
    beside = {fault.name: under(fault, meter) for fault in told if fault.slows}
    world.namespace.kubectl("patch", "htj", JOB, "--type=merge", "-p", '{"spec":{"adaptation":{"mode":"Apply"}}}')
    time.sleep(120)
    now = time.monotonic()
    adapted = statistics.median(meter.pieces(now - 60, now))
    print(f"adaptation: {adapted:.0f} samples/s (median of a minute), {adapted / equal:.2f} times as fast", flush=True)
    rows = [play(world, fault, meter) | {"equal_under_it": beside.get(fault.name)} for fault in told]
    return {"seed": options.seed, "equal": equal, "adapted": adapted, "faults": rows}


def report(found: dict[str, Any]) -> bool:
    """The table; whether all was said and no minute was slower than equal shares under the same fault."""
    good = True
    print(f"\n{'fault':<45} {'said after':>20} {'after its end':>18} {'slowest minute':>15} {'under it':>10} plans")
    for row in found["faults"]:
        parts = [
            " ".join("never" if s is None else f"{s:.0f} s" for s in row[key]) or "-"
            for key in ("said_after_seconds", "said_after_end_seconds")
        ]
        ratio = row["slowest_minute_samples_per_second"] / found["equal"]
        under_it = row["slowest_minute_samples_per_second"] / (row["equal_under_it"] or found["equal"])
        good &= under_it >= 1 and not any("never" in part for part in parts)
        told = f"{ratio:>10.2f} x eq {under_it:>10.2f}"
        print(f"{row['fault']:<45} {parts[0]:>20} {parts[1]:>18} {told} {row['plans']:>4}")
    s_balance = sum(CORES.values()) / (len(CORES) * min(CORES.values()))
    print(f"equal {found['equal']:.0f}, adapted {found['adapted']:.0f} samples/s; S_balance {s_balance:.2f}")
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="picks order and victims")
    parser.add_argument("--only", default="", metavar="WORD,…", help="faults with one of these in their names")
    parser.add_argument("--quick", action="store_true", help="what lasts five minutes lasts 90 s")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    # Told to end, it puts nodes and release back as they were.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        run("kubectl", "--context", "kind-heterotrain", "--request-timeout", "10s", "get", "nodes")
    except (CommandFailedError, FileNotFoundError):
        print("No kind cluster here: `make cluster`, `hack/install.sh` and `hack/monitoring.sh images` make it.")
        return
    namespace = Namespace(f"bench-faults-{os.getpid()}")
    with ExitStack() as stack:
        values = stack.enter_context(kept_values(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        stack.enter_context(monitoring())
        install(values, "--set", "information.prometheus.url=http://prometheus.monitoring:9090")
        run("kubectl", "create", "namespace", namespace.name)
        stack.callback(run, "kubectl", "delete", "namespace", namespace.name, "--wait=false")
        stack.callback(namespace.kubectl, "delete", "htj", "--all", "--wait=false")
        namespace.apply(manifest())
        namespace.wait_for_job(JOB, "trains", 300, lambda job: job.condition("Training")[0] == "True")
        world = World(namespace, stack.enter_context(unequal_nodes(CORES)))
        url = stack.enter_context(forwarded(namespace.name, f"pod/{JOB}-ps-0-1", Port.COORDINATOR_METRICS))
        with Meter(f"{url}/metrics").running() as meter:
            found = measure(world, meter, random.Random(options.seed), options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    raise SystemExit(0 if report(found) else 1)


if __name__ == "__main__":
    main()
