"""What FedAvg and FedProx do in a reproducing kernel Hilbert space (Su et al.): exactly, at any round, and in bounds.

    from parley.theory import kernel

    federation = kernel.KernelFederation.of(kernel.RBF(0.5), [x_1, ..., x_M], kernel.GradientSteps(eta=0.1, s=5))
    run = kernel.trajectory(federation, y)
    run.at(100), run.limit(), run.predict(x_new, 100)

    spectrum = kernel.exact_spectrum(federation)
    stop = kernel.stopping_round(spectrum.kernel, spectrum.N, federation.method, sigma=0.5)
    kernel.proposition7(spectrum, stop.T, start=1.0, sigma=0.5)

Large problems: `lowrank_basis` and `krylov_trajectory` (N to 20,000); `FeatureSpace` with `random_fourier` or
`nystroem` (N to 1e6 and beyond). This module only gathers the public names; each is documented where it lives.
"""

from parley.theory.kernel.basis import Basis, exact_basis, krylov_basis, leading_eigenvalues, lowrank_basis
from parley.theory.kernel.blocks import Blocks
from parley.theory.kernel.bounds import (
    NORM_TAIL_RATE,
    TAIL_RATE,
    corollary23,
    corollary24,
    critical_radius,
    lemma27,
    lemma27_tail,
    proposition7,
    theorem8,
    theorem10,
    theorem10_tail,
    theorem11,
    theorem22,
)
from parley.theory.kernel.coefficient_bounds import (
    corollary13,
    corollary13_distance,
    corollary14,
    corollary14_distance,
    coupon_samples,
    theorem12,
    theorem12_distance,
)
from parley.theory.kernel.expected import ExpectedError, expected_error
from parley.theory.kernel.feature_space import FeatureSpace, gradient_dissimilarity
from parley.theory.kernel.features import (
    Chebyshev,
    FeatureKernel,
    FeatureMap,
    Identity,
    Monomials,
    RandomFourier,
    random_fourier,
)
from parley.theory.kernel.federation import KernelFederation
from parley.theory.kernel.kernels import (
    RBF,
    ArcCosine,
    Kernel,
    Laplace,
    Linear,
    Polynomial,
    Precomputed,
    Sobolev,
    TwoLayerNTK,
)
from parley.theory.kernel.lowrank import Cholesky, Nystroem, nystroem, pivoted_cholesky
from parley.theory.kernel.methods import GradientSteps, KernelStep, ProximalStep
from parley.theory.kernel.minibatch import AffineRound, minibatch_round
from parley.theory.kernel.points import Samples
from parley.theory.kernel.spectrum import Spectrum, basis_spectrum, exact_spectrum
from parley.theory.kernel.stopping import Stop, estimate_sigma, rademacher, sigma_from_coordinates, stopping_round
from parley.theory.kernel.trajectory import Trajectory, krylov_trajectory, trajectory

__all__ = [
    "NORM_TAIL_RATE",
    "RBF",
    "TAIL_RATE",
    "AffineRound",
    "ArcCosine",
    "Basis",
    "Blocks",
    "Chebyshev",
    "Cholesky",
    "ExpectedError",
    "FeatureKernel",
    "FeatureMap",
    "FeatureSpace",
    "GradientSteps",
    "Identity",
    "Kernel",
    "KernelFederation",
    "KernelStep",
    "Laplace",
    "Linear",
    "Monomials",
    "Nystroem",
    "Polynomial",
    "Precomputed",
    "ProximalStep",
    "RandomFourier",
    "Samples",
    "Sobolev",
    "Spectrum",
    "Stop",
    "Trajectory",
    "TwoLayerNTK",
    "basis_spectrum",
    "corollary13",
    "corollary13_distance",
    "corollary14",
    "corollary14_distance",
    "corollary23",
    "corollary24",
    "coupon_samples",
    "critical_radius",
    "estimate_sigma",
    "exact_basis",
    "exact_spectrum",
    "expected_error",
    "gradient_dissimilarity",
    "krylov_basis",
    "krylov_trajectory",
    "leading_eigenvalues",
    "lemma27",
    "lemma27_tail",
    "lowrank_basis",
    "minibatch_round",
    "nystroem",
    "pivoted_cholesky",
    "proposition7",
    "rademacher",
    "random_fourier",
    "sigma_from_coordinates",
    "stopping_round",
    "theorem8",
    "theorem10",
    "theorem10_tail",
    "theorem11",
    "theorem12",
    "theorem12_distance",
    "theorem22",
    "trajectory",
]
