"""What local update methods minimise on quadratics, how well conditioned it is, and how far off its minimiser lies.

    from parley.theory import surrogate

    clients = surrogate.Quadratics(A, c)                     # or .from_least_squares(X, y), .from_kernel(gram, y)
    clients.minimiser(gamma=0.01, theta=surrogate.All(10))   # where FedAvg with ten local steps ends
    clients.kappa(gamma=0.01, theta=surrogate.All(10))       # eq. (9) for these clients
    surrogate.kappa_bound(L=10, mu=1, gamma=0.01, K=10)      # eq. (11), from two constants
    surrogate.distances(clients, gamma=0.01, theta=surrogate.All(10))

This module only gathers the public names; each of them is documented where it lives. `pareto` builds on it.
"""

from parley.theory.condition import curvature_bound, kappa_bound, log_kappa_bound, log_phi, log_psi
from parley.theory.distance import Distances, distances, drift_bound, residual_spread
from parley.theory.quadratics import Quadratics, kernel_features
from parley.theory.theta import All, Explicit, Last, Theta, ThetaLike, as_theta

__all__ = [
    "All",
    "Distances",
    "Explicit",
    "Last",
    "Quadratics",
    "Theta",
    "ThetaLike",
    "as_theta",
    "curvature_bound",
    "distances",
    "drift_bound",
    "kappa_bound",
    "kernel_features",
    "log_kappa_bound",
    "log_phi",
    "log_psi",
    "residual_spread",
]
