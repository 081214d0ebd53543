"""Jacobians of networks without Jacobians: the empirical neural tangent kernel and products with J and J'.

    jac = jacobian(module, weights, x)          d outputs / d weights at all samples, by layers
    jac.kernel(), jac.kernel(full=True)         H of Yue et al.'s (6); the exact kernel over samples and outputs
    jac.vjp(r), jac.jvp(tree)                   J'R and J v
    kernel(module, weights, x, budget=2**29)    the same H where even the layers' factors exceed the memory
    vjp(module, weights, x, r), jvp(...)        J'R and J v by one pass through the module, nothing stored

`weights`: parameters and buffers by name; what is not among them is the module's own. The network must be in
evaluation mode where that makes a difference.
"""

from parley.algorithms.ntk.jacobian.blocks import Outer, Rows
from parley.algorithms.ntk.jacobian.compute import jacobian, jvp, kernel, linearised, vjp
from parley.algorithms.ntk.jacobian.factors import BUDGET, Jacobian
from parley.algorithms.ntk.jacobian.sparse import Sparse

__all__ = ["BUDGET", "Jacobian", "Outer", "Rows", "Sparse", "jacobian", "jvp", "kernel", "linearised", "vjp"]
