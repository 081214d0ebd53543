"""Rules that fold vectors of which up to f may be anything: x [n, d] float64, weights w [n] that sum to one.

    median            coordinate by coordinate                                 f < n/2     (Yin et al., ICML 2018)
    trimmed mean      without the f largest and f smallest of each coordinate  2 f < n     (Yin et al., ICML 2018)
    geometric median  argmin_y sum_i w_i ||x_i - y||, by Weiszfeld's steps     f < n/2     (Pillutla et al., 2022)
    Krum              the x_i nearest to its n - f - 2 nearest others          n >= 2 f + 3    (Blanchard et al., 2017)
    multi-Krum        the mean of the m best of these                          m <= n - f - 2
    centred clipping  v + sum_i w_i min(1, radius / ||x_i - v||) (x_i - v)     moves by at most the radius
                                                                               (Karimireddy et al., ICML 2021)
    mixing            each x_i becomes the mean of its n - f nearest, itself included (Allouah et al., AISTATS 2023)

NumPy's sums do not depend on the number of threads, and nothing here is a matrix product.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

Matrix = NDArray[np.float64]

_FAR = 1e100
"""Farther away nothing is told apart: NaN, infinity and 1e300 count as this, whose square is still a number."""
_STEPS = 1000
_TIE = 1e-12


def tamed(x: Matrix) -> Matrix:
    """Without NaN, infinities and numbers whose squares overflow; what honest clients send stays as it is."""
    return np.clip(np.nan_to_num(x, nan=_FAR, posinf=_FAR, neginf=-_FAR), -_FAR, _FAR)


def mean(x: Matrix, w: Matrix) -> Matrix:
    return np.asarray((w[:, None] * x).sum(0) / w.sum())


def median(x: Matrix, w: Matrix) -> Matrix:
    """Where half of the weight lies on either side; between two values, their mean."""
    order = x.argsort(0, kind="stable")
    below = w[order].cumsum(0) / w.sum()
    low, high = (below < 0.5 - _TIE).sum(0), (below <= 0.5 + _TIE).sum(0)
    ranked = np.take_along_axis(x, order, 0)
    ends = [np.take_along_axis(ranked, index.clip(max=len(x) - 1)[None], 0)[0] for index in (low, high)]
    return np.asarray((ends[0] + ends[1]) / 2)


def trimmed_mean(x: Matrix, w: Matrix, f: int) -> Matrix:
    order = x.argsort(0, kind="stable")[f : len(x) - f]
    kept = w[order]
    return np.asarray((kept * np.take_along_axis(x, order, 0)).sum(0) / kept.sum(0))


def geometric_median(x: Matrix, w: Matrix) -> Matrix:
    y = median(x, w)  # close by, however far away some x are
    for _ in range(_STEPS):
        far = _norms(x - y)
        least = max(float(np.median(far)) * _TIE, 1e-300)  # an x at y itself would have all the weight
        new = mean(x, w * (least / np.maximum(far, least)))
        done = _norms((new - y)[None])[0] <= _TIE * _norms(new[None])[0]
        y = new
        if done:
            break
    return y


def best(x: Matrix, f: int) -> NDArray[np.intp]:
    """All of them by Krum's score, the sum of squared distances to the n - f - 2 nearest others; the best first."""
    nearest = np.sort(_distances(x), axis=1)[:, 1 : max(len(x) - f - 1, 2)]
    return np.argsort(np.square(nearest).sum(1), kind="stable")


def krum(x: Matrix, f: int) -> Matrix:
    return np.asarray(x[best(x, f)[0]])


def multi_krum(x: Matrix, w: Matrix, f: int, m: int) -> Matrix:
    kept = np.sort(best(x, f)[:m])
    return mean(x[kept], w[kept])


def centred_clip(x: Matrix, w: Matrix, centre: Matrix, radius: float, steps: int) -> Matrix:
    for _ in range(steps):
        centre = centre + mean(bounded(x - centre, radius), w)
    return centre


def bounded(x: Matrix, bound: float) -> Matrix:
    """Each x_i scaled down to this norm."""
    return x * np.minimum(1.0, bound / np.maximum(_norms(x), 1e-300))[:, None]


def mixed(x: Matrix, f: int) -> Matrix:
    near = np.argsort(_distances(x), axis=1, kind="stable")[:, : len(x) - f]
    return np.stack([x[np.sort(row)].mean(0) for row in near])


def _norms(x: Matrix) -> Matrix:
    return np.asarray(np.sqrt(np.square(x).sum(1)))


def _distances(x: Matrix) -> Matrix:
    return np.asarray(cdist(x, x))
