"""Weak learners of functional boosting: what is fitted to a functional gradient, and travels as flat tensors."""

from parley.algorithms.boosting.weak.base import Learner, Norm, Round, Slopes, learners
from parley.algorithms.boosting.weak.estimator import Estimator
from parley.algorithms.boosting.weak.linear import KernelRidge, Linear
from parley.algorithms.boosting.weak.network import Network
from parley.algorithms.boosting.weak.tree import RegressionTree

__all__ = [
    "Estimator", "KernelRidge", "Learner", "Linear", "Network", "Norm", "RegressionTree", "Round", "Slopes", "learners",
]  # fmt: skip
