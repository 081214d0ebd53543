"""SCAFFOLD: what its variates are at every moment, whoever takes part, and that mistakes in them are noticed."""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps

import numpy as np
import pytest
import torch
from torch import nn

from parley.algorithms.averaging import scaffold as module
from parley.algorithms.averaging.local_sgd import Local
from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.averaging.scaffold import Scaffold
from parley.algorithms.protocol import Cohort
from parley.conformance.problem import QuadraticProblem, quadratic_problem, weights_of
from parley.core.context import Context
from parley.core.errors import InputError, QuorumError
from parley.core.key import Key
from parley.core.message import Memory, State
from parley.core.tree import clone, flat, scale, weighted_sum
from parley.data import ClientData, DataInfo, Federation
from parley.data.sources import InMemory
from parley.engine.settings import Faults, Sampling
from parley.store.memories import Memories
from parley.study.train import make_task
from parley.training.optimizers import LocalOptimizer
from parley.training.task import Task

LR, STEPS = 0.1, 3
PLAIN = Scaffold(lr=LR, steps=STEPS, batch=None)
HALF = Sampling(size=2, weights="uniform")


def remembering(monkeypatch: pytest.MonkeyPatch) -> list[Memories]:
    """The memory stores of the runs to come."""
    made: list[Memories] = []
    original = Memories.__init__

    def init(self, *args, **options):
        original(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(Memories, "__init__", init)
    return made


def invariant(
    method: Scaffold, given: QuadraticProblem, monkeypatch, cohort: Sampling, faults: Faults | None = None
) -> None:
    """After any number of rounds the server's c is sum_i p_i c_i, the c_i of absent clients included."""
    stores = remembering(monkeypatch)
    p = given.clients.p if cohort.weights == "size" else np.full(4, 0.25)
    for rounds in (1, 2, 3, 7):
        run = given.run(method, rounds, "inline", cohort, faults)
        own = [stores[-1][client].get("c_i") for client in run.federation.ids]
        known = [(tree, share) for tree, share in zip(own, p, strict=True) if tree]
        mean = weighted_sum([tree for tree, _ in known], [float(share) for _, share in known])
        np.testing.assert_allclose(flat(run.state["c"]), flat(mean), rtol=1e-12, atol=1e-13)


def reaches_the_optimum(method: Scaffold, given: QuadraticProblem) -> None:
    run = given.run(method, 80)
    np.testing.assert_allclose(weights_of(run), given.clients.empirical_minimiser, atol=1e-10)


def first_round(method: Scaffold, given: QuadraticProblem) -> None:
    """One round written out."""
    x, A, c = given.start, given.clients.A, given.clients.c
    y = np.tile(x, (4, 1))
    for _ in range(STEPS):
        y = y - LR * np.einsum("ijk,ik->ij", A, y - c)
    run = given.run(method, 1)
    np.testing.assert_allclose(weights_of(run), given.clients.p @ y, rtol=1e-12)
    gradients = (x - y) / (STEPS * LR)
    np.testing.assert_allclose(flat(run.state["c"]), given.clients.p @ gradients, rtol=1e-12)


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize(
    ("cohort", "faults"),
    [
        (Sampling(), None), (HALF, None), (Sampling(size=3, scheme="unbiased"), None),
        (Sampling(weights="uniform"), Faults(dropout=0.4, quorum=0.0)),
        (Sampling(size=3, scheme="unbiased"), Faults(dropout=0.4, quorum=0.0)),
    ],
)  # fmt: skip
def test_the_servers_variate_is_the_mean_of_all_clients(monkeypatch, option, cohort, faults):
    invariant(replace(PLAIN, option=option), quadratic_problem(), monkeypatch, cohort, faults)


def test_the_optimum_is_reached():
    reaches_the_optimum(PLAIN, quadratic_problem())


def test_one_round_by_hand():
    first_round(PLAIN, quadratic_problem())


def test_a_client_that_is_absent_keeps_its_variate(monkeypatch):
    stores = remembering(monkeypatch)
    given = quadratic_problem()
    given.run(PLAIN, 3, "inline", HALF)
    before = {client: clone(stores[-1][client]["c_i"]) for client in "0123"}
    run = given.run(PLAIN, 4, "inline", HALF)
    present = set(run.records[-1].metrics["up/bytes"].clients)
    assert len(present) == 2
    for client in set("0123") - present:
        for name, value in before[client].items():
            assert torch.equal(stores[-1][client]["c_i"][name], value)


def test_normalised_size_weights_with_few_clients_are_biased_and_not_the_default(monkeypatch):
    with pytest.raises(AssertionError):
        invariant(PLAIN, quadratic_problem(), monkeypatch, Sampling(size=2, scheme="without-replacement"))
    invariant(PLAIN, quadratic_problem(), monkeypatch, Sampling(size=2))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_few_clients_of_unequal_sizes_settle_at_the_true_optimum(seed):
    given = quadratic_problem()
    run = given.run(Scaffold(lr=0.1, steps=2, batch=None), 1500, "inline", Sampling(size=2), seed=seed)
    np.testing.assert_allclose(weights_of(run), given.clients.empirical_minimiser, atol=1e-8)


# -- momentum -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [False, True])
def test_the_printed_scaling_diverges_with_momentum_and_the_corrected_one_converges(monkeypatch, keep):
    # As in paper 004's experiments: many steps of a settled momentum, eta small.
    given = quadratic_problem()
    method = Scaffold(lr=0.01, steps=20, batch=None, options={"momentum": 0.9}, keep=keep)
    start = np.linalg.norm(given.start - given.clients.empirical_minimiser)
    right = given.run(method, 15)
    assert np.linalg.norm(weights_of(right) - given.clients.empirical_minimiser) < 1e-2 * start
    monkeypatch.setattr(LocalOptimizer, "_moved", lambda self, steps: float(steps))
    monkeypatch.setattr(LocalOptimizer, "stride", 1.0)
    printed = given.run(method, 15)
    assert np.linalg.norm(weights_of(printed) - given.clients.empirical_minimiser) > 1e3 * start


def test_without_momentum_both_scalings_are_one(monkeypatch):
    given = quadratic_problem()
    a = weights_of(given.run(PLAIN, 5))
    monkeypatch.setattr(LocalOptimizer, "_moved", lambda self, steps: float(steps))
    assert np.array_equal(a, weights_of(given.run(PLAIN, 5)))


# -- buffers and messages -------------------------------------------------------------------------------------------


def image_task() -> tuple[Task, Federation]:
    random = Key(3).torch()
    data = ClientData(torch.randn(6, 1, 6, 6, generator=random), torch.randint(3, (6,), generator=random))
    federation = Federation(DataInfo("images", (1, 6, 6), 3, "classification"), ("a",), InMemory((data,)))
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 3))
    return make_task(federation, model, 0), federation


def variates_have_no_buffers(method: Scaffold) -> None:
    task, federation = image_task()
    trainable = [name for name, p in task.module.named_parameters() if p.requires_grad]
    state = method.init(task, Key(0))
    message = method.broadcast(task, state, 1)
    reply = method.client(task, message, Memory(), federation.client("a"), Context.alone(Key(1)))
    assert reply.memory is not None
    for tree in (state["c"], message["c"], reply.message["c"], reply.memory["c_i"]):
        assert list(tree) == trainable
    statistics = [name for name in task.initial_buffers() if name.endswith("running_mean")]
    moved = reply.message["buffers"]
    assert statistics
    assert all(not torch.equal(moved[name], message["buffers"][name]) for name in statistics)


@pytest.mark.parametrize("option", ["I", "II"])
def test_variates_have_no_buffers(option):
    variates_have_no_buffers(Scaffold(lr=0.01, steps=1, option=option))


def test_traffic_is_twice_fedavgs():
    given = quadratic_problem()
    runs = [given.run(method, 2) for method in (PLAIN, FedAvg(lr=LR, steps=STEPS, batch=None))]
    sent = [run.algorithm.broadcast(run.task, run.state, 1).tensors.values() for run in runs]
    assert [sum(value.numel() for value in values) for values in sent] == [10, 5]
    up = [run.records[-1].metrics["up/bytes"].value for run in runs]
    assert 1.4 < up[0] / up[1] < 2.2  # five numbers in a header of a hundred bytes


def test_settings_that_make_no_sense():
    with pytest.raises(InputError, match='use option = "I"'):
        Scaffold(optimizer="adam")
    assert Scaffold(optimizer="adam", option="I").optimizer == "adam"


# -- deliberate mistakes --------------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def sign_of_the_variate(patch: pytest.MonkeyPatch) -> None:
    add = module.transforms.add
    patch.setattr(module.transforms, "add", lambda tree, scale=1.0: add(tree, -scale))


def only_the_servers_variate(patch: pytest.MonkeyPatch) -> None:
    add = module.transforms.add
    patch.setattr(module.transforms, "add", lambda tree, scale=1.0: add(tree, max(scale, 0.0)))


def variates_initialised_with_weights(patch: pytest.MonkeyPatch) -> None:
    """The clients' c_i start as a copy of the model."""
    client = Scaffold.client

    @wraps(client)
    def wrong(self, task, message, memory, data, key):
        start = memory if "c_i" in memory else Memory.of(c_i=clone(message["model"]))
        return client(self, task, message, start, data, key)

    patch.setattr(Scaffold, "client", wrong)


def servers_variate_initialised_with_weights(patch: pytest.MonkeyPatch) -> None:
    init = Scaffold.init

    def wrong(self, task, key):
        state = init(self, task, key)
        return State(state.tensors | State.of(c=clone(state["model"])).tensors, state.scalars)

    patch.setattr(Scaffold, "init", wrong)


def weight_sum(patch: pytest.MonkeyPatch) -> None:
    shares = Cohort.shares
    patch.setattr(Cohort, "shares", lambda self, answered: {i: 1.05 * w for i, w in shares(self, answered).items()})


def variate_moves_as_if_all_took_part(patch: pytest.MonkeyPatch) -> None:
    aggregate = Scaffold.aggregate

    def wrong(self, task, state, replies, number, key):
        return aggregate(self, replace(task, population=len(replies.weights)), state, replies, number, key)

    patch.setattr(Scaffold, "aggregate", wrong)


def mean_gradient_doubled(patch: pytest.MonkeyPatch) -> None:
    """Divided by too few steps."""
    mean = Local.mean_gradient
    patch.setattr(Local, "mean_gradient", lambda self, moved: scale(mean(self, moved), 2.5))


def stale_memory_of_absent_clients(patch: pytest.MonkeyPatch) -> None:
    """Memories that are lost: every client starts with zero variates each time."""
    patch.setattr(Memories, "__getitem__", lambda self, client: Memory())


def buffers_in_control_terms(patch: pytest.MonkeyPatch) -> None:
    init = Scaffold.init

    def wrong(self, task, key):
        state = init(self, task, key)
        extra = {n: torch.zeros_like(b) for n, b in task.initial_buffers().items() if b.is_floating_point()}
        return State(state.tensors | State.of(c=extra).tensors, state.scalars)

    patch.setattr(Scaffold, "init", wrong)


AT_THE_OPTIMUM = [
    sign_of_the_variate,
    only_the_servers_variate,
    variates_initialised_with_weights,
    servers_variate_initialised_with_weights,
    mean_gradient_doubled,
    stale_memory_of_absent_clients,
]


@pytest.mark.parametrize("mistake", AT_THE_OPTIMUM, ids=lambda mistake: mistake.__name__)
def test_the_fixed_point_notices(monkeypatch, mistake: Patch):
    mistake(monkeypatch)
    with pytest.raises((AssertionError, QuorumError)):
        reaches_the_optimum(PLAIN, quadratic_problem())


@pytest.mark.parametrize(
    ("mistake", "cohort"),
    [(weight_sum, Sampling()), (variate_moves_as_if_all_took_part, HALF), (variates_initialised_with_weights, HALF)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_mean_of_the_variates_notices(monkeypatch, mistake: Patch, cohort):
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        invariant(PLAIN, quadratic_problem(), monkeypatch, cohort)


@pytest.mark.parametrize(
    "mistake", [weight_sum, variates_initialised_with_weights], ids=lambda mistake: mistake.__name__
)
def test_a_round_by_hand_notices(monkeypatch, mistake: Patch):
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        first_round(PLAIN, quadratic_problem())


def test_buffers_in_control_terms_are_noticed(monkeypatch):
    buffers_in_control_terms(monkeypatch)
    with pytest.raises((AssertionError, ValueError)):  # the core refuses trees that do not fit
        variates_have_no_buffers(Scaffold(lr=0.01, steps=1))
