"""Requests a second and p95 latency of a dispatcher that follows a rule, beside round robin in the same run.

Runs examples/inference_dispatch/demo.py, with Fashion-MNIST if it is there (`make data`), else with scikit-learn's
digits. Usage: python bench/inference_dispatch.py [the demo's options]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from fashion_cnn import find_data

DEMO = Path(__file__).parents[1] / "examples" / "inference_dispatch" / "demo.py"


def main() -> int:
    given = sys.argv[1:]
    if "--data" not in given and "-h" not in given and "--help" not in given:
        try:
            find_data(None)
        except SystemExit as missing:
            print(f"{missing}; scikit-learn's digits take its place")
            given += ["--data", "digits"]
    return subprocess.run([sys.executable, str(DEMO), *given], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
