"""Training by kernel evolution (Yue et al.): NTK-FL, CP-NTK-FL, TCT."""

from parley.algorithms.ntk import jacobian

__all__ = ["jacobian"]
