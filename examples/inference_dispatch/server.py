"""A server that answers real inference requests, one at a time, as fast as a machine of its speed would.

Each request runs the model; then the server waits until the request has taken ``--seconds / --speed`` in all. Where the
machine is busy and the model alone takes longer than that, so does the request: the speed is a ceiling.

    POST /classify   body: 784 bytes, an image; answer: its class, as text
    GET  /metrics    Prometheus text
    POST /slow       body: a number; from now on every request takes so many times as long (1: as at first)

Usage: python server.py --name a --model model.safetensors [--speed 4] [--seconds 0.16] [--port 0] [--exporter tpx]
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue

import torch
from model import IMAGE_BYTES, classify, read_model
from torch import nn

REMEMBERED = 4
"""Requests whose mean time is told."""


class Lane:
    """Serves the requests in the order in which they came, in a thread of its own."""

    def __init__(self, model: nn.Module, seconds: float) -> None:
        """`seconds`: that a request takes at least."""
        self._model = model
        self._seconds = seconds
        self._queue: SimpleQueue[tuple[bytes, Future[int]]] = SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._took: deque[float] = deque(maxlen=REMEMBERED)
        self.slower = 1.0
        self.requests = 0
        threading.Thread(target=self._serve, daemon=True, name="lane").start()

    def ask(self, image: bytes) -> int:
        """The image's class, once it is its turn."""
        answer: Future[int] = Future()
        with self._lock:
            self._waiting += 1
        self._queue.put((image, answer))
        return answer.result()

    def _serve(self) -> None:
        while True:
            image, answer = self._queue.get()
            began = time.monotonic()
            pixels = torch.frombuffer(bytearray(image), dtype=torch.uint8).reshape(1, 28, 28)
            label = int(classify(self._model, pixels)[0])
            time.sleep(max(0.0, began + self._seconds * self.slower - time.monotonic()))
            with self._lock:
                self._took.append(time.monotonic() - began)
                self._waiting -= 1
                self.requests += 1
            answer.set_result(label)

    def figures(self) -> tuple[int, int, float | None]:
        """Requests served, requests here now, and seconds that the last ones took each; `None`: none yet."""
        with self._lock:
            mean = sum(self._took) / len(self._took) if self._took else None
            return self.requests, self._waiting, mean


def plain(name: str, address: str, lane: Lane, _: float) -> str:
    """What our servers tell of themselves. One that has not served yet says nothing of how long that takes."""
    requests, waiting, seconds = lane.figures()
    labels = f'{{name="{name}"}}'
    lines = [
        f'server_info{{name="{name}",address="{address}"}} 1',
        f"server_requests_total{labels} {requests}",
        f"server_waiting{labels} {waiting}",
    ]
    if seconds is not None:
        lines.append(f"server_request_seconds{labels} {seconds:.6f}")
    return "\n".join(lines) + "\n"


def tpx(name: str, address: str, lane: Lane, per_second: float) -> str:
    """What the accelerator that does not exist tells: names, units and labels that nobody here has heard of."""
    throttle = 100 * (1 - 1 / lane.slower)
    return (
        f'tpx_board_info{{board="{name}",endpoint="{address}"}} 1\n'
        f'tpx_peak_inferences_per_minute{{board="{name}"}} {per_second * 60:.3f}\n'
        f'tpx_throttle_percent{{board="{name}"}} {throttle:.1f}\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=0.16, help="of a request at speed 1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--exporter", choices=("plain", "tpx"), default="plain")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = read_model(options.model)
    classify(model, torch.zeros(1, 28, 28, dtype=torch.uint8))  # the first one is slow: nobody has to wait for it
    seconds = options.seconds / options.speed
    lane = Lane(model, seconds)
    exporter = plain if options.exporter == "plain" else tpx

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            address = f"127.0.0.1:{self.server.server_port}"  # type: ignore[attr-defined]
            if self.path == "/metrics":
                self._answer(200, exporter(options.name, address, lane, 1 / seconds))
            else:
                self._answer(404, "there are /metrics, /classify and /slow\n")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path == "/classify" and len(body) == IMAGE_BYTES:
                self._answer(200, str(lane.ask(body)))
            elif self.path == "/slow":
                lane.slower = float(body)
                self._answer(200, "so be it\n")
            else:
                self._answer(400, f"POST /classify takes {IMAGE_BYTES} bytes\n")

        def _answer(self, status: int, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Not each request."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that does not wait for its answer is no matter of ours."""
            if not isinstance(sys.exception(), ConnectionError):
                super().handle_error(*_)

    with Server(("127.0.0.1", options.port), Handler) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
