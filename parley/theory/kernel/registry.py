"""The kernels that a study can name: `[algorithm.kernel] name = "rbf"`."""

from parley.core.registry import Registry
from parley.theory.kernel.kernels import RBF, ArcCosine, Kernel, Laplace, Linear, Polynomial, Sobolev, TwoLayerNTK

kernels: Registry[type[Kernel]] = Registry("kernel")

kernels("linear")(Linear)
kernels("polynomial")(Polynomial)
kernels("rbf")(RBF)
kernels("laplace")(Laplace)
kernels("sobolev")(Sobolev)
kernels("arc-cosine")(ArcCosine)
kernels("two-layer-ntk")(TwoLayerNTK)
