"""NTK-FL: a round of training by the neural tangent kernel instead of local steps (Yue et al., Section 4.1).

    client   sends of a share beta of its samples the Jacobian J_m at w, the outputs f_m and the labels Y_m
    server   H = 1/d_2 sum_j J_j J_j'                             (6), on all samples of the round
             df/dt = -eta/N H (softmax f - Y), S_t = int_0^t (softmax f - Y)       cross-entropy
             df/dt = -eta/(N d_2) H (f - Y), S_t likewise                          mean squares (7), (9a)
             w_t = w - eta/N J'S_t  (mean squares: eta/(N d_2))                    (9b), (10)
    client   sends the loss of the network itself at each candidate w_t, summed over the same samples
    server   w <- w_t of the least loss                                            (11)

No Jacobian is ever written out: H is a sum over layers of products of Gram matrices, J'S one product with their factors
(`jacobian/`), and all t follow from one evolution (`evolution.py`). What is uploaded is another matter: the factored
form and the dense one SEND THE DATA, inputs and labels; top-k sends labels and what of the inputs is in the largest
entries. Statistics of BatchNorm stay as the model has them.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from parley.algorithms.exchange import Exchange, Question, Reply, ask, exchange
from parley.algorithms.ntk.evolution import Dynamics, Evolution, largest_eigenvalue
from parley.algorithms.ntk.jacobian import Jacobian, linearised
from parley.algorithms.ntk.uploads import GROUPS, Upload, form_of, received, sent
from parley.algorithms.protocol import Algorithm, Cohort, Contexts, Questions, Replies, algorithm
from parley.core.errors import InputError
from parley.core.form import Form, Number
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import Tree
from parley.training.losses import half_squares
from parley.training.stack import Data
from parley.training.task import Task

Select = Literal["clients", "validation", "server", "last"]
Samples = tuple[Jacobian, Tensor, Tensor]
"""The Jacobian, outputs [n, outputs] and labels of all samples of a round."""


@algorithm("ntk-fl")
@dataclass(frozen=True)
class NtkFL(Algorithm):
    """NTK-FL (Yue et al., 2022): training by the kernel of all clients' Jacobians. SENDS THE DATA.

    From factored or dense Jacobians of a dense first layer the server reads the inputs; labels it is sent always.
    """

    lr: float = 0.01
    """Step size of the gradient descent that is followed (eta)."""
    times: tuple[int, ...] = (100, 400, 800, 1200, 1600, 2000)
    """Numbers of descent steps t whose weights are candidates; each is sent to the clients unless `select` is 'last' or
    'server'."""
    loss: Literal["cross-entropy", "mse"] = "cross-entropy"
    """What is descended: cross-entropy, or the halved mean squares to one-hot labels or to targets."""
    kernel: Literal["averaged", "full"] = "averaged"
    """Averaged over outputs as (6) has it, or the exact one over samples and outputs."""
    dynamics: Dynamics = "flow"
    """'flow' (gradient flow), 'steps' (gradient descent) or, of mse, 'printed' (flow, summed as in (10))."""
    tolerance: float = 1e-3
    """Relative error that the integration allows."""
    share: float = 1.0
    """Share of its samples that a client uses in a round (beta)."""
    upload: Upload = "factored"
    """Form of the Jacobian: 'factored' (lossless, small; SENDS THE DATA), 'dense' (every entry; SENDS THE DATA) or
    'top-k' (the largest entries of every row)."""
    density: float = 0.1
    """With upload = 'top-k': entries of a row that are sent, as a share."""
    select: Select = "clients"
    """Who evaluates the candidates (11a): the same 'clients', 'validation' (clients not asked in the round), the
    'server' (if the upload has the inputs); 'last' takes the last."""
    validators: int = 5
    """With select = 'validation': how many clients judge."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "times", tuple(self.times))
        if not self.times or list(self.times) != sorted(set(self.times)) or self.times[0] < 1:
            raise InputError(f"times must be whole numbers that rise from 1 or more, not {list(self.times)}.")
        for name, value in (("share", self.share), ("density", self.density)):
            if not 0 < value <= 1:
                raise InputError(f"{name} must lie above 0 and be at most 1, not {value}.")
        for name, positive in (("lr", self.lr), ("tolerance", self.tolerance), ("validators", self.validators)):
            if not positive > 0:
                raise InputError(f"{name} must be above 0, not {positive}.")
        if self.dynamics == "printed" and self.loss == "cross-entropy":
            raise InputError("dynamics = 'printed' is (10), which is of mean squares: set loss = 'mse' too, or 'flow'.")
        if self.select == "server" and self.upload != "factored":
            raise InputError("select = 'server' needs the inputs, which only upload = 'factored' hands to the server.")

    def _discloses(self) -> tuple[str, ...]:
        """What of a client's samples its Jacobian shows."""
        return ("labels",) if self.upload == "top-k" else ("inputs", "labels")

    def exchanges(self) -> tuple[Exchange, ...]:
        every = super().exchanges()
        return every if self.select in ("clients", "validation") else tuple(e for e in every if e.name != "losses")

    def init(self, task: Task, key: Key) -> State:
        self.check(task)
        return State.of(model=task.initial(), buffers=task.initial_buffers())

    def check(self, task: Task) -> None:
        """Refuse what the method cannot train."""
        task.network  # noqa: B018 (it must have one)
        if task.info.class_weights:
            raise InputError(
                "NTK-FL has losses of its own, without class weights; leave out preprocessing.class_weights."
            )
        classes = task.info.kind != "regression"
        if self.loss == "cross-entropy" and not classes:
            raise InputError("NTK-FL's cross-entropy is of classes, and these data have targets: set loss = 'mse'.")
        if self.select == "server" and task.traits.dense is None:
            raise InputError("select = 'server' needs a chain of dense layers, whose factors have the inputs.")

    # --- the server ---

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Questions:
        message = Message.of(model=state["model"], buffers=state.get("buffers"))
        replies = yield ask(self.client, dict.fromkeys(cohort.ids, message))
        if not replies:
            return state
        return (yield from self.evolved(task, state, cohort, list(replies), self.gathered(task, replies), key))

    def evolved(
        self, task: Task, state: State, cohort: Cohort, answered: list[str], samples: Samples, key: Key
    ) -> Generator[Question, Replies, tuple[State, dict[str, float]]]:
        """The second half of a round: the candidates, and the best of them."""
        jac, f, y = samples
        candidates = self.candidates(task, state["model"], jac, f, y)
        losses = torch.zeros(len(self.times), dtype=torch.float64)
        if self.select == "server":
            losses += self._judged(task, candidates, state.get("buffers"), self._inputs(task, jac), y)
        elif self.select != "last":
            judges = self._judges(cohort, answered, key)
            asked = Message.of(candidates=candidates, buffers=state.get("buffers"), whole=self.select == "validation")
            judged = yield ask(self.losses, dict.fromkeys(judges, asked))
            losses = torch.stack([reply.tensor("losses") for reply in judged.values()] or [losses]).sum(0)
        best = len(self.times) - 1 if self.select == "last" else int(losses.argmin())
        chosen = {name: values[best].clone() for name, values in candidates.items()}
        return state.replace(model=chosen), {"t": float(self.times[best])}

    def gathered(self, task: Task, replies: Replies) -> Samples:
        """The Jacobian, outputs and labels of all samples of the round."""
        jac = Jacobian.cat([received(reply, task) for reply in replies.values()])
        f, y = (torch.cat([reply["samples"][n] for reply in replies.values()]) for n in ("outputs", "labels"))
        return jac, f, y

    def candidates(self, task: Task, w: Tree, jac: Jacobian, f: Tensor, y: Tensor) -> Tree:
        """w_t of all times, with a row for each."""
        evolution = self.evolution(jac, f, y)
        bound = largest_eigenvalue(evolution.product, f)
        self._stable(bound * evolution.rate)
        moved = jac.vjp(evolution.cumulative(self.times, bound))
        return {name: torch.sub(value, moved[name], alpha=evolution.rate) for name, value in w.items()}

    def evolution(self, jac: Jacobian, f: Tensor, y: Tensor) -> Evolution:
        """How the outputs at all samples evolve."""
        classes = self.loss == "cross-entropy"
        rate = self.lr / len(f) if classes else self.lr / f.numel()
        if self.kernel == "full":
            # J (J'R) by the factors takes no more than a product with the averaged kernel, and no kernel.
            return Evolution(
                lambda r: jac.jvp(jac.vjp(r)), f, targets(y, f), rate, classes, self.dynamics, self.tolerance
            )
        h = jac.kernel()
        return Evolution(lambda r: h @ r, f, targets(y, f), rate, classes, self.dynamics, self.tolerance)

    def _stable(self, step: float) -> None:
        """Descent must not diverge: eta lambda_max(H)/(N d_2) below 2, of cross-entropy eta lambda_max(H)/N below 4."""
        limit = 4 if self.loss == "cross-entropy" else 2
        if self.dynamics == "steps" and step >= limit:
            raise InputError(
                f"lr = {self.lr} times the kernel's largest eigenvalue is {step:.3g} here, at which gradient descent "
                f"diverges: set lr below {self.lr * limit / step:.2g}, or dynamics = 'flow'."
            )

    def _judges(self, cohort: Cohort, answered: list[str], key: Key) -> list[str]:
        if self.select == "clients":
            return answered
        others = [i for i in cohort.everyone if i not in set(cohort.ids)]
        if not others:
            raise InputError(
                "select = 'validation' asks clients outside the round, and all are in it: ask fewer a round."
            )
        chosen = key.fold("validators").numpy().choice(len(others), min(self.validators, len(others)), replace=False)
        return [others[int(i)] for i in sorted(chosen)]

    def _inputs(self, task: Task, jac: Jacobian) -> Tensor:
        """What entered the first layer."""
        first = next(iter(task.form))
        return next(block.a for block in jac.blocks if first in block.forms).squeeze(1)  # type: ignore[union-attr]

    # --- the client ---

    @exchange(
        form=lambda self, task, message: self._samples_form(task),
        accepts=lambda self, task, message: Form.of(model=task.form, buffers=task.buffer_form),
        reorder=(*GROUPS, "samples"),
        discloses=lambda self: self._discloses(),
        stack=False,
    )
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        x, y = self.drawn(data, context)
        jac, f = self.linearised(task, message, x)
        groups = sent(jac, self.upload, self.density, task.form)
        return Reply(
            Message.of(**groups, samples={"outputs": f, "labels": y}), observed={"loss": self._loss(f, y).mean()}
        )

    @exchange(
        form=lambda self, task, message: Form.of(losses=(torch.float64, (len(self.times),))),
        accepts=lambda self, task, message: self._candidates_form(task).with_scalars(whole=self._whole),
        asks=lambda self: "everyone" if self.select == "validation" else "cohort",
        stack=False,
    )
    def losses(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """The summed loss of every candidate: on the samples of the first exchange, or on all."""
        x, y = (data.x, data.y) if message.scalars["whole"] else self.drawn(data, context)
        return Reply(Message.of(losses=self._judged(task, message["candidates"], message.get("buffers"), x, y)))

    def drawn(self, data: Data, context: Contexts) -> tuple[Tensor, Tensor]:
        """The samples of this round, the same whenever they are asked for in it."""
        if self.share == 1:
            return data.x, data.y
        count = max(1, round(self.share * len(data)))
        chosen = torch.randperm(len(data), generator=context.round_key.fold("subsample").torch())[:count].sort().values
        return data.x[chosen.to(data.x.device)], data.y[chosen.to(data.y.device)]

    def linearised(self, task: Task, message: Message, x: Tensor) -> tuple[Jacobian, Tensor]:
        """J and f at x, of the network as it predicts."""
        module, training = task.network, task.network.training
        module.eval()
        try:
            return linearised(module, {**task.fixed, **message["model"], **message.get("buffers")}, x)
        finally:
            module.train(training)

    def _judged(self, task: Task, candidates: Tree, buffers: Tree, x: Tensor, y: Tensor) -> Tensor:
        """The summed loss of the network at every candidate, float64 [t]; a candidate that fails is infinitely bad."""
        sums = []
        for k in range(len(self.times)):
            with torch.no_grad():
                f = task.predictor({name: values[k] for name, values in candidates.items()}, buffers)(x)
            sums.append(self._loss(f.reshape(len(x), -1), y).double().sum())
        return torch.stack(sums).nan_to_num(nan=float("inf"), posinf=float("inf")).cpu()

    def _loss(self, f: Tensor, y: Tensor) -> Tensor:
        """l of every sample (3)."""
        if self.loss == "cross-entropy":
            return F.cross_entropy(f, y, reduction="none")
        return half_squares(f, targets(y, f)) / f.shape[1]

    @property
    def _whole(self) -> Number:
        """Whether candidates are judged on all samples, which the settings say."""
        return Number(bool, *(int(self.select == "validation"),) * 2)

    def _candidates_form(self, task: Task) -> Form:
        rows = {name: (spec[0], (len(self.times), *spec[1])) for name, spec in task.form.items() if spec is not None}
        return Form.of(candidates=rows, buffers=task.buffer_form)

    def _samples_form(self, task: Task) -> Form:
        outputs = (next(iter(task.initial().values())).dtype, (None, task.info.outputs))
        return Form.of(**form_of(task, self.upload, self.density), samples={"outputs": outputs, "labels": None})


def targets(y: Tensor, f: Tensor) -> Tensor:
    """Y [n, outputs]: one-hot of classes, or the targets."""
    if y.dtype == torch.int64 and y.ndim == 1:
        return F.one_hot(y, f.shape[1]).to(f.dtype)
    return y.reshape(f.shape).to(f.dtype)
