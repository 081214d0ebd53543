"""From held-out losses to gains: each client's ratio of errors, its confidence interval, and who should join.

    estimate = gain_from_losses([HeldOut(local, federated, groups, without)], level=0.9)
    verdicts = decide(estimates, level=0.9)

The losses may come from any models that were trained without the samples they are judged on: `estimate` makes them
with NumPy models, `parley.advise.gain` with networks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

from parley.core.errors import InputError
from parley.theory.theta import Array

Groups: TypeAlias = npt.NDArray[np.intp]
Verdict: TypeAlias = Literal["gains", "loses", "undecided"]

FEWEST = 3
"""Groups, hence samples, below which there is no interval."""
_WIDEST = 300.0
"""Half an interval's width at most, as a logarithm, so that its ends stay finite."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """One client's losses in one cross-fitting; n samples in G groups."""

    local: Array
    """[n]: each sample's loss under an own model that has not seen it."""
    federated: Array
    """[n]: each sample's loss under a federated model that has not seen it."""
    groups: Groups
    """[n]: the group of each sample, 0 to G - 1; empty where the client has too few samples for an interval."""
    without: Array
    """[G, n]: the loss of sample i under the own model trained without group g *and* without i's own group; entries
    with i in g are not looked at. This lets the interval see how much the own model depends on its training samples."""
    training: int = 0
    """Which of several trainings (seeds) the losses are from."""


@dataclass(frozen=True)
class GainEstimate:
    """One client's predictive gain."""

    samples: int
    local: float
    """Mean held-out loss of the client's own model."""
    federated: float
    """Mean held-out loss of the federated model on this client's data."""
    gain: float
    """local / federated. Above 1: the federated model predicts this client's data better than its own model."""
    low: float
    high: float
    """The confidence interval of the gain; (0, infinity) where the samples are too few for one."""
    p: float = 1.0
    """How likely an estimate at least this far from 1 is for a client that neither gains nor loses."""

    @property
    def verdict(self) -> Verdict:
        """What this interval, taken by itself, allows to say; `decide` judges many clients together."""
        if self.low > 1:
            return "gains"
        return "loses" if self.high < 1 else "undecided"


def gain_from_losses(repeats: Sequence[HeldOut], level: float = 0.9, counts: bool = False) -> GainEstimate:
    """The ratio of mean losses over all `repeats` of the cross-fitting, and the interval of its logarithm.

    The interval is Student's with the spread of a jackknife over groups that leaves each group out of training *and*
    testing. `counts` says that losses are 0 or 1: half an error is added on both sides, so that a model without errors
    has a finite gain, and the spread is at least that of two error counts of the same samples. Where the repeats are
    from several trainings the interval is for the gain of *one* training, its luck included.
    """
    _check_losses(repeats, level)
    local, federated = (
        np.mean([getattr(repeat, side) for repeat in repeats], axis=0) for side in ("local", "federated")
    )
    n, half = len(local), 0.5 if counts else 0.0
    sums = float(local.sum()) + half, float(federated.sum()) + half
    means = float(local.mean()), float(federated.mean())
    gain = sums[0] / sums[1] if sums[1] > 0 else (float("inf") if sums[0] > 0 else float("nan"))
    jackknives = [_left_out(repeat, half) for repeat in repeats]
    groups = min(len(values) for values in jackknives)
    sound = all(np.isfinite(values).all() for values in jackknives)
    if groups < FEWEST or not sound or not (min(sums) > 0 and np.isfinite(gain)):
        return GainEstimate(n, *means, gain, 0.0, float("inf"))
    variance = np.mean([(len(v) - 1) / len(v) * ((v - v.mean()) ** 2).sum() for v in jackknives])
    if counts:
        # Errors of one model only, over the product of both models' errors: the variance of a paired log ratio.
        differing = float(np.abs(local - federated).sum()) + 1.0
        variance = max(variance, differing / (sums[0] * sums[1]))
    luck, trainings = _luck(repeats, groups, half)
    freedom = _freedom(n, groups, len(repeats))
    if luck > 0:  # Satterthwaite's degrees of freedom of a sum of variances
        freedom = (variance + luck) ** 2 / (variance**2 / freedom + luck**2 / (trainings - 1))
    spread, centre = float(np.sqrt(variance + luck)), float(np.log(gain))
    width = min(float(student.ppf((1 + level) / 2, freedom)) * spread, _WIDEST)
    # Losses that never vary leave no spread; then the sign is certain unless the gain is 1 exactly.
    p = float(2 * student.sf(abs(centre) / spread, freedom)) if spread > 0 else float(centre == 0)
    return GainEstimate(n, *means, gain, float(np.exp(centre - width)), float(np.exp(centre + width)), p)


def decide(estimates: Sequence[GainEstimate], level: float = 0.9) -> list[Verdict]:
    """Who gains and who loses, judged together: at most (1 - level) / 2 of the signs named are expected to be wrong.

    Of many clients that neither gain nor lose, a share 1 - level of the single intervals excludes 1 by chance. The
    rule of Benjamini and Hochberg (1995) allows for that, with Storey's bound on how many such clients there are
    (Storey, Taylor and Siegmund, 2004); for the sign see Benjamini and Yekutieli (2005). Whoever is decided here has
    an interval that excludes 1, but not the other way round; for one client the two are the same.
    """
    check_level(level)
    if not estimates:
        return []
    chances = np.array([estimate.p for estimate in estimates])
    idle = min(len(chances), 2 * (1 + int((chances > 0.5).sum())))
    ordered = np.sort(chances)
    passed = np.flatnonzero(ordered <= (1 - level) * np.arange(1, len(ordered) + 1) / max(idle, 1))
    limit = float(ordered[passed[-1]]) if len(passed) else -1.0
    return [estimate.verdict if estimate.p <= limit else "undecided" for estimate in estimates]


def check_level(level: float) -> None:
    if not 0 < level < 1:
        raise InputError(f"the level of the intervals must lie between 0 and 1, not {level:g}.")


def _luck(repeats: Sequence[HeldOut], groups: int, half: float) -> tuple[float, int]:
    """How much the log gain of one training scatters around the mean of these trainings, and how many there are.

    Every group is judged by models that were trained by themselves, so the luck of a training's mean over the groups is
    that of one model over the number of groups.
    """
    by_training: dict[int, list[HeldOut]] = {}
    for repeat in repeats:
        by_training.setdefault(repeat.training, []).append(repeat)
    if len(by_training) < 2:
        return 0.0, 1
    sums = [
        [np.mean([getattr(repeat, side).sum() for repeat in of_client]) + half for side in ("local", "federated")]
        for of_client in by_training.values()
    ]
    gains = np.log([local / federated for local, federated in sums])
    return float(np.var(gains, ddof=1)) * (groups + 1 / len(gains)), len(gains)


def _check_losses(repeats: Sequence[HeldOut], level: float) -> None:
    check_level(level)
    if not repeats:
        raise InputError("a gain needs the losses of at least one cross-fitting.")
    n = len(repeats[0].local)
    for repeat in repeats:
        if repeat.local.shape != (n,) or repeat.federated.shape != (n,) or not n:
            raise InputError(
                f"a client's losses must be as many in every cross-fitting, own and federated, and at least one; got "
                f"{repeat.local.shape} and {repeat.federated.shape}."
            )
        if np.isnan(repeat.local).any() or np.isnan(repeat.federated).any():
            raise InputError("held-out losses must be numbers, and some are NaN; leave those samples out.")
        if min(float(repeat.local.min()), float(repeat.federated.min())) < 0:
            raise InputError("held-out losses must not be negative: a ratio of them would mean nothing.")
        if len(repeat.groups) and (
            repeat.groups.shape != (n,) or repeat.without.shape != (int(repeat.groups.max()) + 1, n)
        ):
            raise InputError(f"groups must number the {n} samples' groups, and `without` have a row of {n} for each.")


def _freedom(samples: int, groups: int, repeats: int) -> float:
    """Degrees of freedom of the mean of several jackknives.

    1 / (groups - 1) is the noise of one: a part from the data, 1 / (samples - 1), and the rest from how they happened
    to be grouped, which alone is averaged away.
    """
    data = 1 / (samples - 1)
    return 1 / (data + max(1 / (groups - 1) - data, 0.0) / repeats)


def _left_out(held: HeldOut, half: float) -> Array:
    """log(local / federated loss) without group g, [G]."""
    if len(held.groups) == 0:
        return np.zeros(0)
    result = []
    for g in range(len(held.without)):
        rest = held.groups != g
        with np.errstate(divide="ignore", invalid="ignore"):
            result.append(np.log((held.without[g, rest].sum() + half) / (held.federated[rest].sum() + half)))
    return np.array(result)
