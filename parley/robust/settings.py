"""What a user says about robust folding, and the numbers of replies that it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parley.core.checks import checked_at_birth
from parley.core.errors import InputError

Rule = Literal["mean", "median", "trimmed-mean", "geometric-median", "krum", "multi-krum", "centred-clip"]


@dataclass(frozen=True)
class Robust:
    """Robust folding: a rule in place of the mean that bounds the effect of up to f attackers in a cohort.

    All that a client sends is one vector; clients count the same, whatever sizes they claim. See docs/robust.md.
    """

    rule: Rule = "median"
    """How replies are folded: coordinate-wise median or trimmed-mean, geometric-median, krum, multi-krum,
    centred-clip (around the last round's result), or the mean with a bound."""
    f: int = 1
    """Attackers in a cohort that it must withstand; a setting that the cohort's size does not allow is refused."""
    m: int | None = None
    """Replies that multi-krum takes the mean of; by default as many as are allowed, n - f - 2."""
    radius: float = 1.0
    """How far a reply may pull the result of centred-clip in a round, and the most that it moves in one iteration."""
    iterations: int = 1
    """Iterations of centred-clip per round."""
    bound: float | None = None
    """Largest norm of a reply, as one vector; longer ones are scaled down before the rule."""
    mixing: bool = False
    """Before the rule, replace each reply by the mean of its n - f nearest (nearest-neighbour mixing): for clients that
    differ."""
    cap: float | None = None
    """Use the cohort's weights, capped at this multiple of the smallest; without it clients count equally."""

    def __post_init__(self) -> None:
        if self.f < 0 or self.iterations < 1 or (self.m is not None and self.m < 1):
            raise InputError("robust.f must be at least 0, robust.m and robust.iterations at least 1.")
        for name, least in (("radius", 0.0), ("bound", 0.0), ("cap", 1.0)):
            value = getattr(self, name)
            if value is not None and not least < value:
                raise InputError(f"robust.{name} must be above {least:g}, not {value}.")
        if self.m is not None and self.rule != "multi-krum":
            raise InputError(f'robust.m means nothing with robust.rule = "{self.rule}"; leave it out.')
        if self.rule == "mean" and self.bound is None:
            raise InputError(
                'robust.rule = "mean" gives no protection without robust.bound; set one, or take "median".'
            )
        if self.rule == "krum" and self.cap is not None:
            raise InputError('robust.rule = "krum" takes one reply, so robust.cap means nothing; leave it out.')

    @property
    def sentence(self) -> str:
        """What a run is told at its start."""
        extras = [f"norms up to {self.bound:g}"] if self.bound is not None else []
        extras += ["nearest-neighbour mixing"] if self.mixing else []
        extras += ["the same weight for all" if self.cap is None else f"weights at most {self.cap:g} times the least"]
        return f"robust folding by {self.rule}, for at most {self.f} attackers in a cohort; {', '.join(extras)}."

    def obstacle(self, n: int, f: int | None = None) -> str | None:
        """Why n replies cannot be folded if f of them may be anything, as the end of a sentence; None if they can."""
        f = self.f if f is None else f
        cap, heavy = self.cap or 1.0, "" if self.cap is None else f" that count {self.cap:g} times as much"
        if self.rule in ("krum", "multi-krum"):
            if n < 2 * f + 3:
                return f"{self.rule} with f = {f} needs at least {2 * f + 3} replies, not {n}"
            if self.m is not None and self.m > n - f - 2:
                return f"multi-krum of {n} replies with f = {f} takes at most m = {n - f - 2}, not {self.m}"
        elif self.rule == "trimmed-mean" and not 2 * f < n:
            return f"trimmed-mean with f = {f} needs at least {2 * f + 1} replies, not {n}"
        elif self.rule in ("median", "geometric-median") and not f * cap < n - f:
            return f"{f} attackers{heavy} are no minority of {n} replies, which {self.rule} needs"
        if not 2 * f < n:
            return f"f = {f} is not below half of {n} replies"
        return None


checked_at_birth(Robust, "robust")
