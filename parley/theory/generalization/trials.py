"""Monte-Carlo: the true gap and the bounds' terms over independent samples, every estimate with its standard error.

    found = simulate(problem, trials=2000, rng=np.random.default_rng(0))
    found.gap, found.bound(), found.margin()      # Estimate(value, error) each
    found.local[3], found.noniid[3]               # of client 3

Empirical risks are computed by their definition on the drawn samples, population risks exactly. To lower the noise, the
gaps are taken relative to that of a model which never saw the sample (what the clients would send with infinitely many
samples): its expected gap is zero, so nothing is biased.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parley.theory.arguments import check_whole
from parley.theory.generalization.bounds import coefficients, two_terms
from parley.theory.generalization.inputs import check_start
from parley.theory.generalization.problems import LearningProblem
from parley.theory.generalization.rules import Minimise, Rule
from parley.theory.theta import Array

_BLOCK = 500
"""Trials that are in memory at once."""


@dataclass(frozen=True)
class Estimate:
    """A mean over trials and its standard error."""

    value: float
    error: float

    @classmethod
    def of(cls, values: Array) -> "Estimate":
        return cls(float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))))


@dataclass(frozen=True, eq=False)
class Trials:
    """What T independent trials of one round gave."""

    problem: LearningProblem
    exact: bool
    """Whether clients minimised exactly: then Theorem 4.1 applies, else C.1."""
    gaps: Array
    """R(theta_hat) - R_S(theta_hat) [T], relative to an unseeing model's."""
    start_gaps: Array
    """R - R_S of the model the round started from [T], not relative; its mean is 0, for it never saw the sample."""
    local_gaps: Array
    """Delta_k [T, K], relative to an unseeing model's."""
    noniidness: Array
    """delta_k [T, K]."""
    suboptimalities: Array
    """eps_k [T, K]."""
    models: Array
    """theta_hat [T, d]."""

    @property
    def gap(self) -> Estimate:
        return Estimate.of(self.gaps)

    @property
    def start_gap(self) -> Estimate:
        return Estimate.of(self.start_gaps)

    @property
    def local(self) -> list[Estimate]:
        """E Delta_k per client."""
        return [Estimate.of(column) for column in self.local_gaps.T]

    @property
    def noniid(self) -> list[Estimate]:
        """E delta_k per client."""
        return [Estimate.of(column) for column in self.noniidness.T]

    @property
    def suboptimality(self) -> list[Estimate]:
        """E eps_k per client."""
        return [Estimate.of(column) for column in self.suboptimalities.T]

    def bound(self) -> Estimate:
        """Theorem 4.1 or C.1 at the estimated terms."""
        value, influence = self._bound()
        return Estimate(value, Estimate.of(influence).error)

    def margin(self) -> Estimate:
        """The bound minus the gap, from the same trials: negative beyond its error would contradict the theorem."""
        value, influence = self._bound()
        return Estimate(value - self.gap.value, Estimate.of(influence - self.gaps).error)

    def _bound(self) -> tuple[float, Array]:
        """The bound at the means, and its first-order part in every trial [T] (the delta method)."""
        X = self.local_gaps + (0 if self.exact else 2) * self.suboptimalities
        Y = self.noniidness + (0 if self.exact else 1) * self.suboptimalities
        # Expectations are never negative; a small sample's mean can be. Clipping only lowers the bound.
        x, y = np.maximum(X.mean(axis=0), 0.0), np.maximum(Y.mean(axis=0), 0.0)
        a, c = coefficients(self.problem.L, self.problem.mu, self.exact)
        p = self.problem.p
        ratio = np.sqrt(np.divide(y, x, out=np.zeros_like(y), where=x > 0))
        inverse = np.divide(1.0, ratio, out=np.zeros_like(ratio), where=ratio > 0)
        by_x, by_y = p * (a * p**2 + 0.5 * c * p * ratio), p * 0.5 * c * p * inverse
        return two_terms(p, p, x, y, a, c).total, np.asarray(X @ by_x + Y @ by_y, dtype=np.float64)


def simulate(
    problem: LearningProblem,
    rule: Rule | None = None,
    *,
    trials: int,
    rng: np.random.Generator,
    start: npt.ArrayLike | None = None,
) -> Trials:
    """One round with fresh samples in every trial; `start` [d] (default zero) or [trials, d]."""
    check_whole("the number of trials", trials, 2)
    chosen = rule or Minimise()
    begin = check_start(start, problem.dimension, trials)
    blocks = [_block(problem, chosen, begin[at : at + _BLOCK], rng) for at in range(0, trials, _BLOCK)]
    return Trials(
        problem, isinstance(chosen, Minimise), *(np.concatenate(parts) for parts in zip(*blocks, strict=True))
    )


def simulate_rounds(
    problem: LearningProblem,
    rule: Rule,
    *,
    rounds: int,
    trials: int,
    rng: np.random.Generator,
    start: npt.ArrayLike | None = None,
) -> list[Trials]:
    """R rounds, each with fresh samples and from where the last one ended: Theorem 4.3's setting.

    The mean of the rounds' `gap` is (8) with the model that round r *makes*; (8) as printed takes the one that it
    starts from, whose gap on fresh samples (`start_gap`) is zero in expectation.
    """
    check_whole("the number of rounds", rounds)
    trials_by_round = [simulate(problem, rule, trials=trials, rng=rng, start=start)]
    for _ in range(rounds - 1):
        trials_by_round.append(simulate(problem, rule, trials=trials, rng=rng, start=trials_by_round[-1].models))
    return trials_by_round


def _block(problem: LearningProblem, rule: Rule, start: Array, rng: np.random.Generator) -> tuple[Array, ...]:
    """gaps, start_gaps, local_gaps, noniidness, suboptimalities and models, in the order of `Trials`."""
    clients = range(len(problem.p))
    drawn = [problem.draw(k, len(start), rule.groups, rng) for k in clients]
    samples, populations = [losses.pooled() for losses in drawn], [problem.population(k) for k in clients]
    local = np.stack([rule.run(losses, start) for losses in drawn])
    unseeing = np.stack([np.broadcast_to(rule.run(R.as_sample(), start), start.shape) for R in populations])
    merged, reference = (np.einsum("k,ktd->td", problem.p, models) for models in (local, unseeing))

    def gap(k: int, theta: Array, control: Array | None = None) -> Array:
        difference = populations[k].at(theta) - samples[k].at(theta)
        return difference if control is None else difference - gap(k, control)

    local_outputs = np.stack([samples[k].at(local[k]) for k in clients], axis=1)
    least = np.stack([samples[k].at(samples[k].minimiser()) for k in clients], axis=1)
    everyone = np.stack([samples[k].at(merged) for k in clients], axis=1)
    return (
        np.stack([gap(k, merged, reference) for k in clients], axis=1) @ problem.p,
        np.stack([gap(k, start) for k in clients], axis=1) @ problem.p,
        np.stack([gap(k, local[k], unseeing[k]) for k in clients], axis=1),
        everyone - local_outputs,
        local_outputs - least,
        merged,
    )
