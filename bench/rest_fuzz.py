"""Random requests against a real server by its OpenAPI document: no 5xx, no undocumented answer, no traceback.

Usage: python bench/rest_fuzz.py [--seconds 600]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.rest_fuzz import fuzz


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    code, output, log = fuzz(parser.parse_args().seconds)
    print(output)
    print("the server's log:", log, sep="\n")
    return code or int("Traceback" in log)


if __name__ == "__main__":
    sys.exit(main())
