"""The trade-off between convergence and accuracy: frontiers, their closed form, and which gamma and K to take.

    from parley.theory import pareto

    pareto.family_frontier(L=10, mu=1, gamma=0.001, K=np.geomspace(1, 1e6, 1000), server="heavy-ball")
    pareto.rho_of_delta(0.2, kappa0=10, server="heavy-ball")
    pareto.best_setting(L=10, mu=1, rounds=20, start_distance=5.0, C=1.0, server="heavy-ball").best
    pareto.best_exact_setting(clients, start, rounds=20, server="heavy-ball").best

This module only gathers the public names; each of them is documented where it lives.
"""

from parley.theory.advice import Advice, Choice, best_setting, bound_terms
from parley.theory.condition import log_distortion_spread
from parley.theory.exact_advice import ExactAdvice, ExactChoice, best_exact_setting
from parley.theory.frontier import (
    Frontier,
    cusp_delta,
    cusp_steps,
    delta_of_rho,
    delta_of_spread,
    exact_frontier,
    family_frontier,
    rho_of_delta,
    simulated_maml_frontier,
)
from parley.theory.rounds import Rounds, SurrogateDescent
from parley.theory.servers import SERVERS, ServerSetting, log_kappa_of, rate, transient, tune
from parley.theory.spectra import random_clients, wishart_spectrum

__all__ = [
    "SERVERS",
    "Advice",
    "Choice",
    "ExactAdvice",
    "ExactChoice",
    "Frontier",
    "Rounds",
    "ServerSetting",
    "SurrogateDescent",
    "best_exact_setting",
    "best_setting",
    "bound_terms",
    "cusp_delta",
    "cusp_steps",
    "delta_of_rho",
    "delta_of_spread",
    "exact_frontier",
    "family_frontier",
    "log_distortion_spread",
    "log_kappa_of",
    "random_clients",
    "rate",
    "rho_of_delta",
    "simulated_maml_frontier",
    "transient",
    "tune",
    "wishart_spectrum",
]
