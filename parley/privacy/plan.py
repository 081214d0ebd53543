"""The plan of a private run: what is drawn, clipped, added and charged, all from the same few numbers.

    cohort      each client with chance q = m / K                                       (`sampling`)
    client      everything it sends, scaled down to norm C                              (`stages`)
    server      (sum of the replies + N(0, (z C)^2)) / m                                (`release`)
    accounting  the Poisson-sampled Gaussian mechanism with q and z, once a round       (`mechanism`)

Adaptive clipping releases, besides, how many clients were within C, each counting +-1/2, with noise sigma_b. Both
together cost what one release with noise z costs if the sum has noise z_sum with 1/z^2 = 1/z_sum^2 + 1/(2 sigma_b)^2
(Andrew et al., 2021, Theorem 1).

Local noise is charged without sampling, as if a client were asked in every round, and for sensitivity 2 C: the server
sees who answers and must not be able to tell a client's data from any other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from parley.channels.base import Channel
from parley.core.context import Secrets
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.message import State
from parley.engine.settings import Sampling
from parley.privacy.accounting import Mechanism, least_multiplier
from parley.privacy.adaptive_clip import AdaptiveClip
from parley.privacy.clip import Clip
from parley.privacy.noise import Noise
from parley.privacy.replies import Release, noisy_number
from parley.privacy.settings import Privacy

_LARGEST_POWER = 700.0
"""exp of more is infinite."""
_GROUP, _BOUND = "privacy", "privacy/bound"
"""Where the server's state keeps the adaptive clipping norm."""


@dataclass(frozen=True)
class PrivacyPlan:
    """Everything that must agree for a run to be private."""

    settings: Privacy
    population: int
    size: int
    """Clients of a cohort on average."""
    multiplier: float
    """z, what is accounted for."""
    secret: bytes
    """The root of noise and cohorts, which the study's seed does not lead to."""

    @property
    def central(self) -> bool:
        return self.settings.noise == "central"

    @property
    def rate(self) -> float:
        return self.size / self.population

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.size, "poisson", "uniform")

    @property
    def sampling_key(self) -> Key:
        """Who takes part must be as secret as the noise, or being drawn rarely would protect nobody."""
        return Key(digest=self.secret).fold("privacy", "sampling")

    @property
    def stages(self) -> tuple[Channel, ...]:
        """The last channels of every reply."""
        clip = self.settings.clip
        if not self.central:
            return Clip(clip), Noise(self.multiplier * clip)
        return (Clip(clip) if self.settings.quantile is None else AdaptiveClip(clip),)

    @property
    def mechanism(self) -> Mechanism:
        return _mechanism(self.settings, self.rate, self.multiplier)

    def epsilon(self, releases: int) -> float:
        """What so many rounds cost. A round that is played again after a restart repeats its noise over the same
        replies, which nodes keep, and is charged once."""
        return self.mechanism.epsilon(releases)

    def exhausted(self, number: int) -> str | None:
        """Why round `number` must not begin, as the end of a sentence; None if the budget allows it."""
        budget = self.settings.epsilon
        if budget is None or (cost := self.epsilon(number)) <= budget:
            return None
        return (
            f"the privacy budget is spent: round {number} would bring epsilon to {cost:.4g}, above {budget:g} "
            f"(delta {self.settings.delta:g})"
        )

    @property
    def count_deviation(self) -> float:
        """sigma_b."""
        given = self.settings.count_noise
        return max(self.size / 20, self.multiplier) if given is None else given

    @property
    def sum_multiplier(self) -> float:
        """z_sum: the noise on the sum, which the noisy count makes a little larger than what is accounted for."""
        if self.settings.quantile is None:
            return self.multiplier
        return float((self.multiplier**-2 - (2 * self.count_deviation) ** -2) ** -0.5)

    def release(self, bound: float, number: int) -> Release:
        """What is done to the sum of a round."""
        return Release(bound, self.sum_multiplier * bound, float(self.size), self._secrets(number))

    def begin(self, state: State) -> State:
        """The first state, with the clipping norm where it adapts."""
        return state if self.settings.quantile is None else self.after(state, self.settings.clip)

    def bound(self, state: State) -> float:
        """The clipping norm of the round that begins from this state."""
        return self.settings.clip if self.settings.quantile is None else float(state.tensor(_BOUND))

    def without(self, state: State) -> State:
        """The method's own state."""
        return state.replace(**{_GROUP: {}}) if _GROUP in state else state

    def after(self, state: State, bound: float) -> State:
        """The state after a round, with the next clipping norm where it adapts."""
        if self.settings.quantile is None:
            return state
        return state.replace(**{_GROUP: {"bound": torch.tensor(bound, dtype=torch.float64)}})

    def next_bound(self, bound: float, total: float, number: int) -> float:
        """C exp(-eta (B - quantile)), B being about the share of clients within C; `total`: the sum of their +-1/2."""
        if self.settings.quantile is None:
            return bound
        share = noisy_number(total, self.count_deviation, self._secrets(number), "count") / self.size + 0.5
        power = -self.settings.clip_rate * (share - self.settings.quantile)
        after = bound * math.exp(power) if power < _LARGEST_POWER else math.inf
        if not 0 < after < math.inf:
            raise InputError(
                f"the clipping norm goes from {bound:.3g} to {after:.3g} in round {number}: lower privacy.clip_rate"
                + ("." if self.settings.count_noise is None else " or privacy.count_noise.")
            )
        return after

    def sentence(self, rounds: int) -> str:
        """What a run is told at its start."""
        plan, cost = self.settings, self.epsilon(rounds)
        budget = "" if plan.epsilon is None or cost <= plan.epsilon else f", of which it may spend {plan.epsilon:g}"
        adapting = "" if plan.quantile is None else f", then to the quantile {plan.quantile:g}"
        return (
            f"differential privacy of clients: epsilon {cost:.4g} at delta {plan.delta:g} after {rounds} rounds"
            f"{budget}; each client takes part with chance {self.rate:.3g}, is clipped to norm {plan.clip:g}{adapting} "
            f"and counts the same; {plan.noise} noise, multiplier {self.multiplier:.4g}."
        )

    def _secrets(self, number: int) -> Secrets:
        return Secrets(Key(digest=self.secret).fold("privacy", "noise").digest, (number,))


def privacy_plan(
    settings: Privacy, sampling: Sampling, population: int, rounds: int, secret: bytes = bytes(16)
) -> PrivacyPlan:
    """The plan for a federation of so many clients; solves for the noise multiplier where it is not given."""
    size = min(sampling.size or population, population)
    if settings.delta * population >= 1:
        raise InputError(
            f"privacy.delta is {settings.delta:g}, which promises nothing to {population} clients: it must be below "
            f"{1 / population:.2g}."
        )
    multiplier = settings.noise_multiplier
    if multiplier is None:
        assert settings.epsilon is not None
        multiplier = least_multiplier(settings.epsilon, rounds, _mechanism(settings, size / population, 1.0))
        multiplier *= 1 if settings.noise == "central" else 2
    plan = PrivacyPlan(settings, population, size, multiplier, secret)
    if settings.quantile is not None and not 2 * plan.count_deviation > multiplier:
        raise InputError(
            f"privacy.count_noise is {settings.count_noise}, but it must be above half the noise multiplier "
            f"({multiplier:.4g}), or the count alone would cost more than the whole budget."
        )
    return plan


def _mechanism(settings: Privacy, rate: float, multiplier: float) -> Mechanism:
    if settings.noise == "local":
        return Mechanism(1.0, multiplier / 2, settings.delta, settings.accountant)
    return Mechanism(rate, multiplier, settings.delta, settings.accountant)
