"""CP-NTK-FL: NTK-FL on projected inputs, sparsified, shuffled by its own party (Yue et al., Section 4.2, Figure 2).

    key server    seals the seed rho of the projection to each client's public key, once
    client        Z = X P, P ~ N(0, 1/d_1)^{d_1 x d_1'} from rho; a share beta of the samples; per sample one row
                  (sparsified J_i, f_i, y_i), tagged; all rows sealed for the shuffler
    shuffler      opens them, permutes J, f and Y in synchrony, forwards rows without owners
    server        NTK-FL's evolution (9), (11) on what it received: a joint permutation of rows leaves it as it is

Figure 2's entries of P have variance 1; divided by d_1, projected inputs have the size of standardised ones. The server
(the aggregator) knows neither the seed nor whose rows are whose (see `parley.algorithms.parties`). ANY CLIENT THAT
COLLUDES WITH IT REVEALS THE PROJECTION, which all clients share; and whoever evaluates the model needs it: clients do,
unless `reveal` tells the server.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod

import torch
from torch import Tensor, nn

from parley.algorithms.exchange import Reply, exchange
from parley.algorithms.ntk.ntk_fl import NtkFL, Samples
from parley.algorithms.ntk.uploads import Upload, form_of, received
from parley.algorithms.parties import (
    Parties,
    Shared,
    kept_secret,
    packed,
    sealed_form,
    sealed_rows,
    seed_of,
    unpacked,
    width_of,
)
from parley.algorithms.protocol import Cohort, Contexts, Learned, Questions, algorithm
from parley.core.context import Context, Secrets
from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.gaussian import gaussian
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.sealed import KEY
from parley.core.tree import Tree
from parley.data import ClientData
from parley.training.stack import Data
from parley.training.task import Task


@algorithm("cp-ntk-fl")
@dataclass(frozen=True)
class CpNtkFL(Parties, NtkFL):
    """CP-NTK-FL (Yue et al., 2022): NTK-FL on projected inputs, with a key server and a shuffler.

    Any client that colludes with the server reveals the projection. Needs the extra `parties`.
    """

    projection: int = 100
    """Numbers that an input is projected to (d_1'), at most as many as it has; 0 leaves inputs as they are."""
    upload: Upload = "top-k"
    """Form of a row's Jacobian: 'top-k' (its largest entries), 'dense' or 'factored'; the last two show projected
    inputs."""
    reveal: bool = False
    """Tell the server the projection, so that it can evaluate on the central test set. It is no secret then."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.projection < 0:
            raise InputError(f"projection must be at least 0, not {self.projection}.")

    def _discloses(self) -> tuple[str, ...]:
        return ("labels",) if self.projection and not self.reveal else super()._discloses()

    def init(self, task: Task, key: Key) -> State:
        return super().init(self.inner(task), key)

    def inner(self, task: Task) -> Task:
        """The task on projected inputs."""
        return projected_task(task, self.projection) if self.projection else task

    # --- the server ---

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Questions:
        inner = self.inner(task)
        form = self.row_form(inner)
        message = Message.of(model=state["model"], buffers=state.get("buffers"))
        gathered = yield from self.shuffled_rows(cohort, number, message, width_of(form))
        samples = self.read(inner, unpacked(gathered.rows, form))
        new, metrics = yield from self.evolved(inner, state, cohort, list(gathered.clients), samples, key)
        if gathered.dealt.tensors.get("seed") is not None:
            new = new.replace(seed=gathered.dealt.tensor("seed"))
        return new, metrics | gathered.metrics

    def read(self, inner: Task, rows: Tree) -> Samples:
        """J, f and Y from rows."""
        groups = Message(rows)
        samples = groups["samples"]
        return received(groups, inner), samples["outputs"], samples["labels"]

    def row_form(self, inner: Task) -> Form:
        """Of one sample."""
        dtype = next(iter(inner.initial().values())).dtype
        outputs = inner.info.outputs
        labels = (dtype, (outputs,)) if inner.info.kind == "regression" else (torch.int64, ())
        whole = Form.of(**form_of(inner, self.upload, self.density), samples={"outputs": (dtype, (outputs,))})
        rows = {n: (s[0], s[1] if n.startswith("samples/") else s[1][1:]) for n, s in whole.items() if s is not None}
        return Form(rows | {"samples/labels": labels})

    # --- the client ---

    @exchange(
        form=lambda self, task, message: sealed_form(),
        accepts=lambda self, task, message: self._row_request(task),
        discloses=lambda self: self._discloses(),
        stack=False,
    )
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        assert isinstance(context, Context)
        inner, shared = self.inner(task), kept_secret(memory)
        reply = super().client(inner, message, memory, self._projected(task, data, shared), context)
        form, tensors = self.row_form(inner), reply.message.tensors
        if inner.info.kind == "regression":
            labels = tensors["samples/labels"].reshape(-1, inner.info.outputs).to(tensors["samples/outputs"].dtype)
            tensors = tensors | {"samples/labels": labels}
        rows = packed({name: tensors[name] for name in form})
        return Reply(sealed_rows(rows, shared, message.tensor("shuffler"), context), observed=reply.observed)

    @exchange(
        accepts=lambda self, task, message: self._candidates_form(self.inner(task)).with_scalars(whole=self._whole),
        like=NtkFL.losses,
    )
    def losses(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """As NTK-FL's, on projected inputs."""
        projected = self._projected(task, data, kept_secret(memory))
        return super().losses(self.inner(task), message, memory, projected, context)

    def _projected(self, task: Task, data: Data, shared: Shared) -> Data:
        assert isinstance(data, ClientData)
        return ClientData(self.project(task, data.x, shared.seed), data.y) if self.projection else data

    def project(self, task: Task, x: Tensor, seed: bytes) -> Tensor:
        """Z = X P, [n, d_1']."""
        inputs = prod(task.info.shape)
        return x.flatten(1) @ projection_matrix(seed, inputs, min(self.projection, inputs)).to(x)

    def row_width(self, task: Task) -> int:
        return width_of(self.row_form(self.inner(task)))

    def _row_request(self, task: Task) -> Form:
        inner = self.inner(task)
        return Form.of(model=inner.form, buffers=inner.buffer_form, shuffler=(torch.uint8, (KEY,)))

    # --- parties ---

    @exchange(like=Parties.deal)
    def deal(self, task: Task, message: Message, memory: Memory, context: Context) -> Reply:
        """The key server; with `reveal` it tells the server the seed."""
        reply = super().deal(task, message, memory, context)
        if not (self.reveal and self.projection):
            return reply
        return replace(reply, message=reply.message.replace(seed=seed_of(context)))

    # --- the model ---

    def learned(self, task: Task) -> Learned:
        if not self.projection:
            return super().learned(task)
        # The model says nothing about inputs that are not projected, which takes a client's memory, or the seed.
        return OnProjections(task, personal=not self.reveal, read=_with_seed, method=self)


def _with_seed(state: State, since: int | None) -> Message:
    sent = Message.of(model=state["model"], buffers=state.get("buffers"))
    return sent.replace(seed=state.tensor("seed")) if "seed" in state.tensors else sent


@dataclass(frozen=True)
class OnProjections(Learned):
    """A network of projected inputs."""

    method: CpNtkFL = field(kw_only=True)

    def weights(self, message: Message, memory: Memory | None = None) -> None:
        return None

    def check(self, message: Message, memory: Memory | None = None) -> None:
        rest = message.holding({n: v for n, v in message.tensors.items() if n != "seed"}, message.scalars)
        Learned(self.method.inner(self.task)).check(rest)

    def outputs(self, message: Message, memory: Memory | None, x: Tensor, before: Tensor | None = None) -> Tensor:
        """Without the seed every class is as likely as the others."""
        if "seed" in message.tensors:
            seed = bytes(message.tensor("seed").numpy().tobytes())
        elif memory is not None and "shared" in memory.tensors:
            seed = kept_secret(memory).seed
        else:
            return torch.zeros(len(x), self.task.info.outputs, dtype=x.dtype, device=x.device)
        network = self.method.inner(self.task).predictor({**message["model"], **message.get("buffers")})
        return network(self.method.project(self.task, x, seed))

    def module(self, message: Message, memory: Memory | None = None) -> None:
        raise InputError("CP-NTK-FL's network takes projected inputs, so there is no module of inputs to take out.")


@lru_cache(maxsize=4)
def projection_matrix(seed: bytes, inputs: int, width: int) -> Tensor:
    """P [d_1, d_1'] in float64, from a cryptographic stream."""
    drawn: Tensor = gaussian(Secrets(seed), "projection", (inputs, width)) * inputs**-0.5
    return drawn


@lru_cache(maxsize=4)
def projected_task(task: Task, width: int) -> Task:
    """The same network with a first layer for `width` inputs, which starts like the one it takes the place of."""
    module = deepcopy(task.network)
    first = next((layer for layer in module.modules() if isinstance(layer, nn.Linear)), None)
    if first is None or task.traits.dense is None:
        raise InputError("CP-NTK-FL projects inputs of chains of dense layers; set projection = 0 for other networks.")
    inputs = first.in_features
    width = min(width, inputs)
    with torch.no_grad():
        first.weight = nn.Parameter(first.weight[:, :width] * (inputs / width) ** 0.5)
    first.in_features = width
    return replace(task, module=module, info=replace(task.info, shape=(width,), columns=(), scaling=None))
