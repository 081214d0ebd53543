"""Search for inputs whose gradients, or Jacobians, are those that the server received.

    dlg       Deep leakage from gradients (Zhu et al., 2019): L-BFGS on ||g(x, y) - g||^2 over inputs and soft labels
    cosine    Inverting gradients (Geiping et al., 2020): Adam by signs on 1 - cos(g(x, y), g) + tv TV(x), labels known

`Target.view` is what the server would have received of a guess: the gradient, or the Jacobian, seen through what it
knows of the channels (entries that were never sent are not compared; a projection is applied to the guess as well).
Everything is float64, from a key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from parley.core.key import Key

View = Callable[[Tensor, Tensor], Tensor]
"""Inputs [n, ...] and targets (probabilities [n, classes], or numbers) -> one vector, differentiable."""


@dataclass(frozen=True)
class Target:
    """What was received, and how a guess would look."""

    received: Tensor
    """One vector."""
    view: View
    shape: tuple[int, ...]
    """Of the inputs, [n, ...]."""
    classes: int | None
    """Of soft labels; None for targets that are numbers, `outputs` a sample."""
    outputs: int = 1
    labels: Tensor | None = None
    """What was found out about the targets before: classes [n], or numbers."""
    span: tuple[float, float] = (-1.0, 1.0)
    """Between which values inputs lie, as everybody knows of pixels."""


@dataclass(frozen=True)
class Effort:
    """How long an attacker tries."""

    restarts: int = 2
    """Random starts; the one that matches best counts."""
    dlg_steps: int = 150
    """Iterations of L-BFGS."""
    cosine_steps: int = 300
    """Steps of Adam."""
    tv: float = 1e-3
    """Weight of the total variation."""


_MATCHED, _ALIGNED = 1e-8, 0.01
"""Losses of the two searches at which nothing is left to find."""
_CERTAIN = 5.0
"""How far above the others the logit of a label begins that was found before."""


@dataclass(frozen=True)
class Rebuilt:
    """The best guess, and how far what it would have sent is from what was received."""

    x: Tensor
    targets: Tensor
    """Classes [n], or numbers."""
    loss: float


def dlg(target: Target, effort: Effort, key: Key) -> Rebuilt:
    """Deep leakage: inputs and labels together.

    Where labels were found before, the first start is from them (Zhao et al., 2020); the others know nothing.
    """
    scale = target.received.square().sum().clamp(min=torch.finfo(torch.float64).tiny)
    return _best(effort, _MATCHED, lambda number: _dlg_once(target, effort, key.fold("start", number), scale, number))


def _dlg_once(target: Target, effort: Effort, key: Key, scale: Tensor, number: int) -> Rebuilt:
    x, free = _start(target, key)
    if number == 0 and target.labels is not None and target.classes is not None:
        free = _CERTAIN * torch.nn.functional.one_hot(target.labels, target.classes).to(free)
    free.requires_grad_()
    search = torch.optim.LBFGS(
        [x, free],
        lr=1.0,
        max_iter=effort.dlg_steps,
        history_size=50,
        line_search_fn="strong_wolfe",
        tolerance_grad=1e-12,
        tolerance_change=1e-14,
    )
    best: list[Rebuilt] = []

    def closure() -> Tensor:
        search.zero_grad()
        loss = (target.view(x, _targets(target, free)) - target.received).square().sum() / scale
        loss.backward()
        if not best or float(loss.detach()) < best[0].loss:
            best[:] = [Rebuilt(x.detach().clone(), _labels(target, free.detach()), float(loss.detach()))]
        return loss

    search.step(closure)
    return best[0] if best else Rebuilt(x.detach(), _labels(target, free.detach()), float("inf"))


def cosine(target: Target, effort: Effort, key: Key) -> Rebuilt:
    """Inverting gradients: the direction only, which clipping does not change; labels as they were found before."""
    return _best(effort, _ALIGNED, lambda number: _cosine_once(target, effort, key.fold("start", number)))


def _best(effort: Effort, enough: float, start: Callable[[int], Rebuilt]) -> Rebuilt:
    """The best of several starts; no more of them once one has come down to `enough`."""
    best = start(0)
    for number in range(1, effort.restarts):
        if best.loss <= enough:
            break
        best = min(best, start(number), key=lambda candidate: candidate.loss)
    return best


def _cosine_once(target: Target, effort: Effort, key: Key) -> Rebuilt:
    x, free = _start(target, key)
    low, high = target.span
    known = target.labels is not None
    if target.labels is not None:
        free = target.labels if target.classes is None else torch.nn.functional.one_hot(target.labels, target.classes)
        free = free.to(torch.float64)
    else:
        free.requires_grad_()
    moving = [x] if known else [x, free]
    search = torch.optim.Adam(moving, lr=0.1 * (high - low) / 2)
    ends = [int(effort.cosine_steps * share) for share in (3 / 8, 5 / 8, 7 / 8)]
    slower = torch.optim.lr_scheduler.MultiStepLR(search, ends, gamma=0.1)
    best = Rebuilt(x.detach().clone(), torch.zeros(len(x)), float("inf"))
    for _ in range(effort.cosine_steps):
        search.zero_grad()
        targets = free if known else _targets(target, free)
        seen = target.view(x, targets)
        match = 1 - torch.nn.functional.cosine_similarity(seen, target.received, dim=0, eps=1e-30)
        loss = match + effort.tv * total_variation(x)
        loss.backward()
        if float(loss.detach()) < best.loss:
            labels = target.labels if target.labels is not None else _labels(target, free.detach())
            best = Rebuilt(x.detach().clone(), labels, float(loss.detach()))
        if x.grad is not None:
            x.grad.sign_()
        search.step()
        slower.step()
        with torch.no_grad():
            x.clamp_(low, high)
    return best


def total_variation(x: Tensor) -> Tensor:
    """The mean size of the differences between neighbouring pixels; 0 for inputs that are no pictures."""
    if x.ndim < 4:
        return x.new_zeros(())
    return x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()


def _start(target: Target, key: Key) -> tuple[Tensor, Tensor]:
    """Noise in the middle of the inputs' range, and free targets."""
    draw = key.numpy()
    low, high = target.span
    x = torch.from_numpy(draw.standard_normal(target.shape)) * (high - low) / 6 + (high + low) / 2
    free = torch.from_numpy(draw.standard_normal((target.shape[0], target.classes or target.outputs)))
    return x.requires_grad_(), free


def _targets(target: Target, free: Tensor) -> Tensor:
    return free if target.classes is None else free.softmax(1)


def _labels(target: Target, free: Tensor) -> Tensor:
    return free if target.classes is None else free.argmax(1)
