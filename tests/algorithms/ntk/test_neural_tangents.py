"""Our kernels against those of the library neural-tangents, where a Python that has it is named.

python -m venv env && env/bin/pip install neural-tangents==0.6.5 jax==0.4.30 jaxlib==0.4.30 six
PARLEY_NEURAL_TANGENTS=env/bin/python make test-all
"""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from parley.algorithms.ntk.jacobian import jacobian

PYTHON = os.environ.get("PARLEY_NEURAL_TANGENTS")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="PARLEY_NEURAL_TANGENTS names no Python that has neural-tangents"),
]
CASES = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 4)), (6,)),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(4, 5, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(20, 3),
        ),
        (2, 8, 8),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_are_those_of_neural_tangents(case: str, tmp_path: Path):
    torch.manual_seed(0)
    build, shape = CASES[case]
    module, x = build().double().eval(), torch.randn(9, *shape, dtype=torch.float64)
    weights = {name: value.detach() for name, value in module.named_parameters()}
    np.savez(tmp_path / "problem.npz", x=x, **{name: value.numpy() for name, value in weights.items()})
    script = Path(__file__).with_name("neural_tangents_kernel.py")
    command = [str(PYTHON), script, case, tmp_path / "problem.npz", tmp_path / "kernel.npy"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    expected = torch.from_numpy(np.load(tmp_path / "kernel.npy"))  # [n, n, outputs, outputs]
    found = jacobian(module, weights, x)
    averaged = expected.diagonal(dim1=2, dim2=3).mean(2)
    assert float((found.kernel() - averaged).norm() / averaged.norm()) < 1e-12
    rows = torch.eye(expected.shape[2] * len(x), dtype=torch.float64).reshape(-1, len(x), expected.shape[2])
    full = torch.stack([found.jvp(found.vjp(row)) for row in rows])  # [n outputs, n, outputs]
    pairs = full.reshape(len(x), expected.shape[2], len(x), expected.shape[2]).permute(0, 2, 1, 3)
    assert float((pairs - expected).norm() / expected.norm()) < 1e-12
