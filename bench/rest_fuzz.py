"""Random requests against a real server by its OpenAPI document: no 5xx, no undocumented answer, no traceback.

The watch stream has a part of its own, a tenth of the time: bad cursors and filters, clients that hang up, more of them
than there may be, one that never reads. Usage: python bench/rest_fuzz.py [--seconds 600]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.info_server import info_server
from support.rest_fuzz import fuzz
from support.watch_fuzz import RULES, fuzz_watch


def watch(seconds: float) -> bool:
    """Whether anything was wrong; prints what happened."""
    with tempfile.TemporaryDirectory() as folder, info_server(Path(folder), rules=RULES) as server:
        report = asyncio.run(fuzz_watch(server, seconds, deaf=True))
        log = server.end()
    statuses = ", ".join(f"{status}: {count}" for status, count in sorted(report.statuses.items()))
    print(f"watch: {report.statuses.total()} requests in {seconds:g} s; {statuses}; frames {dict(report.frames)}")
    print(f"watch: of those at once {report.streams} let in, {report.refused} refused; ", end="")
    print(f"one that reads nothing given up after {report.deaf_seconds or 0:.0f} s; ", end="")
    print(f"memory {report.memory_before:.0f} -> {report.memory_after:.0f} MiB; faults: {report.faults}")
    print("the server's log:", log, sep="\n")
    return bool(report.faults) or "Traceback" in log


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    seconds = parser.parse_args().seconds
    wrong = watch(seconds / 10)
    code, output, log = fuzz(seconds)
    print(output)
    print("the server's log:", log, sep="\n")
    return code or int("Traceback" in log or wrong)


if __name__ == "__main__":
    sys.exit(main())
