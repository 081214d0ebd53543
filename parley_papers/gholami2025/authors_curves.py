"""Points of the curves in the figures of paper 004: mean test accuracy and its deviation over the authors' runs.

Read from the figures' vector graphics; the deviation is that of single runs, whose number is not known. Theirs are
pictures of 32x32 pixels, five clients sorted by label, ResNet-20; only the points that studies compare with are here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parley_papers.arrays import Array

Curves = dict[str, tuple[tuple[float, ...], tuple[float, ...]]]
"""By arm: means and deviations at the steps of the table."""
EARLY = tuple(range(100, 1001, 100))
LATE = tuple(range(500, 10001, 500))
# fmt: off
CIFAR10: Curves = {
    "alpha = 1": (
        (.1757, .2227, .2333, .2490, .2820, .2796, .2885, .3341, .3483, .3615),
        (.0259, .0372, .0223, .0345, .0321, .0414, .0446, .0239, .0377, .0413),
    ),
    "alpha = 10": (
        (.1012, .1084, .1206, .1107, .1149, .1336, .1320, .1508, .1585, .1609),
        (.0048, .0138, .0279, .0143, .0245, .0380, .0214, .0319, .0226, .0373),
    ),
}
"""At the steps `EARLY`."""
CIFAR100: Curves = {
    "FedAvg, tau = 5": (
        (.2160, .2969, .3444, .3719, .3641, .3702, .3745, .3843, .4011, .4040,
         .3725, .3983, .3952, .4038, .4142, .4086, .4092, .4105, .4076, .4130),
        (.0041, .0255, .0198, .0145, .0246, .0234, .0278, .0073, .0132, .0094,
         .0133, .0069, .0168, .0071, .0106, .0086, .0023, .0111, .0045, .0048),
    ),
    "FedALS, tau = 5, alpha = 10": (
        (.0643, .1200, .1974, .2434, .2940, .3160, .3528, .3650, .3730, .3771,
         .3984, .4169, .4216, .4416, .4241, .4497, .4554, .4625, .4397, .4556),
        (.0072, .0087, .0083, .0081, .0073, .0202, .0086, .0146, .0138, .0026,
         .0108, .0083, .0097, .0050, .0357, .0050, .0070, .0099, .0198, .0111),
    ),
}
"""At the steps `LATE`."""
CIFAR10_50: Curves = {
    "FedAvg, tau = 50": (
        (.1498, .1921, .1987, .2119, .2611, .2651, .2275, .2430, .2507, .2594,
         .2461, .2704, .2801, .3473, .3236, .3822, .2792, .3031, .3274, .3612),
        (.0161, .0365, .0074, .0528, .0586, .0183, .0349, .0223, .0326, .0442,
         .0272, .0223, .0208, .0428, .0267, .0203, .0634, .0516, .0867, .0445),
    ),
    "FedALS, tau = 50, alpha = 10": (
        (.1092, .1146, .1575, .1987, .2565, .2668, .2953, .3209, .4003, .4099,
         .3929, .4375, .4492, .4467, .4957, .4623, .4893, .4940, .4811, .5189),
        (.0120, .0081, .0217, .0321, .0344, .0313, .0640, .0048, .0617, .0657,
         .0788, .0426, .0597, .0346, .0411, .0565, .0357, .0350, .0262, .0513),
    ),
}
"""At the steps `LATE`; with tau = 50."""
# fmt: on
CIFAR100_GAIN = {7000: 0.0358, 10_000: 0.0403}
"""FedALS above FedAvg with tau = 5 on CIFAR-100: the mean over the ten evaluations, 100 steps apart, up to there."""
CIFAR100_CROSSING = 5100
"""The step from which FedALS lies above."""
CIFAR10_50_GAIN = 0.1684
"""The same with tau = 50 on CIFAR-10, up to step 6000."""


@dataclass(frozen=True, eq=False)
class Points:
    """Points of a curve, as figures draw it beside others."""

    rounds: Array
    accuracy: Array
    deviation: Array

    @property
    def loss(self) -> Array:
        """Not known."""
        return np.full_like(self.accuracy, np.nan)


def authors_curve(curves: Curves, arm: str, steps: tuple[int, ...], until: int) -> Points:
    """The arm's points up to a step."""
    mean, deviation = (np.array(values) for values in curves[arm])
    shown = np.array(steps) <= until
    return Points(np.array(steps, dtype=np.float64)[shown], mean[shown], deviation[shown])
