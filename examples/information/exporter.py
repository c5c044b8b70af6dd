"""The exporter of an accelerator that does not exist, for docs/cookbook/new-accelerator.md.

Usage: python examples/information/exporter.py [--port 9500] [--busy 35,98]
"""

from __future__ import annotations

import argparse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def exposition(busy: list[float]) -> str:
    """What the vendor's program would tell of its cards, in Prometheus text."""
    lines = ["# HELP tpx_busy_percent Time in which the card computed.", "# TYPE tpx_busy_percent gauge"]
    for card, percent in enumerate(busy):
        labels = f'{{host="lab-1",card="{card}",model="tpx-{2 - card % 2}"}}'
        lines += [f"tpx_busy_percent{labels} {percent}", f"tpx_clock_mhz{labels} {1400 - 200 * (card % 2)}"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=9500)
    parser.add_argument("--busy", default="35,98", help="percent, one for each card")
    arguments = parser.parse_args()
    busy = [float(percent) for percent in arguments.busy.split(",")]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = exposition(busy).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Not each request."""

    with ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler) as server:
        print(f"http://127.0.0.1:{server.server_port}/metrics", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
