"""The training core: one client against loops written by hand, stacks against single clients."""

from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from torch import nn

from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.tree import zeros_like
from parley.data import ClientData
from parley.training.batches import Work
from parley.training.dense import DenseGradient
from parley.training.local import Trained, train
from parley.training.optimizers import LocalOptimizer
from parley.training.stack import ClientStack, KeyStack, Unstackable
from parley.training.task import Task
from parley.training.transforms import add, per_batch, pull

SIZES = (23, 17, 17, 9, 3)
KEY = Key(5)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def batches_of(data: ClientData, work: Work, key: Key) -> list[ClientData]:
    plan = work.plan(len(data), key.fold("batches"))
    if plan.indices is None:
        return [data] * plan.steps
    return [ClientData(data.x[rows], data.y[rows]) for rows in plan.indices.split(list(plan.lengths))]


def by_hand(task: Task, data: ClientData, work: Work, key: Key, make, prox: float = 0.0, steps=None):
    """A loop as one would write it for one client: module, autograd, optimizer."""
    module = deepcopy(task.module).train()
    start = [p.detach().clone() for p in module.parameters()]
    optimizer = make(module.parameters())
    gradients, losses = [], []
    for batch in batches_of(data, work, key):
        optimizer.zero_grad()
        loss = task.loss(module(batch.x), batch.y).mean()
        losses.append(loss.item())
        total = loss + prox / 2 * sum(((p - s) ** 2).sum() for p, s in zip(module.parameters(), start, strict=True))
        total.backward()
        gradients.append({n: p.grad.clone() for n, p in module.named_parameters()})
        optimizer.step()
    return {n: p.detach() for n, p in module.named_parameters()}, gradients, sum(losses) / len(losses)


def close(a, b, tolerance: float = 1e-12) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=tolerance, atol=tolerance)


@pytest.fixture
def task(seeded, task_of) -> Task:
    return task_of(seeded(mlp), "cross-entropy", (6,), 3)


@pytest.fixture
def data(clients) -> tuple[ClientData, ...]:
    return clients(SIZES, (6,), 3, "cross-entropy")


WORKS = [Work(steps=7, batch=5), Work(epochs=2, batch=5), Work(steps=4), Work(steps=6, batch=4, order="independent")]
OPTIMIZERS = {
    "sgd": (LocalOptimizer(lr=0.3), lambda p: torch.optim.SGD(p, lr=0.3)),
    "momentum": (
        LocalOptimizer("sgd", 0.1, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    "adam": (LocalOptimizer("adam", 0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
    "rmsprop": (LocalOptimizer("rmsprop", 0.01, {"alpha": 0.9}), lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9)),
}


@pytest.mark.parametrize("work", WORKS, ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_client_trains_like_a_loop_by_hand(task: Task, data, work: Work, name: str):
    optimizer, make = OPTIMIZERS[name]
    start = task.initial()
    got = train(task, start, data[0], KEY, work=work, optimizer=optimizer)
    wanted, _, loss = by_hand(task, data[0], work, KEY, make)
    close(got.parameters, wanted)
    assert float(got.loss) == pytest.approx(loss, rel=1e-12)
    if name == "sgd":
        assert float(got.step_sum) == pytest.approx(0.3 * work.count(len(data[0])), rel=1e-14)
    close(start, task.initial())  # neither the start nor the module's own weights have changed
    assert got.gradients == {}


@pytest.mark.parametrize("theta", ["all", "last", (0.5, 0.0, 2.0, 1.0)])
def test_transforms_and_theta(task: Task, data, theta):
    work = Work(steps=4, batch=6)
    got = train(
        task,
        task.initial(),
        data[1],
        KEY,
        work=work,
        optimizer=LocalOptimizer(lr=0.2),
        transform=pull(task.initial(), 0.7),
        theta=theta,
    )
    wanted, gradients, _ = by_hand(task, data[1], work, KEY, lambda p: torch.optim.SGD(p, lr=0.2), prox=0.7)
    close(got.parameters, wanted)
    weights = {"all": (1.0,) * 4, "last": (0.0, 0.0, 0.0, 1.0)}.get(theta, theta)
    close(got.gradients, {n: sum(w * g[n] for w, g in zip(weights, gradients, strict=True)) for n in wanted})


def test_added_trees_are_seen_at_every_step(task: Task, data):
    shift = {name: torch.full_like(value, 0.01) for name, value in task.initial().items()}
    work = Work(steps=3)
    plain = train(task, task.initial(), data[2], KEY, work=work, optimizer=LocalOptimizer(lr=0.0), theta="all")
    moved = train(
        task,
        task.initial(),
        data[2],
        KEY,
        work=work,
        optimizer=LocalOptimizer(lr=0.0),
        theta="all",
        transform=add(shift, 2.0) | add(shift, -0.5),
    )
    close(moved.gradients, {n: g + 3 * 1.5 * shift[n] for n, g in plain.gradients.items()})


def test_theta_must_have_a_weight_per_step(task: Task, data):
    with pytest.raises(InputError, match="3 weights but a client takes 4 steps"):
        train(task, task.initial(), data[0], KEY, work=Work(steps=4), optimizer=LocalOptimizer(), theta=(1.0, 1.0, 1.0))


# -- stacks ------------------------------------------------------------------------------------------------------------


def keys(count: int) -> KeyStack:
    return KeyStack(tuple(Key(5).fold("client", number) for number in range(count)))


def agree(stacked: Trained, alone: list[Trained], tolerance: float = 1e-11) -> None:
    for row, own in enumerate(alone):
        close({n: v[row] for n, v in stacked.parameters.items()}, own.parameters, tolerance)
        close({n: v[row] for n, v in stacked.gradients.items()}, own.gradients, tolerance)
        torch.testing.assert_close(stacked.loss[row], own.loss, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(stacked.step_sum[row], own.step_sum)


@pytest.fixture
def both_ways(in_stack):
    def train_both_ways(task: Task, data, work: Work, **options) -> tuple[Trained, list[Trained]]:
        return _both_ways(in_stack, task, data, work, **options)

    return train_both_ways


def _both_ways(in_stack, task: Task, data, work: Work, **options) -> tuple[Trained, list[Trained]]:
    own = keys(len(data))
    stacked = in_stack(lambda: train(task, task.initial(), ClientStack.of(data), own, work=work, **options), len(data))
    alone = [train(task, task.initial(), d, k, work=work, **options) for d, k in zip(data, own.keys, strict=True)]
    return stacked, alone


@pytest.mark.parametrize("work", WORKS, ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_stack_of_ragged_clients_trains_like_each_alone(both_ways, task: Task, data, work: Work, name: str):
    agree(*both_ways(task, data, work, optimizer=OPTIMIZERS[name][0]))


@pytest.mark.parametrize("work", [Work(epochs=2, batch=5), Work(steps=4, batch=6)], ids=str)
@pytest.mark.parametrize("theta", ["all", "last", (0.5, 0.0, 2.0, 1.0)])
def test_theta_and_the_proximal_pull_in_a_stack(in_stack, both_ways, task: Task, data, work: Work, theta):
    if work.steps is None and not isinstance(theta, str):
        theta = (0.5, 0.0, 2.0, 1.0, 1.0, 0.25, 1.0, 0.0, 3.0, 1.0)  # ten steps of the largest client
    options = {"optimizer": LocalOptimizer(lr=0.2), "transform": pull(task.initial(), 0.5), "theta": theta}
    if isinstance(theta, str) or work.steps is not None:
        agree(*both_ways(task, data, work, **options))
    else:  # the smaller clients use the first weights
        stacked = in_stack(
            lambda: train(task, task.initial(), ClientStack.of(data), keys(len(data)), work=work, **options), len(data)
        )
        for row, (own, key) in enumerate(zip(data, keys(len(data)).keys, strict=True)):
            options["theta"] = theta[: work.count(len(own))]
            alone = train(task, task.initial(), own, key, work=work, **options)
            close({n: v[row] for n, v in stacked.gradients.items()}, alone.gradients, 1e-11)


def test_a_stack_may_start_from_rows_of_its_own_and_carry_own_trees(in_stack, task: Task, data):
    own = keys(len(data))
    starts = [{n: v + 0.1 * row for n, v in task.initial().items()} for row in range(len(data))]
    together = {n: torch.stack([s[n] for s in starts]) for n in starts[0]}
    options = {"work": Work(epochs=1, batch=5), "optimizer": LocalOptimizer(lr=0.2), "theta": "all"}
    stacked = in_stack(
        lambda x: train(task, x, ClientStack.of(data), own, transform=pull(x, 0.3) | add(x, 0.1), **options),
        len(data),
        together,
    )
    alone = [
        train(task, s, d, k, transform=pull(s, 0.3) | add(s, 0.1), **options)
        for s, d, k in zip(starts, data, own.keys, strict=True)
    ]
    agree(stacked, alone)


@pytest.mark.parametrize(
    "optimizer", ["adam", "adamw", "adagrad", "adamax", "nadam", "radam", "rprop", "asgd", "adadelta"]
)
def test_every_optimizer_acts_on_a_stack_as_on_each_client(both_ways, task: Task, data, optimizer: str):
    agree(*both_ways(task, data[:3], Work(epochs=1, batch=6), optimizer=LocalOptimizer(optimizer, 0.01)), 1e-10)


@pytest.mark.parametrize("name", ["adafactor", "muon", "lbfgs", "sparseadam", "adma"])
def test_optimizers_that_cannot_be_stacked_are_unknown(name: str):
    with pytest.raises(InputError, match="unknown local optimizer"):
        LocalOptimizer(name)


def test_options_and_step_sizes_are_checked():
    with pytest.raises(InputError, match="did you mean 'momentum'"):
        LocalOptimizer("sgd", 0.1, {"momentun": 0.9})
    for lr in (-0.1, float("nan")):
        with pytest.raises(InputError, match="at least 0"):
            LocalOptimizer(lr=lr)


# -- dense chains against autograd, and modules that only torch.func can stack ----------------------------------

ACTIVATIONS = [
    nn.ReLU(),
    nn.Tanh(),
    nn.Sigmoid(),
    nn.LeakyReLU(0.1),
    nn.GELU(),
    nn.GELU(approximate="tanh"),
    nn.Identity(),
]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("loss", ["cross-entropy", "half-squares", "mse"])
@pytest.mark.parametrize("bias", [True, False])
def test_dense_gradients_are_autograd_s(both_ways, seeded, task_of, clients, activation, loss: str, bias: bool):
    widths = (6, 5, 4, 3)
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b, bias=bias), activation)]
    task = task_of(seeded(lambda: nn.Sequential(nn.Flatten(), activation, *layers)), loss, (2, 3), 3)
    data = clients((7, 5, 5), (2, 3), 3, loss)
    assert DenseGradient.applies(task, data[0])
    stacked, alone = both_ways(task, data, Work(epochs=2, batch=3), optimizer=LocalOptimizer(lr=0.1), theta="all")
    agree(stacked, alone, 1e-12)
    # The step that is taken while the gradient is formed is the same step.
    fused, _ = both_ways(task, data, Work(epochs=2, batch=3), optimizer=LocalOptimizer(lr=0.1))
    close(fused.parameters, stacked.parameters)


def test_one_output_and_flat_targets(both_ways, seeded, task_of):
    task = task_of(seeded(lambda: nn.Linear(4, 1)), "half-squares", (4,), 1)
    x = torch.randn(9, 4, generator=Key(0).torch(), dtype=torch.float64)
    data = (ClientData(x, x.sum(1)), ClientData(x[:4], x[:4, 0]))
    agree(*both_ways(task, data, Work(epochs=2, batch=4), optimizer=LocalOptimizer(lr=0.1)))


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.GroupNorm(1, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(3 * 16, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).flatten(1)) * self.scale


@pytest.mark.parametrize("name", ["sgd", "momentum"])
def test_any_module_that_vmap_takes_can_be_stacked(both_ways, seeded, task_of, clients, name: str):
    """A convolution with group normalisation, a parameter without dimensions and one that is never used."""
    task = task_of(seeded(Conv), "cross-entropy", (1, 6, 6), 3)
    data = clients((9, 7, 4), (1, 6, 6), 3, "cross-entropy")
    assert not DenseGradient.applies(task, data[0])
    options = {"optimizer": OPTIMIZERS[name][0], "transform": pull(zeros_like(task.initial()), 0.1), "theta": "all"}
    if name == "momentum":
        del options["theta"]
    agree(*both_ways(task, data, Work(epochs=2, batch=4), **options), 1e-10)


def test_frozen_parameters_stay_out(both_ways, seeded, task_of, clients):
    module = seeded(mlp)
    module[1].requires_grad_(False)
    task = task_of(module, "cross-entropy", (6,), 3)
    assert list(task.initial()) == ["3.weight", "3.bias"]
    data = clients((9, 7), (6,), 3, "cross-entropy")
    agree(*both_ways(task, data, Work(epochs=2, batch=4), optimizer=LocalOptimizer(lr=0.2)))


def test_linear_layers_on_sequences_are_not_flattened(both_ways, seeded, task_of):
    """A chain without Flatten acts on the last dimension of its samples, in a stack too."""
    task = task_of(seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))), "mse", (5, 3), 2)
    random = Key(1).torch()
    data = tuple(
        ClientData(
            torch.randn(n, 5, 3, generator=random, dtype=torch.float64),
            torch.randn(n, 5, 2, generator=random, dtype=torch.float64),
        )
        for n in (6, 4)
    )
    assert not DenseGradient.applies(task, data[0])
    agree(*both_ways(task, data, Work(epochs=1, batch=3), optimizer=LocalOptimizer(lr=0.2)))


@pytest.mark.parametrize("block", [1, 700])
def test_batches_gathered_step_by_step_are_the_same(in_stack, task: Task, data, monkeypatch, block: int):
    """However little is gathered at once; clients leave the stack in the middle of blocks."""
    options = {"work": Work(epochs=3, batch=4), "optimizer": LocalOptimizer(lr=0.2), "theta": "all"}

    def gradients():
        return in_stack(
            lambda: train(task, task.initial(), ClientStack.of(data), keys(len(data)), **options), len(data)
        )

    whole = gradients()
    monkeypatch.setattr("parley.training.stack._BLOCK", block)
    parts = gradients()
    assert all(torch.equal(value, parts.gradients[name]) for name, value in whole.gradients.items())


@pytest.mark.parametrize("stacked", [False, True])
def test_a_step_s_gradient_is_clipped_to_its_norm_client_by_client(in_stack, task: Task, data, stacked: bool):
    options = {"work": Work(steps=1), "optimizer": LocalOptimizer(lr=0.0), "theta": "all"}
    whole = [train(task, task.initial(), d, KEY, **options).gradients for d in data]
    norms = [float(torch.cat([g.flatten() for g in own.values()]).norm()) for own in whole]
    bound = sorted(norms)[2]
    assert norms[0] != norms[1]
    if stacked:
        both = KeyStack((KEY,) * len(data))
        got = in_stack(
            lambda: train(task, task.initial(), ClientStack.of(data), both, clip=bound, **options), len(data)
        )
        clipped = [{n: v[row] for n, v in got.gradients.items()} for row in range(len(data))]
    else:
        clipped = [train(task, task.initial(), d, KEY, clip=bound, **options).gradients for d in data]
    for own, full, norm in zip(clipped, whole, norms, strict=True):
        close(own, {n: v * min(1.0, bound / norm) for n, v in full.items()}, 1e-12)


def test_samples_of_another_width_are_never_gathered(in_stack, task: Task, data):
    narrow = ClientData(torch.zeros(3, 4, dtype=torch.float64), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(Unstackable, match="samples differ"):
        in_stack(
            lambda: train(
                task,
                task.initial(),
                ClientStack.of((data[0], narrow)),
                keys(2),
                work=Work(steps=2),
                optimizer=LocalOptimizer(),
            ),
            2,
        )


@pytest.mark.parametrize("touch", ["x", "y", "__len__"])
def test_a_stack_shows_no_samples(data, touch: str):
    stack = ClientStack.of(data)
    with pytest.raises(Unstackable):
        len(stack) if touch == "__len__" else getattr(stack, touch)


@pytest.mark.parametrize(
    "transform", [lambda tree: per_batch(lambda g, w, batch, own: g, tree), lambda tree: pull(tree, 0.5), add]
)
def test_a_transform_with_other_names_than_the_parameters_is_refused(in_stack, task: Task, data, transform):
    options = {"work": Work(steps=1), "optimizer": LocalOptimizer(lr=0.1)}
    first, *others = task.initial().items()
    for tree in (dict(others), {"z": torch.zeros(2)}, {}):
        own = transform(tree)
        with pytest.raises(
            InputError, match=f"a tree of a gradient transform lacks '{first[0]}'; it needs a tensor for"
        ):
            train(task, task.initial(), data[0], Key(0), transform=own, **options)
        if not own.stages[0].sees_batch:
            with pytest.raises(InputError, match=f"a tree of a gradient transform lacks '{first[0]}'"):
                in_stack(
                    lambda own=own: train(
                        task, task.initial(), ClientStack.of(data), keys(len(data)), transform=own, **options
                    ),
                    len(data),
                )


@pytest.mark.parametrize("gives", [lambda g: dict(list(g.items())[1:]), lambda g: None, lambda g: list(g.values())])
def test_what_a_function_of_batches_gives_is_checked(task: Task, data, gives):
    options = {"work": Work(steps=1), "optimizer": LocalOptimizer(lr=0.1)}
    with pytest.raises(InputError, match=r"what the function of per_batch returns (lacks|must be a tree)"):
        train(task, task.initial(), data[0], Key(0), transform=per_batch(lambda g, w, batch: gives(g)), **options)
