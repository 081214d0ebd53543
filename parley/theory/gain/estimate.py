"""Who gains by joining, from data alone: the *predictive* federation gain of each client, with a confidence interval.

The predictive gain of client j is the mean squared error, on new data of client j, of its own best model over that of
the federated model. Unlike `parley.theory.gain` it needs no truth, and it includes the noise that no model can predict:
it is nearer to 1 than FG_j, but above 1 for the same models.

    found = estimate_gains(clients, targets, feature_federated(Identity(), GradientSteps(eta=0.1, s=5), rounds=200),
                           feature_local(Identity()), rng=np.random.default_rng(0))
    found[3].gain, found[3].low, found[3].high, decide(found)[3]

Both models are cross-fitted: every sample is predicted by models that have not seen it. Local models get more folds
(leave-one-out up to 40 samples), because a small client's own model suffers most from the samples held out. Networks
are cross-fitted by `parley.advise.gain`; the intervals are made by `interval` for both.
"""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from parley.core.errors import InputError
from parley.core.threads import single_threaded
from parley.theory.arguments import check_whole
from parley.theory.gain.interval import FEWEST, GainEstimate, Groups, HeldOut, check_level, decide, gain_from_losses
from parley.theory.kernel.points import as_points, check_finite
from parley.theory.theta import Array

__all__ = ["FederatedFit", "GainEstimate", "LocalFit", "Predictor", "decide", "estimate_gains"]

Predictor: TypeAlias = Callable[[Array], Array]
"""Points [m, p] -> predictions [m]."""
LocalFit: TypeAlias = Callable[[Array, Array], Predictor]
"""One client's points [n, p] and targets [n] -> its model."""
FederatedFit: TypeAlias = Callable[[Sequence[Array], Sequence[Array]], Predictor]
"""All clients' points and targets -> the federated model."""
Tell: TypeAlias = Callable[[int, int], None]
"""Told how many fits are done, and of how many."""

GROUPS = 10
"""Of samples, for the jackknife."""


@single_threaded
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
    judged: Sequence[int] | None = None,
    tell: Tell | None = None,
) -> list[GainEstimate]:
    """Every client's predictive gain from x_j [n_j, p] and y_j [n_j], or that of the clients numbered in `judged`.

    Costs folds * repeats federated fits, and of each judged client min(n_j, local_folds) + 45 * repeats fits. Repeats
    steady the intervals as much as the estimates: both depend on how the samples happen to be dealt.
    """
    points = [as_points(x, f"client {number}'s data") for number, x in enumerate(clients)]
    values = [np.asarray(y, dtype=np.float64) for y in targets]
    _check(points, values, folds, local_folds, repeats, level)
    chosen = range(len(points)) if judged is None else judged
    report_progress, total = tell or _nobody, folds * repeats + len(chosen)
    local_losses = {
        j: _own_losses(points[j], values[j], local, rng.permutation(len(points[j])) % local_folds) for j in chosen
    }
    common = [np.zeros((repeats, len(x))) for x in points]
    for repeat in range(repeats):
        # Folds of equal size within each client, so that even small clients stay in training.
        dealt = [rng.permutation(len(x)) % folds for x in points]
        for fold in range(folds):
            parts = [part == fold for part in dealt]
            _add_common_losses([losses[repeat] for losses in common], points, values, parts, federated)
            report_progress(repeat * folds + fold + 1, total)
    estimates = []
    for number, j in enumerate(chosen, 1):
        x, y = points[j], values[j]
        held = []
        for losses in common[j]:
            groups = rng.permutation(len(x)) % GROUPS if len(x) >= FEWEST else np.zeros(0, dtype=np.intp)
            held.append(HeldOut(local_losses[j], losses, groups, _without(x, y, local, groups)))
        estimates.append(gain_from_losses(held, level))
        report_progress(folds * repeats + number, total)
    return estimates


def _own_losses(x: Array, y: Array, local: LocalFit, dealt: Groups) -> Array:
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
            loss[part] += (y[part] - common(x[part])) ** 2


def _without(x: Array, y: Array, local: LocalFit, groups: Groups) -> Array:
    """Squared errors [G, n] of own models trained without group g and without the sample's own group."""
    G = int(groups.max(initial=-1)) + 1
    losses = np.full((G, len(x)), np.nan)
    for g, h in combinations(range(G), 2):
        keep = (groups != g) & (groups != h)
        errors = (y - local(x[keep], y[keep])(x)) ** 2
        losses[g, groups == h], losses[h, groups == g] = errors[groups == h], errors[groups == g]
    return losses


def _check(
    points: Sequence[Array], values: Sequence[Array], folds: int, local_folds: int, repeats: int, level: float
) -> None:
    if not points or len(points) != len(values):
        raise InputError(f"give one target array per client; got {len(points)} clients and {len(values)} targets.")
    for number, (x, y) in enumerate(zip(points, values, strict=True)):
        if y.shape != x.shape[:1]:
            raise InputError(f"client {number} has {len(x)} samples but targets of shape {y.shape}.")
        check_finite(y, f"client {number}'s targets")
    check_whole("the number of folds", folds, 2)
    check_whole("the number of folds of own models", local_folds, 2)
    check_whole("the number of repeats", repeats)
    check_level(level)


def _nobody(done: int, total: int) -> None:
    pass
