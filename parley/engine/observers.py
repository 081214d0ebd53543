"""Listeners that measure how clients disagree; each costs something only while it listens (simulation only).

    run = pl.train(FedAvg(), federation, ..., listeners=[ConsensusDistance(), Drift(), GradientDissimilarity()])
    run.plot("consensus/stem")

Their metrics are part of every round's record, so they are stored, exported and compared like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from torch import Tensor, nn

from parley.engine.listeners import Listener, listeners
from parley.models.layers import layers
from parley.store.records import Metric

if TYPE_CHECKING:
    from parley.engine.run import Run

__all__ = [
    "ConsensusDistance",
    "ConsensusWithStatistics",
    "Drift",
    "GradientDissimilarity",
    "WeakLearning",
    "listeners",
]

Seen = Mapping[str, Mapping[str, Tensor]]
Groups = Mapping[str, tuple[str, ...]]
"""Parameter names by label."""


def layer_groups(module: nn.Module) -> Groups:
    """The parameters of every layer."""
    return {layer.name: layer.parameters for layer in layers(module) if layer.parameters}


def layer_groups_with_statistics(module: nn.Module) -> Groups:
    """The parameters and the running statistics of every layer."""
    return {layer.name: layer.parameters + layer.buffers for layer in layers(module) if layer.parameters}


class _Grouped(Listener):
    def __init__(self, groups: Groups | Callable[[nn.Module], Groups] = layer_groups) -> None:
        """`groups`: parameters that are measured together, by default each layer's."""
        self._given = groups
        self._groups: Groups = {}

    def start(self, run: Run, rounds: int) -> None:
        self._groups = self._given(run.task.network) if callable(self._given) else self._given


@listeners("consensus-distance")
class ConsensusDistance(_Grouped):
    """1/K sum_k ||theta_k - mean||^2 per parameter by layer (Gholami and Seferoglu, Figure 1) and in all.

    Metrics `consensus/<layer>` and `consensus`; K counts the clients of the round.
    """

    wants: tuple[str, ...] = ("model",)
    name = "consensus"

    def observe(self, number: int, observed: Seen) -> dict[str, Metric]:
        metrics, total, size = {}, 0.0, 0
        for label, names in self._groups.items():
            squares, entries = 0.0, 0
            for name in names:
                models = [seen[f"model/{name}"].double() for seen in observed.values() if f"model/{name}" in seen]
                if models:
                    mean = sum(models[1:], models[0]) / len(models)
                    squares += math.fsum(float((model - mean).square().sum()) for model in models) / len(models)
                    entries += mean.numel()
            if entries:
                metrics[f"{self.name}/{label}"] = Metric(squares / entries)
            total, size = total + squares, size + entries
        return metrics | ({self.name: Metric(total / size)} if size else {})


@listeners("consensus-with-statistics")
class ConsensusWithStatistics(ConsensusDistance):
    """The same over a layer's parameters and running statistics together: `consensus-with-statistics/<layer>`."""

    wants = ("model", "statistics")
    name = "consensus-with-statistics"

    def __init__(self, groups: Groups | Callable[[nn.Module], Groups] = layer_groups_with_statistics) -> None:
        super().__init__(groups)


@listeners("drift")
class Drift(_Grouped):
    """||y_k - x|| of every client's local training, by layer and in all: metrics `drift/<layer>` and `drift`."""

    wants = ("drift",)

    def observe(self, number: int, observed: Seen) -> dict[str, Metric]:
        metrics = {}
        every = tuple(name for names in self._groups.values() for name in names)
        for label, names in [*[(f"drift/{label}", names) for label, names in self._groups.items()], ("drift", every)]:
            by_client = {
                client: math.sqrt(math.fsum(float(seen[f"drift/{name}"]) for name in names))
                for client, seen in observed.items()
                if all(f"drift/{name}" in seen for name in names)
            }
            if by_client:
                metrics[label] = Metric(math.fsum(by_client.values()) / len(by_client), by_client)
        return metrics


@listeners("gradient-dissimilarity")
class GradientDissimilarity(Listener):
    """(B, G) of 1/K sum_k ||grad f_k(x)||^2 <= G^2 + B^2 ||grad f(x)||^2, from full gradients at the server's models.

    Each round gives one inequality: metric `dissimilarity/B` is the B it needs with G = 0, `dissimilarity/G` the G it
    needs with B = 1 (the spread of the gradients). `bound(B)` is the smallest G that fits all rounds seen.
    """

    wants = ("gradient",)

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []
        """(mean of the squared norms, squared norm of the mean), round by round."""

    def observe(self, number: int, observed: Seen) -> dict[str, Metric]:
        clients = [
            {name: value.double() for name, value in seen.items() if name.startswith("gradient/")}
            for seen in observed.values()
        ]
        clients = [gradients for gradients in clients if gradients]
        if not clients:
            return {}
        mean_square = math.fsum(float(g.square().sum()) for gradient in clients for g in gradient.values()) / len(
            clients
        )
        means = [sum([gradient[n] for gradient in clients[1:]], clients[0][n]) / len(clients) for n in clients[0]]
        square_mean = math.fsum(float(mean.square().sum()) for mean in means)
        self.points.append((mean_square, square_mean))
        B = math.sqrt(mean_square / square_mean) if square_mean > 0 else math.inf
        G = math.sqrt(max(0.0, mean_square - square_mean))
        return {"dissimilarity/B": Metric(B), "dissimilarity/G": Metric(G)}

    def bound(self, B: float = 1.0) -> float:
        """The smallest G such that (B, G) fits every round seen."""
        return math.sqrt(max([0.0, *[mean - B**2 * square for mean, square in self.points]]))


@listeners("weak-learning")
class WeakLearning(Listener):
    """What clients' weak learners achieve (Shen et al.): the least gamma, the largest norms, over a round's steps.

    Metrics `weak/gamma`, and `weak/gradient`, `query`, `learner`, `residual` and `function` in the oracle's norm; with
    the Lipschitz oracle also `weak/gamma/values` (14), `weak/gamma/constant` (15), and B and L of Theorem 4.4.
    """

    _SEEN = (
        "gamma",
        "gamma/values",
        "gamma/constant",
        "gradient",
        "query",
        "learner",
        "residual",
        "function",
        "B",
        "L",
    )

    def observe(self, number: int, observed: Seen) -> dict[str, Metric]:
        metrics = {}
        for name in self._SEEN:
            worst = min if name.startswith("gamma") else max
            by_client = {
                client: worst(seen[name].flatten().tolist()) for client, seen in observed.items() if name in seen
            }
            if by_client:
                metrics[f"weak/{name}"] = Metric(worst(by_client.values()), by_client)
        return metrics
