"""How alike reconstructions and originals are: SSIM and PSNR of scikit-image, each picture beside its best match."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from parley.core.errors import InputError
from parley.core.extras import how_to_install
from parley.theory.theta import Array

_BEST = 100.0
"""PSNR in dB beyond which two pictures are the same to the eye and to rounding; a perfect copy would be infinite."""


@dataclass(frozen=True)
class Quality:
    """Means over the samples of one victim."""

    ssim: float
    """1 for a perfect copy; NaN where samples are no pictures."""
    psnr: float
    """In dB, at most 100."""


def matching_order(originals: Tensor, rebuilt: Tensor) -> list[int]:
    """Which reconstruction stands beside each original: the assignment with the least squared error.

    The attacker does not know it and needs none: it has the pictures.
    """
    a, b = originals.double().flatten(1), rebuilt.double().flatten(1)
    cost = (a[:, None] - b[None]).square().sum(2)
    _, order = linear_sum_assignment(np.nan_to_num(cost.numpy(), nan=np.inf, posinf=1e300))
    return [int(index) for index in order]


def quality(originals: Tensor, rebuilt: Tensor, span: float) -> Quality:
    """Of reconstructions in the originals' order; `span`: the largest minus the smallest value that inputs have."""
    pairs = [(a.double().numpy(), b.double().numpy()) for a, b in zip(originals, rebuilt, strict=True)]
    ssim, psnr = ([measure(a, b, span) for a, b in pairs] for measure in (_ssim, _psnr))
    return Quality(float(np.mean(ssim)), float(np.mean(psnr)))


def _ssim(original: Array, rebuilt: Array, span: float) -> float:
    if original.ndim not in (2, 3):
        return float("nan")
    side = min(original.shape[-2:])
    if side < 3:
        return float("nan")
    window = min(7, side if side % 2 else side - 1)
    channels = {"channel_axis": 0} if original.ndim == 3 else {}
    measured = _metrics().structural_similarity(original, rebuilt, data_range=span, win_size=window, **channels)
    return float(measured)


def _psnr(original: Array, rebuilt: Array, span: float) -> float:
    if not np.square(original - rebuilt).mean() > span**2 * 10 ** (-_BEST / 10):
        return _BEST
    return float(_metrics().peak_signal_noise_ratio(original, rebuilt, data_range=span))


def check_installed() -> None:
    """Refuse, in a sentence, to go on without scikit-image."""
    _metrics()


def _metrics() -> Any:
    try:
        from skimage import metrics
    except ModuleNotFoundError:
        raise InputError(
            f"attacks compare pictures with the package scikit-image: {how_to_install('attack')}."
        ) from None
    return metrics
