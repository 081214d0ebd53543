"""Weak learners of functional boosting: what is fitted to a functional gradient, and travels as flat tensors."""

from parley.learn.weak.base import Learner, Norm, Round, Slopes, learners
from parley.learn.weak.estimator import Estimator
from parley.learn.weak.linear import KernelRidge, Linear
from parley.learn.weak.network import Network
from parley.learn.weak.tree import RegressionTree

__all__ = [
    "Estimator", "KernelRidge", "Learner", "Linear", "Network", "Norm", "RegressionTree", "Round", "Slopes", "learners",
]  # fmt: skip
