"""Gaussian numbers from secrets.

They come from a cryptographic stream (SHAKE-256 of the secret root and the place in the run), so neither the study's
seed nor any number of them leads to the others; the same place gives the same noise, another place other noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from parley.core.context import Secrets


def gaussian(secrets: Secrets, label: str, shape: Sequence[int]) -> Tensor:
    """Independent standard normal numbers in float64, by Box and Muller."""
    count = math.prod(shape)
    pairs = (count + 1) // 2
    bits = np.frombuffer(secrets.bytes(label, 16 * pairs), dtype="<u8") >> np.uint64(11)
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-53  # strictly between 0 and 1
    radius, angle = np.sqrt(-2 * np.log(uniform[:pairs])), 2 * np.pi * uniform[pairs:]
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    return torch.from_numpy(normal).reshape(tuple(shape))
