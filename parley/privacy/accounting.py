"""How much privacy so many releases cost, computed by the library dp-accounting.

A release is the Gaussian mechanism on the sum over a Poisson sample of the clients; neighbouring federations differ by
one client (added or removed). Nothing here depends on the data, so what a run will cost is known before it begins.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from parley.core.errors import InputError
from parley.core.extras import how_to_install

_LARGEST_TABLE = 3e6
"""Entries of a privacy loss distribution beyond which Renyi divergences take its place."""
_LEAST = 0.02
"""The least noise multiplier that is looked for; it hides nothing any more."""
_DIGITS = 4
"""Digits of a noise multiplier that was solved for."""


@dataclass(frozen=True)
class Mechanism:
    """One release a round: a sum over clients that take part with chance `rate`, with noise `multiplier` C."""

    rate: float
    multiplier: float
    delta: float
    accountant: Literal["pld", "rdp"] = "pld"

    def epsilon(self, releases: int) -> float:
        """What so many releases cost together. A release that is made twice, with fresh noise, counts twice."""
        if releases <= 0:
            return 0.0
        with _quiet():
            if self.accountant == "rdp" or self.too_large:
                return _rdp_epsilon(self.rate, self.multiplier, self.delta, releases)
            return _pld_epsilon(self.rate, self.multiplier, self.delta, releases)

    @property
    def too_large(self) -> bool:
        """So little noise that the distribution of the privacy loss does not fit into memory."""
        reach = 0.5 / self.multiplier**2 + 10 / self.multiplier
        return reach / _interval(self.rate, self.multiplier) > _LARGEST_TABLE


@lru_cache(maxsize=64)
def least_multiplier(epsilon: float, releases: int, mechanism: Mechanism) -> float:
    """The least noise multiplier with which so many releases cost at most epsilon, rounded up to 4 digits.

    `mechanism` says the rate, delta and accountant; its own multiplier does not count.
    """

    def within(multiplier: float) -> bool:
        return replace(mechanism, multiplier=multiplier).epsilon(releases) <= epsilon

    high = 1.0
    while not within(high):
        high *= 2
        if high > 1e6:
            raise InputError(f"no amount of noise keeps {releases} rounds within epsilon = {epsilon}.")
    low = high / 2
    while low > _LEAST and within(low):
        low, high = low / 2, low
    while high - low > 2e-4 * high:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if within(middle) else (middle, high)
    return _rounded_up(high)


def _rounded_up(value: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - _DIGITS)
    return float(f"{math.ceil(value / unit) * unit:.{_DIGITS}g}")


def _interval(rate: float, multiplier: float) -> float:
    """The step of the privacy loss: a small part of the spread that one release has; a coarser one only costs."""
    spread = rate * math.sqrt(math.expm1(min(multiplier**-2, 20.0)))
    return float(min(max(spread / 50, 1e-5), 5e-3))


@lru_cache(maxsize=4096)
def _pld_epsilon(rate: float, multiplier: float, delta: float, releases: int) -> float:
    return float(_distribution(rate, multiplier).self_compose(releases).get_epsilon_for_delta(delta))


@lru_cache(maxsize=8)
def _distribution(rate: float, multiplier: float) -> Any:
    loss = _library().pld.privacy_loss_distribution
    return loss.from_gaussian_mechanism(
        multiplier, sampling_prob=rate, value_discretization_interval=_interval(rate, multiplier)
    )


@lru_cache(maxsize=4096)
def _rdp_epsilon(rate: float, multiplier: float, delta: float, releases: int) -> float:
    library = _library()
    accountant = library.rdp.RdpAccountant()
    gaussian = library.GaussianDpEvent(multiplier)
    accountant.compose(library.PoissonSampledDpEvent(rate, gaussian) if rate < 1 else gaussian, releases)
    return float(accountant.get_epsilon(delta))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's notes on orders it leaves out, which only make epsilon larger."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError:
        raise InputError(
            "differential privacy is accounted for by the package dp-accounting, which is not installed: "
            f"{how_to_install('privacy')}."
        ) from None
    return dp_accounting
