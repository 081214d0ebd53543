"""One-shot federated ridge regression on features: AFL (He et al., CVPR 2025) and Fed3R (Fani et al., ICML 2024).

    client   send G_i = Phi_i'Phi_i and B_i = Phi_i'Y_i, once
    server   G <- G + sum_i G_i,  B <- B + sum_i B_i;   W' = (G + penalty I)^-1 B

which is the minimiser of sum_ij ||y_ij - W phi(x_ij)||^2 + penalty ||W||^2 over the samples of all clients that have
answered, exactly, for any partition: one round with all clients suffices. A client that was absent adds its sums in a
later cohort; no client is asked twice. phi(x) is the input of the network's last dense layer at its initial weights:
the inputs of a linear model, the map of the model "features", the penultimate layer of a network (pre-trained, or
random). Classes are one-hot targets. A bias joins as a feature 1 that is not penalised. Everything is float64.

The sums SHOW A CLIENT'S DATA where it has few samples: B_i holds the sum of phi(x) over each class, which of a class
with a single sample is phi(x) itself, and of a linear model x itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import LinAlgError, cho_factor, cho_solve, pinvh
from torch import Tensor
from torch.nn import functional as F

from parley.algorithms.exchange import Reply, ask, exchange
from parley.algorithms.protocol import Algorithm, Cohort, Contexts, Learned, Needs, Questions, algorithm
from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.threads import one_thread
from parley.core.tree import Tree, add, zeros_like
from parley.theory.kernel.points import check_finite
from parley.theory.theta import Array
from parley.training.last_layer import features, last_layer
from parley.training.stack import Data
from parley.training.task import Task


@algorithm("ridge")
@dataclass(frozen=True)
class Ridge(Algorithm):
    """One-shot ridge regression (AFL, Fed3R): the exact pooled solution for a network's last layer, in one round.

    The rest of the network stays as it begins. More rounds only add clients that were not asked or did not answer.
    """

    penalty: float = 1.0
    """Of ||W||^2 beside the sum of all squared errors (lambda); 0 gives the smallest of the least squares solutions."""
    scale: float = 1.0
    """Factor on W in the network: outputs of 0 and 1 are too close together for cross-entropy to start from."""

    def __post_init__(self) -> None:
        if self.penalty < 0 or self.scale <= 0:
            raise InputError(f"ridge: penalty must be at least 0, not {self.penalty}, and scale above 0.")

    @property
    def needs(self) -> Needs:
        return Needs(cpu=True)

    def init(self, task: Task, key: Key) -> State:
        if not task.info.vocabulary:  # a model that does not fit is refused before anybody is asked
            features(task, torch.from_numpy(key.numpy().standard_normal((2, *task.info.shape))))
        head = last_layer(task.network)
        head_parameters = {name: value for name, value in task.initial().items() if name in (head.weight, head.bias)}
        return State.of(model=head_parameters, sums=zeros_like(_empty(task)), joined="[]")

    # --- the server ---

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Questions:
        joined = json.loads(str(state.scalars["joined"]))
        new = [client for client in cohort.ids if client not in set(joined)]
        if new:
            replies = yield ask(self.client, dict.fromkeys(new, Message()))
            sums = add(state["sums"], replies.sum("sums")) if len(replies) else state["sums"]
            joined = sorted([*joined, *replies])
            state = State.of(model=self._head(task, sums), sums=sums, joined=json.dumps(joined))
        return state, {"joined": len(joined), "missing": task.population - len(joined)}

    def _head(self, task: Task, sums: Tree) -> Tree:
        """The last layer with the solution for these sums."""
        head = last_layer(task.network)
        W = torch.from_numpy(self.scale * self.solution(task, sums))
        form = task.form
        parts = {head.weight: W[: head.inputs].T}
        if head.bias is not None:
            parts[head.bias] = W[head.inputs]
        return {name: value.to(form[name][0]).contiguous() for name, value in parts.items()}  # type: ignore[index]

    def solution(self, task: Task, sums: Tree) -> Array:
        """W', [d, outputs]; the last row is the bias, where there is one."""
        d = len(sums["cross"])
        G = np.zeros((d, d))
        G[np.triu_indices(d)] = sums["gram"].numpy()
        G += np.triu(G, 1).T
        penalised = np.arange(d) < last_layer(task.network).inputs
        G[np.diag_indices(d)] += self.penalty * penalised
        with one_thread():
            if self.penalty == 0:
                return np.asarray(pinvh(G) @ sums["cross"].numpy())
            try:
                return np.asarray(cho_solve(cho_factor(G), sums["cross"].numpy()))
            except LinAlgError:
                raise InputError(
                    f"ridge: the penalty {self.penalty:g} is too small for these features; raise it."
                ) from None

    # --- the client ---

    @exchange(
        form=lambda self, task, message: Form.of(sums=Form.like(_empty(task))),
        accepts=lambda self, task, message: Form(),
        reads="sum",
        stack=False,
    )
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        phi, y = features(task, data.x), targets(task, data.y)
        check_finite(phi.numpy(), "its features")
        if last_layer(task.network).bias is not None:
            phi = torch.cat([phi, phi.new_ones(len(phi), 1)], 1)
        upper = torch.triu_indices(phi.shape[1], phi.shape[1])
        gram = (phi.T @ phi)[upper[0], upper[1]]
        return Reply(Message.of(sums={"gram": gram, "cross": phi.T @ y}))

    # --- the network ---

    def learned(self, task: Task) -> Learned:
        return WithLastLayer(task)


class WithLastLayer(Learned):
    """The network as it begins, under the solution."""

    def weights(self, message: Message, memory: Memory | None = None) -> Tree:
        return {**self.task.initial(), **self.task.initial_buffers(), **message["model"]}


def targets(task: Task, y: Tensor) -> Tensor:
    """[n, outputs] in float64: values, or one-hot classes."""
    if task.info.kind == "regression":
        values = y.double().reshape(len(y), task.info.outputs)
        check_finite(values.numpy(), "its targets")
        return values
    if y.ndim != 1:
        raise InputError("ridge needs one class or value a sample, not one at every position.")
    return F.one_hot(y, task.info.outputs).double()


def _empty(task: Task) -> Tree:
    """Sums over no samples: the upper triangle of G, row by row, and B."""
    head = last_layer(task.network)
    d = head.inputs + (head.bias is not None)
    return {"gram": torch.empty(d * (d + 1) // 2).double(), "cross": torch.empty(d, task.info.outputs).double()}
