"""The spectrum of K P through S = P^1/2 K P^1/2 = U Lambda U' (Su et al., eqs. 40-41): exact, low-rank, or Krylov.

Every function of K P that the theory needs is one of S, so the three constructions share all the code behind them:

    exact_basis(federation)                       all of it; N^3 time, 4 N^2 numbers of memory
    lowrank_basis(federation, tolerance)          K by pivoted Cholesky; N r^2 time, N r memory, a stated error
    krylov_basis(federation, vector, rounds)      Lanczos; exact for the rounds asked for, from products with K alone
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh_tridiagonal, qr, svd
from scipy.sparse.linalg import LinearOperator, eigsh

from parley.core.errors import InputError
from parley.theory.arguments import check_sizes, check_whole
from parley.theory.kernel.blocks import Blocks, psd_eigh, rounding
from parley.theory.kernel.decay import as_rounds, gathered
from parley.theory.kernel.federation import KernelFederation
from parley.theory.kernel.lowrank import pivoted_cholesky
from parley.theory.theta import Array


@dataclass(frozen=True, eq=False)
class Basis:
    """U [N, r] with orthonormal columns and Lambda [r], descending; values within rounding error of zero are zero."""

    blocks: Blocks = field(repr=False)
    values: Array = field(repr=False)
    vectors: Array = field(repr=False)
    complete: bool
    """Whether U spans everything that is asked of it; otherwise S is zero outside of U's span."""
    error: float
    """A bound on ||S - U Lambda U'||, hence on the error of every Lambda_i; 0: rounding only, or a Krylov basis."""
    rounds: float = np.inf
    """The last round it can serve."""

    def __post_init__(self) -> None:
        # An eigenvalue that is rounding error would be learned after 1e14 rounds.
        object.__setattr__(self, "values", np.where(self.values > rounding(self.values), self.values, 0.0))


def exact_basis(federation: KernelFederation) -> Basis:
    """All eigenvalues and eigenvectors by one dense decomposition; N = 3,000 takes seconds, 20,000 about an hour."""
    S = symmetric_form(federation)
    # FedProx with a large eta makes S far smaller than K, whose rounding errors it inherits.
    scale = federation.blocks.norm * float(np.linalg.norm(federation.gram.dense))
    values, vectors = psd_eigh(S, "the kernel matrix", overwrite=True, scale=scale)
    values = np.where(values > rounding(values, scale), values, 0.0)
    return Basis(federation.blocks, values[::-1].copy(), vectors[:, ::-1], True, 0.0)


def symmetric_form(federation: KernelFederation) -> Array:
    """S = P^1/2 K P^1/2, dense [N, N], with P applied block by block."""
    S = federation.gram.dense.copy()
    for client, part in enumerate(federation.samples.slices):
        root = federation.blocks.block(client, 0.5)
        S[part] = root @ S[part]
        S[:, part] = S[:, part] @ root
    S += S.T
    S *= 0.5
    return S


def lowrank_basis(federation: KernelFederation, tolerance: float = 1e-10, max_rank: int | None = None) -> Basis:
    """K replaced by a rank-r part with trace(K - K_r) <= tolerance * trace(K); P stays exact.

    K - K_r is positive semidefinite, so no eigenvalue of K is off by more than that trace and none of K P by more
    than s times it.
    """
    samples = federation.samples
    cholesky = pivoted_cholesky(federation.kernel, samples.x, tolerance, max_rank)
    if not cholesky.pivots:
        raise InputError("the kernel is zero at all points; nothing can be learned.")
    orthonormal, triangle = qr(
        federation.blocks.apply(cholesky.factor, 0.5) / np.sqrt(samples.N), mode="economic", check_finite=False
    )
    left, singular, _ = svd(triangle, check_finite=False)
    error = federation.method.s * cholesky.residual / samples.N
    return Basis(federation.blocks, np.asarray(singular**2, dtype=np.float64), orthonormal @ left, False, error)


def krylov_basis(
    federation: KernelFederation, vector: Array, rounds: npt.ArrayLike, tolerance: float = 1e-12, max_steps: int = 2000
) -> Basis:
    """The Krylov space of S and `vector` (P^1/2 (y - f_0)), grown until every round up to max(rounds) is represented.

    A t-th power of I - eta S needs only about sqrt(t) products with K. Good for trajectories from this vector only;
    `tolerance` is relative to its norm. The values are Ritz values: the largest converge to Lambda_1, Lambda_2, ...
    """
    method = federation.method
    last = max(1.0, float(as_rounds(rounds).max()))
    probes = np.unique(np.geomspace(1, last, 12).round())
    check_sizes(tolerance=tolerance)
    check_whole("the number of steps", max_steps)
    vector = federation.samples.values(vector, "the vector")
    scale = float(np.linalg.norm(vector))
    if not scale:
        return Basis(federation.blocks, np.zeros(0), np.zeros((len(vector), 0)), True, 0.0)
    columns, diagonal, off = [vector / scale], list[float](), list[float]()
    while True:
        product = symmetric_product(federation, columns[-1])
        diagonal.append(float(columns[-1] @ product))
        space = np.stack(columns, axis=1)
        # Twice is enough (Kahan): full reorthogonalisation keeps the basis orthonormal to rounding.
        for _ in range(2):
            product -= space @ (space.T @ product)
        norm = float(np.linalg.norm(product))
        values, rotation = _tridiagonal(diagonal, off)
        tails = rotation[-3:] @ (gathered(method.eta * values[:, None], probes) / probes * rotation[0][:, None])
        done = float(np.abs(tails).max()) <= tolerance and len(diagonal) > 3
        if done or norm <= 1e-14 * diagonal[0] or len(diagonal) == len(vector):
            return Basis(federation.blocks, values[::-1].copy(), space @ rotation[:, ::-1], True, 0.0, last)
        if len(diagonal) == max_steps:
            raise InputError(f"{max_steps} products with K do not suffice for this tolerance; raise either.")
        off.append(norm)
        columns.append(product / norm)


def _tridiagonal(diagonal: list[float], off: list[float]) -> tuple[Array, Array]:
    values, vectors = eigh_tridiagonal(np.array(diagonal), np.array(off))
    return np.asarray(np.maximum(values, 0.0), dtype=np.float64), np.asarray(vectors, dtype=np.float64)


def symmetric_product(federation: KernelFederation, vector: Array) -> Array:
    """S times a vector, [N]."""
    blocks = federation.blocks
    return blocks.apply(federation.gram.matmul(blocks.apply(vector, 0.5)), 0.5)


def leading_eigenvalues(federation: KernelFederation, count: int, tolerance: float = 1e-10) -> tuple[Array, Array]:
    """The `count` largest eigenvalues of (K, K P), descending, to a relative `tolerance`; matrix-free."""
    N = federation.samples.N
    check_whole("count", count)
    if not count < N:
        raise InputError(f"count must be between 1 and N - 1 = {N - 1}, not {count}.")
    check_sizes(tolerance=tolerance)
    if not federation.kernel.diagonal(federation.samples.x).any():
        return np.zeros(count), np.zeros(count)

    def largest(product: Callable[[Array], Array]) -> Array:
        operator = LinearOperator((N, N), matvec=product, dtype=np.float64)
        start = np.ones(N) + np.linspace(-0.5, 0.5, N)  # eigsh would draw from the global generator
        values = np.sort(eigsh(operator, k=count, which="LA", tol=tolerance, v0=start, return_eigenvectors=False))
        return np.where(values > rounding(values), values, 0.0)[::-1]

    return largest(lambda v: federation.gram.matmul(v.ravel())), largest(
        lambda v: symmetric_product(federation, v.ravel())
    )
