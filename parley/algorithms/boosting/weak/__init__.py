"""Weak learners of functional boosting: what is fitted to a functional gradient, and travels as flat tensors."""

from parley.algorithms.boosting.weak.base import Increment, Learner, Norm, Slopes, learners
from parley.algorithms.boosting.weak.estimator import Estimator
from parley.algorithms.boosting.weak.linear import KernelRidge, Linear
from parley.algorithms.boosting.weak.network import Network
from parley.algorithms.boosting.weak.tree import RegressionTree

__all__ = [
    "Estimator",
    "Increment",
    "KernelRidge",
    "Learner",
    "Linear",
    "Network",
    "Norm",
    "RegressionTree",
    "Slopes",
    "learners",
]
