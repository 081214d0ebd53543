"""A federation that learns in a reproducing kernel Hilbert space (Su et al., Lemma 2, Proposition 3)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from parley.theory.kernel.blocks import Blocks
from parley.theory.kernel.gram import Gram
from parley.theory.kernel.kernels import Kernel
from parley.theory.kernel.methods import KernelStep
from parley.theory.kernel.points import Samples
from parley.theory.theta import Array


@dataclass(frozen=True, eq=False)
class KernelFederation:
    """Clients' points, a kernel and FedAvg or FedProx; client i has the weight n_i / N and takes part in every round.

    `KernelFederation.of(RBF(0.5), [x_1, ..., x_M], GradientSteps(0.1, s=5))`. P is held as one eigendecomposition per
    client; FedAvg with gamma >= 1 is refused when P is first needed.
    """

    kernel: Kernel
    samples: Samples
    method: KernelStep

    @classmethod
    def of(cls, kernel: Kernel, clients: Sequence[npt.ArrayLike], method: KernelStep) -> "KernelFederation":
        """From one array of points per client, x_i [n_i, p] or [n_i]."""
        return cls(kernel, Samples.of(clients), method)

    @cached_property
    def gram(self) -> Gram:
        """K."""
        return Gram(self.kernel, self.samples)

    @cached_property
    def blocks(self) -> Blocks:
        """P."""
        return Blocks.of(self.kernel, self.samples, self.method)

    @property
    def gamma(self) -> float:
        """eta * max_i ||K_i||."""
        return self.blocks.gamma

    @property
    def kappa(self) -> float:
        """Eq. (14)."""
        return self.blocks.kappa

    def step(self, f: Array, y: Array) -> Array:
        """One round: f_t(x) from f_{t-1}(x) at the training points, [N] (Proposition 3)."""
        return np.asarray(f + self.method.eta * self.gram.matmul(self.blocks.apply(y - f)), dtype=np.float64)

    def rounds(self, y: npt.ArrayLike, start: npt.ArrayLike | None = None) -> Iterator[Array]:
        """f_0(x), f_1(x), ... without end; each costs one product with K. See `trajectory` for the closed form."""
        targets = self.samples.values(y)
        f = np.zeros_like(targets) if start is None else self.samples.values(start, "start")
        while True:
            yield f
            f = self.step(f, targets)
