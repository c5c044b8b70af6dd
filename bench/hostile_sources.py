"""Sources that do everything wrong, over real sockets: nothing ends, nothing wrong is served, everything is counted.

Each kind of hostility has a target; every other answer of it is right. Everything that the REST API serves is looked
at ten times a second. Usage: python bench/hostile_sources.py [--seconds 60]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.hostile_web import ALWAYS, KINDS, HostileWeb, endure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    logging.basicConfig(level=logging.ERROR)
    with HostileWeb() as web:
        report = asyncio.run(endure(web, parser.parse_args().seconds))
    print(f"{'source':16} {'hostile answers':>15} {'looks with a value':>19}   counted as")
    for name in (*KINDS, *ALWAYS):
        counted = ", ".join(f"{outcome} {count}" for outcome, count in report.outcomes[name].most_common())
        print(f"{name:16} {report.hostile[name]:15d} {report.fresh[name]:19d}   {counted}")
    print(f"\n{report.looks} looks in {report.seconds:g} s, {sum(report.fresh.values())} values seen")
    print(f"wrong or old values: {len(report.wrong)} {report.wrong[:5]}; not counted: {report.miscounted()}")
    if report.rates:
        rates = f"{min(report.rates):.0f} to {max(report.rates):.0f}"
        print(f"rate of a counter that begins again each 3 s: {rates}, right: 100")
    print(f"largest memory of this process: {report.memory_before:.0f} MiB before, {report.memory_after:.0f} MiB after")
    return int(bool(report.wrong or report.miscounted()))


if __name__ == "__main__":
    sys.exit(main())
