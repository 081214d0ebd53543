"""What the functions on generalisation accept; everything else gets one sentence."""

import numpy as np
import numpy.typing as npt

from parley.core.errors import InputError
from parley.theory.arguments import check_whole
from parley.theory.theta import Array


def check_weights(weights: npt.ArrayLike) -> Array:
    """The weights as an array [K]; refuse any but non-negative numbers that sum to one."""
    p = np.array(weights, dtype=np.float64)
    if p.ndim != 1 or not p.size or not np.isfinite(p).all() or (p < 0).any():
        raise InputError("client weights must be a list of non-negative finite numbers, one per client.")
    if abs(p.sum() - 1) > 1e-9:
        raise InputError(f"client weights must sum to one, not to {p.sum():.10g}; divide them by their sum.")
    return p


def check_cohort(cohort: int, clients: int | None = None) -> None:
    """Refuse a cohort of none and, where `clients` is given, one larger than that."""
    check_whole("the cohort", cohort)
    if clients is not None and cohort > clients:
        raise InputError(f"the cohort must be at least 1 and at most {clients}, the number of clients, not {cohort}.")


def check_numbers(name: str, values: npt.ArrayLike, clients: int) -> Array:
    """Finite numbers [K], one per client."""
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (clients,) or not np.isfinite(array).all():
        raise InputError(f"'{name}' needs one finite number per client, {clients} in all.")
    return array


def check_expectations(name: str, values: npt.ArrayLike, clients: int) -> Array:
    """Non-negative numbers [K], one per client; rounding errors below zero become zero."""
    array = check_numbers(name, values, clients)
    if (array < -1e-12 * max(1.0, float(np.abs(array).max()))).any():
        raise InputError(f"'{name}' is non-negative in expectation, but {array.min():g} was given for a client.")
    return np.maximum(array, 0.0)


def check_start(start: npt.ArrayLike | None, dimension: int, trials: int | None = None) -> Array:
    """The start [d], zeros by default; with `trials`, [trials, d], where one may be given for each."""
    begin = np.zeros(dimension) if start is None else np.asarray(start, dtype=np.float64)
    shape = (dimension,) if trials is None else (trials, dimension)
    if begin.shape not in ((dimension,), shape) or not np.isfinite(begin).all():
        raise InputError(f"the start must be {dimension} finite numbers, not of shape {begin.shape}.")
    return np.broadcast_to(begin, shape)


def check_points(given: npt.ArrayLike) -> Array:
    """[K, d], one point per client."""
    points = np.array(given, dtype=np.float64)
    if points.ndim != 2 or not points.size or not np.isfinite(points).all():
        raise InputError(f"the clients' means or truths must be finite numbers [K, d], not of shape {points.shape}.")
    return points


def check_counts(given: npt.ArrayLike, clients: int) -> npt.NDArray[np.int64]:
    """Samples per client [K], from one number for all or one for each."""
    counts = np.asarray(given)
    if counts.ndim > 1 or not np.issubdtype(counts.dtype, np.integer) or (counts < 1).any():
        raise InputError("samples must be whole numbers of at least 1, one for all clients or one for each.")
    return np.full(clients, counts, dtype=np.int64) if counts.ndim == 0 else counts.astype(np.int64)


def weights_or_equal(given: npt.ArrayLike | None, clients: int) -> Array:
    """The weights given, or equal ones."""
    return np.full(clients, 1 / clients) if given is None else check_weights(given)


def check_matrices(name: str, given: npt.ArrayLike, clients: int, dimension: int) -> Array:
    """Positive semidefinite matrices [K, d, d], from a number times the identity, [d, d] or [K, d, d]."""
    matrices = np.array(given, dtype=np.float64)
    if not np.isfinite(matrices).all():
        raise InputError(f"{name} must be symmetric and finite.")
    if matrices.ndim == 0:
        matrices = matrices * np.eye(dimension)
    if matrices.shape not in ((dimension, dimension), (clients, dimension, dimension)):
        raise InputError(f"{name} must be a number, [d, d] or [K, d, d], not of shape {matrices.shape}.")
    largest = float(np.abs(matrices).max())
    if not np.isfinite(largest) or not np.allclose(matrices, np.swapaxes(matrices, -1, -2), atol=1e-12 * largest):
        raise InputError(f"{name} must be symmetric and finite.")
    if np.linalg.eigvalsh(matrices).min() < -1e-12 * largest:
        raise InputError(f"{name} must not have negative eigenvalues.")
    return np.array(np.broadcast_to(matrices, (clients, dimension, dimension)))
