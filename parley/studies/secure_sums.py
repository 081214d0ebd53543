"""Which methods need nothing but sums, found out by training each, with its defaults, for two rounds of secure sums."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn

from parley.algorithms import algorithms
from parley.algorithms.local_update import FedAvg
from parley.channels.secure import secure_sum
from parley.core.errors import ParleyError
from parley.data import Federation
from parley.engine.settings import Evaluation
from parley.models import features, mlp
from parley.study.train import train

_CLIENTS, _SAMPLES, _INPUTS = 3, 6, 3


@cache
def obstacle(name: str) -> str | None:
    """Why a method cannot be run with secure sums, in a sentence; None if it can."""
    kind: Any = algorithms[name]
    method = kind(of=FedAvg(lr=0.05)) if name == "ema" else kind()
    regression = name.startswith(("kernel-", "feature-"))
    model: Any = None
    if method.needs_model:
        model = features() if name.startswith("feature-") else mlp(3)
        model = nn.Linear(_INPUTS, 1).double() if name.startswith("kernel-") else model
    try:
        train(
            method, _federation(regression), model=model, rounds=2, runtime="inline", channels=secure_sum(40, 1e4),
            evaluation=Evaluation(every=2, clients="none", central=False),
        )  # fmt: skip
    except ParleyError as error:
        return str(error).rpartition(": ")[2]
    except Exception as error:  # of a user's own method
        return f"it fails on a small federation ({type(error).__name__}: {error})."
    return None


def _federation(regression: bool) -> Federation:
    draw = torch.Generator().manual_seed(0)
    arrays = {}
    for client in range(_CLIENTS):
        x = torch.randn(_SAMPLES, _INPUTS, generator=draw)
        y = torch.randn(_SAMPLES, generator=draw) if regression else torch.arange(_SAMPLES) % 2
        arrays[f"c{client}"] = (x.double(), y.double()) if regression else (x, y)
    return Federation.from_arrays(arrays, public=None if regression else torch.randn(5, _INPUTS, generator=draw))
