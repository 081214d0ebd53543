"""Derivatives of a client's loss as a function of one flat vector, written out or along given directions.

Second derivatives are taken backwards twice: torch's forward mode has gaps, and importing it warns.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, jacrev, vmap

from parley.advise.objective import Array, Objective

_CHUNK = 16
"""Directions, or samples, that are differentiated at a time."""


class Derivatives:
    """A client's loss of one flat vector, differentiated as often as asked for."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.names = [name for name, p in objective.module.named_parameters() if p.requires_grad]

    def _losses(self, x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        parts = x.split([leaf.numel() for leaf in self.objective.leaves])
        tree = {
            name: part.view_as(leaf) for name, part, leaf in zip(self.names, parts, self.objective.leaves, strict=True)
        }
        outputs: Tensor = self.objective.loss(functional_call(self.objective.module, tree, (inputs,)), targets)
        return outputs

    def _mean(self, x: Tensor) -> Tensor:
        return self._losses(x, self.objective.data.x, self.objective.data.y).mean()

    def hessian(self, x: Array) -> Array:
        matrix = jacrev(grad(self._mean), chunk_size=_CHUNK)(torch.from_numpy(x)).detach().numpy()
        return np.asarray(matrix, dtype=np.float64) + self.objective.ridge * np.eye(len(x))

    def gradient(self, x: Array) -> Array:
        return self.objective.value_and_gradient(x)[1]

    def sample_gradients(self, x: Array, basis: Array | None = None) -> Array:
        """Of every sample, [n, d], or their coordinates along the columns of `basis` [d, r], [n, r]."""

        def one(at: Tensor, inputs: Tensor, target: Tensor) -> Tensor:
            return self._losses(at, inputs[None], target[None]).mean()

        at = torch.from_numpy(x)
        each = vmap(grad(one), in_dims=(None, 0, 0))
        size = len(self.objective.data) if basis is None else _CHUNK
        parts = []
        for begin in range(0, len(self.objective.data), size):
            rows = slice(begin, begin + size)
            part = each(at, self.objective.data.x[rows], self.objective.data.y[rows]).detach()
            parts.append(part if basis is None else part @ torch.from_numpy(basis))
        pull = self.objective.ridge * (x if basis is None else x @ basis)
        return np.asarray(torch.cat(parts).numpy(), dtype=np.float64) + pull

    def products(self, x: Array, directions: Array) -> Array:
        """The Hessian at x times each column of `directions` [d, r]."""
        at = torch.from_numpy(x)
        along = vmap(grad(lambda x, v: grad(self._mean)(x) @ v), in_dims=(None, 0), chunk_size=_CHUNK)
        rows = along(at, torch.from_numpy(np.ascontiguousarray(directions.T)))
        return np.asarray(rows.detach().numpy().T, dtype=np.float64) + self.objective.ridge * directions
