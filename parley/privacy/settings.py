"""What a user says about privacy; everything else follows from it (see `plan`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parley.core.checks import checked_at_birth
from parley.core.errors import InputError


@dataclass(frozen=True)
class Privacy:
    """Client-level differential privacy (DP-FedAvg, McMahan et al., 2018).

    Cohorts are drawn by the scheme "poisson" and every client counts the same. See docs/privacy.md.
    """

    epsilon: float | None = None
    """The budget: a round that would exceed it is not begun. Without it, epsilon is only accounted for."""
    delta: float = 1e-5
    """The chance with which epsilon may fail to hold; must be below one over the number of clients."""
    noise_multiplier: float | None = None
    """Standard deviation of the noise on the sum, in units of the clipping norm; without it, the least with which all
    rounds stay within epsilon."""
    clip: float = 1.0
    """Largest norm of all that a client sends, as one vector; with a quantile, that of the first round."""
    quantile: float | None = None
    """Let the clipping norm follow this quantile of the clients' norms (Andrew et al., 2021), such as 0.5."""
    clip_rate: float = 0.2
    """How fast the clipping norm follows the quantile (eta_C)."""
    count_noise: float | None = None
    """Standard deviation of the noise on the number of clients within the clipping norm; by default a twentieth of the
    expected cohort, and at least the noise multiplier. Its cost is part of epsilon."""
    noise: Literal["central", "local"] = "central"
    """central: the (trusted) server adds noise to the sum. local: each client adds noise to its reply, at a much
    higher price in accuracy."""
    accountant: Literal["pld", "rdp"] = "pld"
    """How epsilon is computed: from privacy loss distributions (tight), or Renyi divergences (larger, and faster)."""

    def __post_init__(self) -> None:
        for name in ("epsilon", "noise_multiplier", "clip", "clip_rate", "count_noise"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise InputError(f"privacy.{name} must be a positive number, not {value}.")
        if not 0 < self.delta < 1:
            raise InputError(f"privacy.delta must lie between 0 and 1, not {self.delta}.")
        if self.quantile is not None and not 0 < self.quantile < 1:
            raise InputError(f"privacy.quantile must lie between 0 and 1, not {self.quantile}.")
        if self.epsilon is None and self.noise_multiplier is None:
            raise InputError("privacy.epsilon or privacy.noise_multiplier must be given: how much noise is added.")
        if self.noise == "local" and self.quantile is not None:
            raise InputError('privacy.quantile needs privacy.noise = "central": the server adapts the clipping norm.')
        if self.quantile is None and self.count_noise is not None:
            raise InputError("privacy.count_noise means nothing without privacy.quantile; leave it out.")


checked_at_birth(Privacy, "privacy")
