"""From a module to its Jacobian, kernel and products, within a budget of memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, nn
from torch.func import functional_call

from parley.algorithms.ntk.jacobian.blocks import Outer, Rows
from parley.algorithms.ntk.jacobian.factors import BUDGET, Jacobian
from parley.algorithms.ntk.jacobian.trace import block_of, check_mode, rest_of, run, sensitivities, trainable
from parley.core.errors import InputError
from parley.core.tree import Tree


def jacobian(
    module: nn.Module,
    weights: Mapping[str, Tensor],
    x: Tensor,
    names: Collection[str] | None = None,
    budget: int = BUDGET,
) -> Jacobian:
    """The Jacobian at samples x [n, ...] with respect to `names`, by default all trainable parameters.

    Its size is that of its factors; what is needed on the way stays within `budget` bytes where one sample does.
    """
    return Jacobian.cat([part for part, _ in _parts(module, weights, x, names, budget)])


def linearised(
    module: nn.Module, weights: Mapping[str, Tensor], x: Tensor, budget: int = BUDGET
) -> tuple[Jacobian, Tensor]:
    """The Jacobian and the outputs [n, outputs], in one pass."""
    parts, outputs = zip(*_parts(module, weights, x, None, budget), strict=True)
    return Jacobian.cat(parts), torch.cat(outputs)


def kernel(
    module: nn.Module, weights: Mapping[str, Tensor], x: Tensor, *, full: bool = False, budget: int = BUDGET
) -> Tensor:
    """The empirical neural tangent kernel at x: averaged over outputs, [n, n], or full, [n outputs, n outputs].

    Besides the kernel it takes about `budget` bytes. Where the factors of all layers do not fit, some of the weights
    are taken at a time, each with passes through the network of their own.
    """
    weights = _all(module, weights)
    total: Tensor | None = None
    for share in _shares(module, weights, x, budget // 2):
        parts = [share.cut(part) for part, _ in _parts(module, weights, x, share.names, budget // 4)]
        block = Jacobian.cat(parts).kernel(full=full, budget=budget // 4)
        total = block if total is None else total.add_(block)
    assert total is not None
    return total


def vjp(module: nn.Module, weights: Mapping[str, Tensor], x: Tensor, r: Tensor, budget: int = BUDGET) -> Tree:
    """J'R of R [n, outputs] by one backward pass over some samples at a time."""
    check_mode(module)
    weights = _all(module, weights)
    total: Sequence[Tensor] | None = None
    names = trainable(module)
    for rows in _chunks(module, weights, x, budget):
        tracked = {n: weights[n].detach().requires_grad_() for n in names}
        with torch.enable_grad():
            f = functional_call(module, {**weights, **tracked}, (x[rows],))
        grads = torch.autograd.grad(f, list(tracked.values()), r[rows].reshape(f.shape), materialize_grads=True)
        total = grads if total is None else torch._foreach_add(list(total), list(grads))
    assert total is not None
    return dict(zip(names, total, strict=True))


def jvp(
    module: nn.Module, weights: Mapping[str, Tensor], x: Tensor, tree: Mapping[str, Tensor], budget: int = BUDGET
) -> Tensor:
    """J v of a tree of parameters, [n, outputs]: how the outputs change with the weights, to first order."""
    check_mode(module)
    weights = _all(module, weights)
    tracked = {n: weights[n].detach().requires_grad_() for n in tree}
    along = [tree[n].to(weights[n]) for n in tree]
    parts = []
    for rows in _chunks(module, weights, x, budget):
        with torch.enable_grad():
            f = functional_call(module, {**weights, **tracked}, (x[rows],))
            u = torch.zeros_like(f, requires_grad=True)
            # J'u is linear in u, and the gradient of <J'u, v> is J v.
            pulled = torch.autograd.grad(f, list(tracked.values()), u, create_graph=True, materialize_grads=True)
            inner = torch.stack([(g * v).sum() for g, v in zip(pulled, along, strict=True)]).sum()
        parts.append(torch.autograd.grad(inner, u)[0])
    return torch.cat(parts).reshape(len(x), -1)


def _all(module: nn.Module, weights: Mapping[str, Tensor]) -> Tree:
    """The given weights and buffers, and the module's own where it trains them."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    if unknown := next((name for name in weights if name not in tensors), None):
        raise InputError(f"weights has '{unknown}', which the module does not.")
    return {
        name: weights.get(name, value).detach()
        for name, value in tensors.items()
        if value.requires_grad or name in weights
    }


def _parts(
    module: nn.Module, weights: Mapping[str, Tensor], x: Tensor, names: Collection[str] | None, budget: int
) -> Iterator[tuple[Jacobian, Tensor]]:
    """The Jacobian of some samples at a time, with the outputs."""
    if not len(x):
        raise InputError("a Jacobian is at one sample at least.")
    weights = _all(module, weights)
    chosen = trainable(module) if names is None else [name for name in trainable(module) if name in names]
    if not chosen:
        raise InputError("the network has no trainable weights to take a Jacobian with respect to.")
    for rows in _chunks(module, weights, x, budget, chosen):
        outputs, seen = run(module, weights, x[rows], chosen)
        blocks: list[Outer | Rows] = []
        for layer, delta in zip(seen, sensitivities(outputs, seen), strict=True):
            blocks.append(block_of(layer, delta, weights))
        covered = {name for layer in seen for name in layer.names}
        if rest := [name for name in chosen if name not in covered]:
            blocks.append(rest_of(module, weights, x[rows], rest))
        yield Jacobian(tuple(blocks), outputs.shape[1]), outputs.detach()


def _chunks(
    module: nn.Module, weights: Mapping[str, Tensor], x: Tensor, budget: int, names: Collection[str] | None = None
) -> Iterator[slice]:
    """Samples whose passes through the network fit into the budget."""
    outputs, seen = run(module, weights, x[:1], trainable(module) if names is None else names)
    many = outputs.shape[1] if names is not None else 1
    # Activations, the graph with its copies, the sensitivities, and a convolution's patches and rows.
    numbers = sum(layer.a.numel() + (many + 4) * layer.z.numel() for layer in seen)
    numbers += max((_unfolded(layer.part, layer.z) + many * _own(layer.part) for layer in seen), default=0)
    if names is not None:
        numbers += many * sum(weights[n].numel() for n in names if n not in {m for s in seen for m in s.names})
    size = max(1, min(len(x), budget // max(1, numbers * outputs.element_size())))
    yield from (slice(start, min(start + size, len(x))) for start in range(0, len(x), size))


def _unfolded(part: nn.Module, z: Tensor) -> int:
    if not isinstance(part, nn.Conv2d):
        return 0
    return prod(part.kernel_size) * part.in_channels * prod(z.shape[2:])


def _own(part: nn.Module) -> int:
    return sum(p.numel() for p in part.parameters(recurse=False)) if not isinstance(part, nn.Linear) else 0


@dataclass(frozen=True)
class Share:
    """Weights whose part of the Jacobian is held at once: whole blocks, or entries `span` of a single one's rows."""

    names: tuple[str, ...]
    span: slice | None = None

    def cut(self, part: Jacobian) -> Jacobian:
        if self.span is None:
            return part
        blocks = tuple(
            replace(block, values=block.values[:, :, self.span].contiguous()) if isinstance(block, Rows) else block
            for block in part.blocks
        )
        return Jacobian(blocks, part.outputs)


def _shares(module: nn.Module, weights: Mapping[str, Tensor], x: Tensor, budget: int) -> Sequence[Share]:
    """The weights in as few shares as the budget allows."""
    [(share, _)] = list(_parts(module, weights, x[:1], None, budget))
    shares: list[Share] = []
    names: tuple[str, ...] = ()
    used = 0
    for block in share.blocks:
        held = [block.a, block.delta] if isinstance(block, Outer) else [block.values]
        size = sum(tensor.numel() * tensor.element_size() for tensor in held) * len(x)
        if isinstance(block, Rows) and size > budget:
            width = max(1, int(block.values.shape[2] * budget / size))
            spans = range(0, block.values.shape[2], width)
            shares += [Share(tuple(block.forms), slice(s, s + width)) for s in spans]
            continue
        if names and used + size > budget:
            shares.append(Share(names))
            names, used = (), 0
        names, used = (*names, *block.forms), used + size
    return [*shares, Share(names)] if names else shares
