"""How far a model's risk is above what training samples show: bounds and truth (Gholami and Seferoglu, Section 4).

    from parley.theory import generalization

    clients = generalization.MeanEstimation(means=np.zeros((10, 5)), samples=20)     # 10 alike clients
    generalization.exact_terms(clients).gap                                          # the truth: Delta / K
    generalization.exact_bound(clients).total                                        # Theorem 4.1
    generalization.simulate(problem, trials=2000, rng=rng).margin()                  # bound - truth, with its error

    generalization.theorem_4_1(weights, local, noniid, L, mu)                        # from your own estimates

This module only gathers the public names; each is documented where it lives.
"""

from parley.theory.generalization.bounds import (
    Bound,
    printed_case_1,
    printed_case_2,
    theorem_4_1,
    theorem_4_3,
    theorem_c_1,
)
from parley.theory.generalization.exact import LocalModels, Terms, exact_bound, exact_terms
from parley.theory.generalization.losses import Losses
from parley.theory.generalization.participation import Participation, all_draws, participation
from parley.theory.generalization.problems import LearningProblem, MeanEstimation, RidgeRegression
from parley.theory.generalization.rules import Descend, Minimise, OnePass, Rule
from parley.theory.generalization.trials import Estimate, Trials, simulate, simulate_rounds

__all__ = [
    "Bound",
    "Descend",
    "Estimate",
    "LearningProblem",
    "LocalModels",
    "Losses",
    "MeanEstimation",
    "Minimise",
    "OnePass",
    "Participation",
    "RidgeRegression",
    "Rule",
    "Terms",
    "Trials",
    "all_draws",
    "exact_bound",
    "exact_terms",
    "participation",
    "printed_case_1",
    "printed_case_2",
    "simulate",
    "simulate_rounds",
    "theorem_4_1",
    "theorem_4_3",
    "theorem_c_1",
]
