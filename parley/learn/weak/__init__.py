"""Weak learners of functional boosting: what is fitted to a functional gradient, and travels as flat tensors."""

from parley.learn.weak.base import Learner, Norm, Slopes, learners
from parley.learn.weak.network import Network
from parley.learn.weak.tree import RegressionTree

__all__ = ["Learner", "Network", "Norm", "RegressionTree", "Slopes", "learners"]
