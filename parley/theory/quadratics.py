"""The surrogate loss that is minimised on quadratics (Charles and Konečný, eqs. 1-10, Theorems 1-2, Lemmas 1-2).

Client i has f_i(x) = 1/2 (x - c_i)' A_i (x - c_i) and weight p_i. A method with client step `gamma`, coefficients
`theta` and proximal strength `alpha` behaves exactly like its server optimizer on f~ = sum_i p_i f~_i, where f~_i has
the Hessian Q_i A_i and Q_i = sum_k theta_k (I - gamma (A_i + alpha I))^(k-1):

    clients = Quadratics(A, c)                                  # A [m, d, d], c [m, d], equal weights
    clients = Quadratics.from_least_squares([X_1, ...], [y_1, ...], ridge=0.0)
    clients = Quadratics.from_kernel(gram, [y_1, ...], ridge=0.01)
    clients.minimiser(gamma=0.01, theta=All(10), alpha=0.0)     # where FedAvg with 10 steps converges to, [d]
    clients.empirical_minimiser                                 # where it should converge to, [d]

FedAvg and Reptile: `All(K)`. FedProx: `All(K)`, alpha > 0. FOMAML: `Last(K)`. MAML with K steps: `Last(2 * K + 1)`.
FedSGD: gamma = 0. Anything else: a list of theta_k >= 0. Methods need 0 <= gamma < 1/(L + alpha) and say so otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from parley.core.errors import InputError
from parley.theory.region import check_curvature, check_step
from parley.theory.theta import Array, ThetaLike, as_theta


@dataclass(frozen=True, eq=False)
class Quadratics:
    """m heterogeneous quadratic clients in d dimensions, and Charles and Konečný's surrogate quantities of them.

    `A` [m, d, d] symmetric positive definite, `c` [m, d] the clients' own optima, `weights` [m] positive (default:
    equal), scaled to sum to one.
    """

    A: Array
    c: Array
    weights: Array | None = None

    def __post_init__(self) -> None:
        A, c = (np.array(value, dtype=np.float64) for value in (self.A, self.c))
        if A.ndim != 3 or A.shape[1] != A.shape[2] or not A.size or c.shape != A.shape[:2]:
            raise InputError(f"clients need A of shape [m, d, d] and c of shape [m, d], not {A.shape} and {c.shape}.")
        if not (np.isfinite(A).all() and np.isfinite(c).all()):
            raise InputError("A and c of all clients must be finite numbers.")
        if not np.allclose(A, np.swapaxes(A, 1, 2), rtol=1e-10, atol=1e-12 * float(np.abs(A).max())):
            raise InputError("every A_i must be symmetric; give (A_i + A_i') / 2 if that is what you mean.")
        object.__setattr__(self, "A", (A + np.swapaxes(A, 1, 2)) / 2)
        object.__setattr__(self, "c", c)
        object.__setattr__(self, "weights", _normalised(self.weights, len(A)))
        # Eigenvalues below the rounding error of the decomposition count as zero.
        floor = A.shape[1] * np.finfo(np.float64).eps * self.L
        check_curvature(self.L, self.mu if self.mu > floor else min(self.mu, 0.0))

    @classmethod
    def from_least_squares(
        cls,
        features: Sequence[npt.ArrayLike],
        targets: Sequence[npt.ArrayLike],
        weights: npt.ArrayLike | None = None,
        ridge: float = 0.0,
    ) -> "Quadratics":
        """Clients with f_i(x) = ||X_i x - y_i||^2 / (2 n_i) + ridge/2 ||x||^2 + constant; X_i [n_i, d], y_i [n_i]."""
        if len(features) != len(targets) or not len(features):
            raise InputError(f"give one y_i per X_i, at least one; got {len(features)} X_i and {len(targets)} y_i.")
        if not (np.isfinite(ridge) and ridge >= 0):
            raise InputError(f"ridge must be finite and at least 0, not {ridge:g}.")
        matrices, optima = [], []
        for number, (X, y) in enumerate(zip(features, targets, strict=True)):
            X, y = np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
            if X.ndim != 2 or not X.size or y.shape != X.shape[:1]:
                raise InputError(f"client {number} needs X [n, d] and y [n], not {X.shape} and {y.shape}.")
            if not (np.isfinite(X).all() and np.isfinite(y).all()):
                raise InputError(f"X and y of client {number} must be finite numbers.")
            matrices.append(X.T @ X / len(X) + ridge * np.eye(X.shape[1]))
            stacked = np.vstack([X / np.sqrt(len(X)), np.sqrt(ridge) * np.eye(X.shape[1])])
            # Least squares on the factor, not the normal equations: the error grows with cond(X), not its square.
            optima.append(np.linalg.lstsq(stacked, np.append(y / np.sqrt(len(X)), np.zeros(X.shape[1])))[0])
        if len({matrix.shape for matrix in matrices}) != 1:
            raise InputError("all clients must have the same number of features.")
        return cls(
            np.stack(matrices), np.stack(optima), None if weights is None else np.asarray(weights, dtype=np.float64)
        )

    @classmethod
    def from_kernel(
        cls,
        gram: npt.ArrayLike,
        targets: Sequence[npt.ArrayLike],
        weights: npt.ArrayLike | None = None,
        ridge: float = 0.0,
    ) -> "Quadratics":
        """Clients that fit a function h of a kernel's space: f_i(h) = mean (h(x) - y)^2 / 2 + ridge/2 ||h||^2.

        `gram` [n, n] is the kernel between all samples, the clients' one after the other, y_i [n_i] in that order.
        The coordinates of h are those of `kernel_features(gram)`, [n, d]: h's values are features @ x, its norm ||x||.
        """
        features = kernel_features(gram)
        sizes = [np.size(y) for y in targets]
        if sum(sizes) != len(features):
            raise InputError(f"the kernel is between {len(features)} samples, but the clients have {sum(sizes)}.")
        return cls.from_least_squares(np.split(features, np.cumsum(sizes)[:-1]), targets, weights, ridge)

    # --- the clients themselves ---

    @property
    def p(self) -> Array:
        """The weights p_i, [m], summing to one."""
        assert self.weights is not None
        return self.weights

    @property
    def eigenvalues(self) -> Array:
        """The eigenvalues of every A_i, ascending, [m, d]."""
        return self._spectra[0]

    @property
    def eigenvectors(self) -> Array:
        """The eigenvectors of every A_i as columns, in the order of `eigenvalues`, [m, d, d]."""
        return self._spectra[1]

    @property
    def L(self) -> float:
        """The largest eigenvalue of any A_i (Assumption 1)."""
        return float(self.eigenvalues[:, -1].max())

    @property
    def mu(self) -> float:
        """The smallest eigenvalue of any A_i (Assumption 1)."""
        return float(self.eigenvalues[:, 0].min())

    @property
    def kappa0(self) -> float:
        """L / mu."""
        return self.L / self.mu

    @property
    def C(self) -> float:
        """max_i ||c_i|| (Assumption 2)."""
        return float(np.linalg.norm(self.c, axis=1).max())

    @cached_property
    def mean_hessian(self) -> Array:
        """Abar = sum_i p_i A_i, the Hessian of the empirical loss, [d, d]."""
        return np.asarray(np.einsum("i,ijk->jk", self.p, self.A), dtype=np.float64)

    @cached_property
    def empirical_minimiser(self) -> Array:
        """x* = argmin sum_i p_i f_i, [d]."""
        x = self._solve(self.mean_hessian, np.einsum("i,ijk,ik->j", self.p, self.A, self.c))
        # One step of iterative refinement: x* enters every drift as a reference.
        refinement: Array = self._solve(self.mean_hessian, self.empirical_gradient(x))
        return np.asarray(x - refinement, dtype=np.float64)

    def empirical_gradient(self, x: npt.ArrayLike) -> Array:
        """sum_i p_i A_i (x - c_i), [d]."""
        return np.asarray(np.einsum("i,ijk,ik->j", self.p, self.A, self._offsets(x)), dtype=np.float64)

    def empirical_loss(self, x: npt.ArrayLike) -> float:
        """sum_i p_i f_i(x)."""
        offset = self._offsets(x)
        return float(np.einsum("i,ij,ijk,ik->", self.p, offset, self.A, offset) / 2)

    # --- the surrogate ---

    def distortion(self, gamma: float, theta: ThetaLike, alpha: float = 0.0) -> Array:
        """Q_i of eq. (6), [m, d, d]."""
        return self.compose(np.exp(self.log_distortion(gamma, theta, alpha)))

    def log_distortion(self, gamma: float, theta: ThetaLike, alpha: float = 0.0) -> Array:
        """log of Q_i's eigenvalues (Lemma 9), [m, d], in the order of A_i's ascending eigenvalues; never overflows."""
        return np.asarray(np.log(as_theta(theta).weight) + self._log_mean(gamma, theta, alpha), dtype=np.float64)

    def client_hessians(self, gamma: float, theta: ThetaLike, alpha: float = 0.0) -> Array:
        """Q_i A_i, [m, d, d]."""
        return self.compose(np.exp(self.log_distortion(gamma, theta, alpha)) * self.eigenvalues)

    def client_gradients(self, x: npt.ArrayLike, gamma: float, theta: ThetaLike, alpha: float = 0.0) -> Array:
        """Q_i A_i (x - c_i), [m, d]: what each client sends from x with full gradients (Theorem 1)."""
        hessians = self.client_hessians(gamma, theta, alpha)
        return np.asarray(np.einsum("ijk,ik->ij", hessians, self._offsets(x)), dtype=np.float64)

    def gradient(self, x: npt.ArrayLike, gamma: float, theta: ThetaLike, alpha: float = 0.0) -> Array:
        """The surrogate's gradient, [d]: what the server feeds its optimizer."""
        return np.asarray(self.p @ self.client_gradients(x, gamma, theta, alpha), dtype=np.float64)

    def loss(self, x: npt.ArrayLike, gamma: float, theta: ThetaLike, alpha: float = 0.0) -> float:
        """The surrogate loss f~(x) of eqs. (7)-(8)."""
        gradients = self.client_gradients(x, gamma, theta, alpha)
        return float(np.einsum("i,ij,ij->", self.p, self._offsets(x), gradients) / 2)

    def hessian(self, gamma: float, theta: ThetaLike, alpha: float = 0.0) -> Array:
        """sum_i p_i Q_i A_i, [d, d]."""
        return np.asarray(np.einsum("i,ijk->jk", self.p, self.client_hessians(gamma, theta, alpha)), dtype=np.float64)

    def minimiser(self, gamma: float, theta: ThetaLike, alpha: float = 0.0) -> Array:
        """argmin of the surrogate (Lemma 11), [d]: the method's fixed point."""
        return self.empirical_minimiser + self.drift(gamma, theta, alpha)

    def drift(self, gamma: float, theta: ThetaLike, alpha: float = 0.0) -> Array:
        """The surrogate's minimiser minus the empirical one, [d], accurate even where it is tiny."""
        logs = self._log_mean(gamma, theta, alpha)
        relative = logs - logs.max()  # a common factor of all Q_i changes no minimiser
        hessian = np.einsum("i,ijk->jk", self.p, self.compose(np.exp(relative) * self.eigenvalues))
        excess = self.compose(without_common_part(relative) * self.eigenvalues)
        return self._solve(hessian, np.einsum("i,ijk,ik->j", self.p, excess, self.c - self.empirical_minimiser))

    def curvature(self, gamma: float, theta: ThetaLike, alpha: float = 0.0) -> tuple[float, float]:
        """(smoothness, strong convexity) of the surrogate, exactly: the extreme eigenvalues of its Hessian."""
        eigenvalues = np.linalg.eigvalsh(self.hessian(gamma, theta, alpha))
        return float(eigenvalues[-1]), float(eigenvalues[0])

    def curvature_bounds(self, gamma: float, theta: ThetaLike, alpha: float = 0.0) -> tuple[float, float]:
        """(L~, mu~) of Lemma 10: the clients' mean extreme eigenvalues of Q_i A_i, which enclose `curvature`."""
        values = np.exp(self.log_distortion(gamma, theta, alpha)) * self.eigenvalues
        return float(self.p @ values.max(axis=1)), float(self.p @ values.min(axis=1))

    def kappa(self, gamma: float, theta: ThetaLike, alpha: float = 0.0) -> float:
        """kappa(alpha, gamma, Theta) of eq. (9), at least the surrogate's condition number (Lemma 2)."""
        logs = self._log_mean(gamma, theta, alpha)
        values = np.exp(logs - logs.max()) * self.eigenvalues
        lowest = float(self.p @ values.min(axis=1))
        return float(self.p @ values.max(axis=1)) / lowest if lowest > 0 else float("inf")

    def _offsets(self, x: npt.ArrayLike) -> Array:
        """x - c_i, [m, d]."""
        point = np.asarray(x, dtype=np.float64)
        if point.shape != self.c.shape[1:] or not np.isfinite(point).all():
            raise InputError(f"a point must be {self.c.shape[1]} finite numbers, one per dimension.")
        return np.asarray(point - self.c, dtype=np.float64)

    def _log_mean(self, gamma: float, theta: ThetaLike, alpha: float) -> Array:
        """log of the eigenvalues of Q_i / w(Theta), [m, d]."""
        check_step(gamma, alpha, self.L)
        return as_theta(theta).log_mean(gamma * (self.eigenvalues + alpha))

    @cached_property
    def _spectra(self) -> tuple[Array, Array]:
        eigenvalues, eigenvectors = np.linalg.eigh(self.A)
        return eigenvalues, eigenvectors

    def compose(self, eigenvalues: Array) -> Array:
        """The matrices with the eigenvectors of A_i and the given eigenvalues [m, d], as [m, d, d]."""
        vectors = self.eigenvectors
        return np.asarray((vectors * eigenvalues[:, None, :]) @ np.swapaxes(vectors, 1, 2), dtype=np.float64)

    @staticmethod
    def _solve(matrix: Array, right: Array) -> Array:
        spread = np.linalg.eigvalsh(matrix)
        if not spread[0] > len(matrix) * np.finfo(np.float64).eps * spread[-1]:
            raise InputError(
                "the surrogate is too ill-conditioned for double precision (Theta_K far above gamma = 1/(K L)); "
                "take a smaller gamma or K."
            )
        return np.asarray(cho_solve(cho_factor(matrix), right), dtype=np.float64)


def without_common_part(log_distortion: Array, axis: int | None = None) -> Array:
    """Q's eigenvalues less a constant, from their logarithms (at most 0), for sums over p_i Q_i A_i (c_i - x*).

    Since sum_i p_i A_i (c_i - x*) = 0 any constant may go. Near Q = I that is 1, so that nothing cancels as gamma -> 0;
    far from it 0, because then the rounding error of x* would outweigh the small eigenvalues. `axis` runs over one set.
    """
    near_identity = (log_distortion > -0.7).all(axis=axis, keepdims=True)
    return np.where(near_identity, np.expm1(log_distortion), np.exp(log_distortion))


def kernel_features(gram: npt.ArrayLike) -> Array:
    """F [n, d] with F F' = gram [n, n] and d its rank: coordinates in which the kernel's norm is the Euclidean one."""
    matrix = np.asarray(gram, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size or not np.isfinite(matrix).all():
        raise InputError(f"a kernel matrix must be finite and of shape [n, n], not {matrix.shape}.")
    if not np.allclose(matrix, matrix.T, rtol=1e-10, atol=1e-12 * float(np.abs(matrix).max())):
        raise InputError("a kernel matrix must be symmetric.")
    values, vectors = np.linalg.eigh(matrix)
    floor = len(matrix) * np.finfo(np.float64).eps * float(np.abs(values).max())
    if values[0] < -100 * floor or not values[-1] > 0:
        raise InputError(f"a kernel matrix must be positive semi-definite, but has the eigenvalue {values[0]:.3g}.")
    kept = values > floor
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept]), dtype=np.float64)


def _normalised(weights: npt.ArrayLike | None, clients: int) -> Array:
    values = np.ones(clients) if weights is None else np.array(weights, dtype=np.float64)
    if values.shape != (clients,) or not np.isfinite(values).all() or not (values > 0).all():
        raise InputError(f"weights must be {clients} positive finite numbers, one per client.")
    return np.asarray(values / values.sum(), dtype=np.float64)
