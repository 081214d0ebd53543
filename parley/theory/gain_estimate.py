"""Who gains by joining, from data alone: the *predictive* federation gain of each client, with a confidence interval.

The predictive gain of client j is the mean squared error, on new data of client j, of its own best model over that of
the federated model. Unlike `parley.theory.gain` it needs no truth, and it includes the noise that no model can predict:
it is nearer to 1 than FG_j, but above 1 for the same models.

    found = estimate_gains(clients, targets, feature_federated(Identity(), FedAvg(eta=0.1, s=5), rounds=200),
                           feature_local(Identity()), rng=np.random.default_rng(0))
    found[3].gain, found[3].low, found[3].high, found[3].verdict

Both models are cross-fitted: every sample is predicted by models that have not seen it. Local models get more folds
(leave-one-out up to 40 samples), because a small client's own model suffers most from the samples held out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

from parley.core.errors import InputError
from parley.theory.kernel.points import as_points, check_finite
from parley.theory.theta import Array

Predictor: TypeAlias = Callable[[Array], Array]
"""Points [m, p] -> predictions [m]."""
LocalFit: TypeAlias = Callable[[Array, Array], Predictor]
"""One client's points [n, p] and targets [n] -> its model."""
FederatedFit: TypeAlias = Callable[[Sequence[Array], Sequence[Array]], Predictor]
"""All clients' points and targets -> the federated model."""


GROUPS = 10
"""Of samples, for the jackknife."""
Folds: TypeAlias = npt.NDArray[np.intp]


@dataclass(frozen=True)
class GainEstimate:
    """One client's predictive gain."""

    samples: int
    local: float
    """Mean squared held-out error of the client's own model."""
    federated: float
    """Mean squared held-out error of the federated model on this client's data."""
    low: float
    high: float
    """The confidence interval of the gain; (0, infinity) for fewer than three samples."""

    @property
    def gain(self) -> float:
        """Above 1: the federated model predicts this client's data better than its own model."""
        return self.local / self.federated if self.federated > 0 else float("nan")

    @property
    def verdict(self) -> Literal["gains", "loses", "undecided"]:
        """What the interval allows to say."""
        if self.low > 1:
            return "gains"
        return "loses" if self.high < 1 else "undecided"


def estimate_gains(
    clients: Sequence[npt.ArrayLike],
    targets: Sequence[npt.ArrayLike],
    federated: FederatedFit,
    local: LocalFit,
    *,
    rng: np.random.Generator,
    folds: int = 10,
    local_folds: int = 40,
    repeats: int = 3,
    level: float = 0.9,
) -> list[GainEstimate]:
    """Every client's predictive gain from x_j [n_j, p] and y_j [n_j].

    Costs folds * repeats federated fits, and of each client min(n_j, local_folds) + 45 fits.
    """
    points = [as_points(x, f"client {number}'s data") for number, x in enumerate(clients)]
    values = [np.asarray(y, dtype=np.float64) for y in targets]
    _check(points, values, folds, local_folds, repeats, level)
    losses = [np.zeros((2, len(x))) for x in points]
    for loss, x, y in zip(losses, points, values, strict=True):
        loss[0] = _own_losses(x, y, local, rng.permutation(len(x)) % local_folds)
    for _ in range(repeats):
        # Folds of equal size within each client, so that even small clients stay in training.
        dealt = [rng.permutation(len(x)) % folds for x in points]
        for fold in range(folds):
            _add_common_losses(losses, points, values, [part == fold for part in dealt], federated)
    estimates = []
    for loss, x, y in zip(losses, points, values, strict=True):
        groups = rng.permutation(len(x)) % GROUPS
        left_out = _left_out_groups(x, y, loss[1], local, groups) if len(x) >= 3 else np.zeros(0)
        estimates.append(_estimate(np.stack([loss[0], loss[1] / repeats]), left_out, level))
    return estimates


def _own_losses(x: Array, y: Array, local: LocalFit, dealt: Folds) -> Array:
    """Squared errors [n] of the client's own models, each on the fold it was not trained on."""
    losses = y**2  # without other samples to learn from a client can but predict zero
    if len(x) > 1:
        for fold in range(int(dealt.max()) + 1):
            out = dealt == fold
            losses[out] = (y[out] - local(x[~out], y[~out])(x[out])) ** 2
    return np.asarray(losses, dtype=np.float64)


def _add_common_losses(
    losses: Sequence[Array],
    points: Sequence[Array],
    values: Sequence[Array],
    out: Sequence[npt.NDArray[np.bool_]],
    federated: FederatedFit,
) -> None:
    """Adds the federated model's squared errors on the samples `out` that it is not trained on."""
    seen = [(x[~part], y[~part]) for x, y, part in zip(points, values, out, strict=True) if not part.all()]
    if not seen:
        raise InputError("there is too little data to hold any out; the federation needs at least two samples.")
    common = federated([x for x, _ in seen], [y for _, y in seen])
    for loss, x, y, part in zip(losses, points, values, out, strict=True):
        if part.any():
            loss[1, part] += (y[part] - common(x[part])) ** 2


def _left_out_groups(x: Array, y: Array, common: Array, local: LocalFit, dealt: Folds) -> Array:
    """log(local / federated error) of the client without group g, for every g: a jackknife of training *and* testing.

    The own model's error without g comes from models trained without g and one other group each, tested on that.
    `common` are the federated model's held-out losses, [n].
    """
    G = int(dealt.max()) + 1
    sums = np.zeros((G, G))
    for g, h in combinations(range(G), 2):
        keep = (dealt != g) & (dealt != h)
        errors = (y - local(x[keep], y[keep])(x)) ** 2
        sums[g, h], sums[h, g] = errors[dealt == h].sum(), errors[dealt == g].sum()
    remaining = common.sum() - np.bincount(dealt, common)
    return np.asarray(np.log(sums.sum(axis=1) / remaining), dtype=np.float64)


def _estimate(losses: Array, left_out: Array, level: float) -> GainEstimate:
    """The ratio of mean losses [2, n]; its logarithm's interval is Student's, from the jackknife over groups."""
    n = losses.shape[1]
    local, federated = (float(value) for value in losses.mean(axis=1))
    G = len(left_out)
    if G < 3 or not np.isfinite(left_out).all() or not (local > 0 and federated > 0):
        return GainEstimate(n, local, federated, 0.0, float("inf"))
    spread = np.sqrt((G - 1) / G * ((left_out - left_out.mean()) ** 2).sum())
    half = float(student.ppf((1 + level) / 2, G - 1) * spread)
    centre = np.log(local / federated)
    return GainEstimate(n, local, federated, float(np.exp(centre - half)), float(np.exp(centre + half)))


def _check(
    points: Sequence[Array], values: Sequence[Array], folds: int, local_folds: int, repeats: int, level: float
) -> None:
    if not points or len(points) != len(values):
        raise InputError(f"give one target array per client; got {len(points)} clients and {len(values)} targets.")
    for number, (x, y) in enumerate(zip(points, values, strict=True)):
        if y.shape != x.shape[:1]:
            raise InputError(f"client {number} has {len(x)} samples but targets of shape {y.shape}.")
        check_finite(y, f"client {number}'s targets")
    if min(folds, local_folds) < 2 or repeats < 1 or not 0 < level < 1:
        raise InputError("estimating gains needs folds >= 2, repeats >= 1 and a level between 0 and 1.")
