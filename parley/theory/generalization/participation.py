"""Partial participation: the printed bounds (73) and (74) beside the exact truth, and what can be said instead.

Only `cohort` clients are drawn and the server averages them with weights w (a random vector). The gap is (61),
R(theta_hat) - sum_k w_k R_S_k(theta_hat), split by (62) into a participation and an out-of-sample part. In Appendix D

- (71) says that the participation part is zero in expectation. It is not: theta_hat depends on the draw and fits the
  drawn clients better than the others. For mean estimation with H = I and weights that sum to one it is
  E ||sum_k (w_k - p_k) m_k||^2: it stays when the samples grow without limit, while (73) and (74) vanish.
- Lemma D.1 says E sum_k w_k^2 x_k = sum_k p_k x_k / cohort with replacement. A client drawn twice has weight 2/cohort:
  it is sum_k p_k (p_k + (1 - p_k) / cohort) x_k. For large cohorts (73) goes to zero and the truth to that of all.
- Case II's weights p_k K/cohort sum to one only if all p_k are equal. Otherwise even equal clients have a
  participation part.

What does hold: given the draw, Theorem 4.1 with the weights w bounds the out-of-sample part (`Participation.repaired`);
the participation part has to be added.
"""

from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement
from math import comb

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, xlogy

from parley.core.errors import InputError
from parley.theory.generalization.bounds import (
    Bound,
    coefficients,
    printed_case_1,
    printed_case_2,
    two_terms,
)
from parley.theory.generalization.exact import LocalModels
from parley.theory.generalization.inputs import check_cohort, check_weights
from parley.theory.generalization.problems import MeanEstimation
from parley.theory.theta import Array

_MOST_DRAWS = 200_000


@dataclass(frozen=True)
class Participation:
    """Exact expectations over samples and draws, and the bounds beside them."""

    participation: float
    """E [R(theta_hat) - sum_k w_k R_k(theta_hat)], which (71) says is zero."""
    out_of_sample: float
    """E sum_k w_k [R_k(theta_hat) - R_S_k(theta_hat)]."""
    printed: Bound
    """(73) or (74), with the largest delta_k over all draws: the most generous reading. FALSE."""
    repaired: Bound
    """Theorem 4.1 with the drawn weights, averaged over the draws: at least `out_of_sample`."""

    @property
    def gap(self) -> float:
        """(61) in expectation, which `printed` claims to bound."""
        return self.participation + self.out_of_sample


def all_draws(weights: npt.ArrayLike, cohort: int, replacement: bool) -> tuple[Array, Array]:
    """Every possible draw: probabilities [D] and the weights w [D, K] the server averages with.

    Case I (`replacement`): drawn by weight, averaged equally, so w_k is the number of times k was drawn over `cohort`.
    Case II: drawn uniformly, w_k = p_k K/cohort for those drawn.
    """
    p = check_weights(weights)
    K = len(p)
    check_cohort(cohort, None if replacement else K)
    count = comb(K + cohort - 1, cohort) if replacement else comb(K, cohort)
    if count > _MOST_DRAWS:
        raise InputError(f"{cohort} of {K} clients make {count} draws; take at most {_MOST_DRAWS}: fewer clients.")
    listed = combinations_with_replacement(range(K), cohort) if replacement else combinations(range(K), cohort)
    counts = np.stack([np.bincount(draw, minlength=K) for draw in listed]).astype(np.float64)
    if not replacement:
        return np.full(len(counts), 1 / len(counts)), counts * p * K / cohort
    return np.exp(gammaln(cohort + 1) - gammaln(counts + 1).sum(axis=1) + xlogy(counts, p).sum(axis=1)), counts / cohort


def participation(problem: MeanEstimation, cohort: int, *, replacement: bool) -> Participation:
    """Case I (`replacement`) or Case II for clients that minimise exactly, by going through all draws."""
    models = LocalModels.of(problem)
    probability, draws = all_draws(problem.p, cohort, replacement)
    local = models.local()
    a, c = coefficients(problem.L, problem.mu, exact=True)
    disagreement = np.stack([models.noniid(w) for w in draws])
    bounds = [two_terms(w, w, local, delta, a, c) for w, delta in zip(draws, disagreement, strict=True)]
    formula = printed_case_1 if replacement else printed_case_2
    return Participation(
        participation=float(probability @ [(problem.p - w) @ models.risks(w) for w in draws]),
        out_of_sample=float(probability @ (draws**2 @ local)),
        printed=formula(problem.p, cohort, local, disagreement.max(axis=0), problem.L, problem.mu),
        repaired=Bound(
            *(float(probability @ part) for part in zip(*((b.local, b.mixed) for b in bounds), strict=True))
        ),
    )
