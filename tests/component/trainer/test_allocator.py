"""What the allocator of a real process does with the memory that a step frees."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import pytest

PAGES = 64 << 20 >> 12
"""Of the block that each step takes."""

SCRIPT = """
import json, resource, sys
from pathlib import Path
from heterotrain.allocator import give_back, keep_freed_memory
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])
def step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = bytearray(b"x") * (64 << 20)
    del block
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
kept = keep_freed_memory()
step()
again, held = step(), resident()
give_back()
print(json.dumps([kept, again, held - resident()]))
"""

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="there is no glibc here")


def run(**environment: str) -> tuple[bool, int, int]:
    """Whether memory is kept; page faults of a second step; pages given back after it."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "LD_PRELOAD"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=plain | environment, capture_output=True, text=True, check=True
    )
    kept, again, given_back = json.loads(done.stdout)
    return kept, again, given_back


def test_a_step_finds_the_memory_of_the_one_before_until_it_is_given_back() -> None:
    kept, again, given_back = run()
    assert kept
    assert again < PAGES / 20, "the block's pages were not made anew"
    assert given_back > PAGES * 0.9


@pytest.mark.parametrize("environment", [{"MALLOC_ARENA_MAX": "2"}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}])
def test_whoever_sets_the_allocator_is_left_alone(environment: dict[str, str]) -> None:
    kept, again, _ = run(**environment)
    assert not kept
    assert again > PAGES * 0.9, "glibc gives large blocks back at once"
