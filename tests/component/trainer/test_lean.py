"""What PyTorch's compiler costs is paid by processes that compile, and by no others."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import sys
import torch
from heterotrain.lean import spare_compiler, step_plainly
from heterotrain.ps.optimizer import elementwise_optimizers

spare_compiler()
for name in elementwise_optimizers():
    optimizer = getattr(torch.optim, name)([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    optimizer.param_groups[0]["params"][0].grad = torch.ones(1)
    step_plainly(optimizer)
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
assert not [name for name in sys.modules if name.startswith("torch._dynamo")]
"""
AFTERWARDS = """
import torch._dynamo

optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
optimizer.zero_grad()
marked = torch.optim.Optimizer.zero_grad.__wrapped__.__dict__["__dynamo_disable"]
assert marked.__module__.startswith("torch._dynamo"), marked
"""


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(WITHOUT, id="optimizers work without the compiler"),
        pytest.param(WITHOUT + AFTERWARDS, id="once it is loaded it is told what to pass over, as ever"),
    ],
)
def test_the_compiler_is_loaded_by_who_needs_it(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
