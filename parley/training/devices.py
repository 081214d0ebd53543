"""Where clients train and models are evaluated: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.

Random numbers are drawn on the CPU from keys whatever the device, so a device changes rounding only.
"""

from __future__ import annotations

import torch

from parley.core.errors import InputError

CPU = torch.device("cpu")


def resolve(name: str) -> torch.device:
    """The device of that name, which must be there; `auto` takes a GPU of CUDA if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else CPU
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise InputError(f"there is no device '{name}': choose auto, cpu, cuda, cuda:1 or mps.")
    instead = 'use device = "auto" or "cpu"'
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not count:
            raise InputError(f"the device is '{name}', but torch finds no GPU of CUDA on this machine; {instead}.")
        if (device.index or 0) >= count:
            raise InputError(f"the device is '{name}', but the last one of this machine is 'cuda:{count - 1}'.")
        return torch.device("cuda", device.index or 0)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise InputError(f"the device is 'mps', but torch finds no GPU of Apple's on this machine; {instead}.")
    return device


def wide(device: torch.device) -> torch.dtype:
    """The dtype in which sums are taken: float64, but for devices that have none."""
    return torch.float32 if device.type == "mps" else torch.float64
