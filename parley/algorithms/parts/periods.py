"""How often to average which part: the least disagreement among clients that a communication budget allows.

Clients' copies of a part move apart linearly in time, so its squared consensus distance T rounds after an average is
about v T^2 per parameter, v being measured. Periods T_q of parts with s_q parameters should

    minimise sum_q s_q v_q T_q^2   subject to   sum_q s_q / T_q <= budget sum_q s_q,

whose solution over the reals is T_q proportional to v_q^(-1/3). Periods are powers of two, so that parts meet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from parley.algorithms.exchange import Reads
from parley.algorithms.parts.parts import Part
from parley.algorithms.protocol import Replies
from parley.core.errors import InputError, WireError
from parley.core.message import Message


class Fixed:
    """Every part keeps the period it was given."""

    reads: ClassVar[Reads] = "mean"

    def begin(self, parts: Sequence[Part]) -> list[int]:
        """The periods of the first rounds."""
        return [part.period for part in parts]

    def after(self, replies: Replies, parts: Sequence[Part], periods: list[int]) -> list[int]:
        """The periods that follow a round which averaged all parts."""
        return periods


@dataclass(frozen=True)
class Adaptive(Fixed):
    """Periods from how fast clients' copies have moved apart, for a share `budget` of FedAvg's traffic."""

    reads: ClassVar[Reads] = "each"
    budget: float
    longest: int

    def __post_init__(self) -> None:
        if not 1 / self.longest <= self.budget <= 1:
            raise InputError(f"budget must lie between 1/longest = {1 / self.longest:.3g} and 1, not {self.budget}.")

    def begin(self, parts: Sequence[Part]) -> list[int]:
        return [1] * len(parts)

    def after(self, replies: Replies, parts: Sequence[Part], periods: list[int]) -> list[int]:
        return plan_periods(*drift_rates(replies, parts, periods), self.budget, self.longest)


def plan_periods(rates: Sequence[float], sizes: Sequence[int], budget: float, longest: int) -> list[int]:
    """Periods in {1, 2, 4, ..., longest}; `budget` is the share of the traffic of averaging all in every round.

    Halving T_q lowers the sum by 3/4 s_q v_q T_q^2 and costs s_q / T_q. The gain per cost falls by 8 with each halving,
    so taking the best ones first is best, up to the last that fits.
    """
    periods = [longest] * len(rates)
    left = budget * sum(sizes) - sum(size / longest for size in sizes)
    while True:
        fits = [q for q, T in enumerate(periods) if T > 1 and sizes[q] / T <= left * (1 + 1e-12)]
        if not fits:
            return periods
        best = max(fits, key=lambda q: rates[q] * periods[q] ** 3)
        left -= sizes[best] / periods[best]
        periods[best] //= 2


def drift_rates(replies: Replies, parts: Sequence[Part], periods: Sequence[int]) -> tuple[list[float], list[int]]:
    """v of each part, from the updates that clients have just sent, and its number of parameters."""
    total, mean = math.fsum(replies.weights.values()), replies.mean("update")
    rates, sizes = [], []
    for part, period in zip(parts, periods, strict=True):
        apart = math.fsum(
            weight / total * float((replies[i]["update"][name] - mean[name]).double().square().sum())
            for i, weight in replies.weights.items()
            for name in part.parameters
        )
        sizes.append(sum(mean[name].numel() for name in part.parameters))
        rates.append(apart / sizes[-1] / period**2)
    return rates, sizes


def listed(numbers: Sequence[int]) -> str:
    """The numbers of parts, for a message."""
    return ",".join(map(str, numbers))


def numbered(parts: Sequence[Part], message: Message, name: str) -> list[Part]:
    """The parts whose numbers a message lists under this name; a WireError if it does not, in their order."""
    text = message.scalars.get(name)
    if not isinstance(text, str):
        raise WireError(f"the list of parts '{name}' is missing.")
    numbers = [int(number) for number in text.split(",") if number.isascii() and number.isdigit()]
    if listed(numbers) != text or any(b <= a for a, b in pairwise([-1, *numbers, len(parts)])):
        raise WireError(f"the list of parts '{name}' is none of {len(parts)} parts.")
    return [parts[number] for number in numbers]
