"""BatchNorm's running statistics, and all other absolute values, are averaged with weights that sum to one.

With momentum 1 and full batches a BatchNorm in front of the network holds exactly the mean and the (unbiased) variance
of its client's inputs, whatever the weights are, so the server's statistics are known in closed form.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import parley as pl
from parley.algorithms import algorithms
from parley.algorithms.averaging.local_sgd import LocalSGD
from parley.algorithms.protocol import Cohort, Replies
from parley.algorithms.summed import SummedReplies
from parley.core.errors import UnsupportedError
from parley.core.form import Form
from parley.core.message import Message
from parley.engine.sampling import Sampler
from parley.engine.settings import Evaluation, Faults, Sampling
from parley.privacy.replies import PrivateReplies
from parley.study.train import train

SIZES = (40, 3, 25, 4, 11, 60, 5)
SCHEMES = ("without-replacement", "with-replacement", "unbiased", "poisson")
ELSEWHERE = {
    "centralised": "pooled data",
    "local-only": "nothing is averaged",
    "lookahead": "pooled data",
    "minibatch-sgd": "pooled data",
    "datashare": "clients have samples of others",
    "fedavg-distill": "the student's own statistics, on public inputs",
    "fedsgd": "lr = 0 takes no step",
    "maml": "refuses BatchNorm",
}
"""Methods with local SGD whose server statistics are not the mean of what its clients' data say, and why."""
LOCAL = [name for name in algorithms if issubclass(algorithms[name], LocalSGD)]
METHODS = [name for name in LOCAL if name not in ELSEWHERE]


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.BatchNorm1d(3, momentum=1.0), nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.double()


def clients(seed: int) -> pl.Federation:
    """Unequal sizes, means and scales; one client has one class only."""
    random = np.random.default_rng(seed)
    own = {}
    for number, size in enumerate(SIZES):
        x = random.normal(size=3) + random.uniform(0.2, 3, size=3) * random.normal(size=(size, 3))
        own[f"c{number}"] = (x, np.zeros(size, np.int64) if number == 2 else random.integers(2, size=size))
    return pl.Federation.from_arrays(own)


def method(name: str) -> LocalSGD:
    kind = algorithms[name]
    more = {"alpha": 2} if name.startswith("fedals") else {}
    return kind(**({"lr": 0.01, "steps": 2, "batch": None} | more))


@pytest.fixture
def drawn(monkeypatch) -> list[Cohort]:
    cohorts, draw = [], Sampler.draw

    def recorded(self: Sampler, number: int) -> Cohort:
        cohorts.append(draw(self, number))
        return cohorts[-1]

    monkeypatch.setattr(Sampler, "draw", recorded)
    return cohorts


def expected(federation: pl.Federation, cohort: Cohort) -> tuple[torch.Tensor, torch.Tensor]:
    """The mixture's mean, and the mean variance."""
    w = torch.tensor(cohort.weights, dtype=torch.float64)
    x = [federation.client(i).x for i in cohort.ids]
    means, variances = torch.stack([v.mean(0) for v in x]), torch.stack([v.var(0) for v in x])
    return w @ means / w.sum(), w @ variances / w.sum()


@pytest.mark.parametrize("weights", ["size", "uniform"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", METHODS)
def test_the_servers_statistics_are_the_cohorts(name, scheme, weights, drawn):
    federation = clients(len(name))
    run = train(
        method(name),
        federation,
        model=Normed,
        rounds=2,
        cohort=Sampling(3, scheme, weights),
        seed=1,
        evaluation=Evaluation(every=1000),
        runtime="inline",
    )
    cohort = next(c for c in reversed(drawn) if c.ids)  # an empty Poisson cohort leaves them as they were
    mean, variance = expected(federation, cohort)
    shown = run.learned.weights(run.model())
    torch.testing.assert_close(shown["0.running_mean"], mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(shown["0.running_var"], variance, rtol=1e-12, atol=1e-12)


def test_all_methods_with_local_training_are_held():
    assert set(ELSEWHERE) <= set(LOCAL)
    assert len(METHODS) >= 15


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 500), min_size=1, max_size=6), population=st.integers(6, 60), seed=st.integers(0, 99)
)
def test_means_of_equal_values_are_those_values_however_weights_sum(sizes, population, seed):
    """In plain and in secure readings alike; changes keep the weights that estimate the population without bias."""
    random = torch.Generator().manual_seed(seed)
    value = torch.randn(4, dtype=torch.float64, generator=random)
    ids = [f"c{i}" for i in range(len(sizes))]
    w = {i: n / 1000 * population / len(sizes) for i, n in zip(ids, sizes, strict=True)}
    form = Form.of(s={"v": (torch.float64, (4,))})
    plain = Replies({i: Message.of(s={"v": value}) for i in ids}, w)
    summed = SummedReplies({"s/v": value * sum(w.values()) / 2}, form, 2.0, w)
    for replies in (plain, summed):
        torch.testing.assert_close(replies.mean("s")["v"], value, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(replies.mean_change("s")["v"], value * sum(w.values()), rtol=1e-12, atol=1e-12)


def test_empty_poisson_cohorts_keep_the_statistics(drawn):
    federation = clients(0)
    run = train(
        pl.Scaffold(lr=0.01, steps=1, batch=None),
        federation,
        model=Normed,
        rounds=40,
        seed=0,
        cohort=Sampling(1, "poisson"),
        evaluation=Evaluation(every=1000),
        runtime="inline",
    )
    assert not drawn[-1].ids or any(not cohort.ids for cohort in drawn)
    last = next(cohort for cohort in reversed(drawn) if cohort.ids)
    mean, _ = expected(federation, last)
    torch.testing.assert_close(run.state["buffers"]["0.running_mean"], mean, rtol=1e-12, atol=1e-12)


def test_nobody_answered_means_nothing():
    assert Replies({}, {}).mean("buffers") == {}


def test_central_noise_releases_no_mean_of_absolute_values():
    form = Form.of(moments={"v": (torch.float64, (2,))})
    replies = PrivateReplies({}, form, None)
    with pytest.raises(UnsupportedError, match="absolute values 'moments'"):
        replies.mean("moments")
    assert replies.mean("buffers", optional=True) == {}


# -- FedALS: who has missed an average gets the statistics with the parameters ---------------------------------------


def test_fedals_with_few_clients_equals_its_loop(drawn):
    """Every part of a client that was averaged while it was away is the server's, running statistics included."""
    federation = clients(4)
    steps, alpha, lr, rounds = 2, 3, 0.05, 12

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double()

    run = train(
        pl.FedALS(lr=lr, steps=steps, batch=None, alpha=alpha),
        federation,
        model=network,
        rounds=rounds,
        seed=2,
        cohort=Sampling(3, "unbiased"),
        evaluation=Evaluation(every=1000),
        runtime="inline",
    )
    head = ("3.weight", "3.bias")
    start = {**run.task.initial(), **run.task.initial_buffers()}
    server, shown, own = dict(start), dict(start), {}
    last = dict.fromkeys(federation.ids, 0)
    for number, cohort in enumerate(drawn, 1):
        w = dict(zip(cohort.ids, cohort.weights, strict=True))
        for i in cohort.ids:
            averaged = (number - 1) // alpha * alpha  # the last average of phi
            if last[i] == 0 or last[i] <= averaged:
                own[i] = dict(server)
            own[i] |= {n: server[n] for n in head}
            module = network()
            module.load_state_dict(own[i])
            module.train()
            x, y = federation.client(i).x, federation.client(i).y
            for _ in range(steps):
                loss = nn.functional.cross_entropy(module(x), y)
                grads = torch.autograd.grad(loss, list(module.parameters()))
                with torch.no_grad():
                    for p, g in zip(module.parameters(), grads, strict=True):
                        p -= lr * g
            own[i] = {n: v.clone() for n, v in module.state_dict().items()}
            last[i] = number
        due = head if number % alpha else tuple(server)
        new = dict(server)
        for n in due:
            if not server[n].is_floating_point():
                continue
            if "running" in n:
                new[n] = sum(w[i] * own[i][n] for i in cohort.ids) / sum(w.values())
            else:
                new[n] = server[n] + sum(w[i] * (own[i][n] - server[n]) for i in cohort.ids)
        server = new
        if number % alpha == 0:
            shown = dict(server)
    now = run.learned.weights(run.model())
    for n, value in shown.items():
        if value.is_floating_point():
            torch.testing.assert_close(now[n], value, rtol=1e-12, atol=1e-12)


def test_the_drift_of_parts_is_measured_from_the_mean():
    """Clients that moved alike are not apart, however their weights sum."""
    from parley.algorithms.parts.parts import Part
    from parley.algorithms.parts.periods import drift_rates

    update = {"w": torch.tensor([1.0, -2.0], dtype=torch.float64)}
    replies = Replies({i: Message.of(update=update) for i in "ab"}, {"a": 1.4, "b": 0.9})
    rates, _ = drift_rates(replies, [Part("w", ("w",), (), 1)], [1])
    assert rates == [pytest.approx(0, abs=1e-30)]


# -- TCT ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_tct_standardises_by_the_cohorts_moments(scheme, drawn):
    federation = clients(1)
    tct = pl.TCT(first=pl.FedAvg(lr=0.05, steps=1), rounds=1, second=pl.Scaffold(lr=0.1, steps=1), features=12)

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()

    run = train(
        tct,
        federation,
        model=network,
        rounds=2,
        seed=3,
        cohort=Sampling(4, scheme),
        faults=Faults(),
        evaluation=Evaluation(every=1000),
        runtime="inline",
    )
    cohort = drawn[1]
    w = torch.tensor(cohort.weights, dtype=torch.float64)
    given_ = Message(run.state.tensors, run.state.scalars)
    phi = [torch.cat(tct._phi(run.task, run.state["network"], given_, federation.client(i).x)) for i in cohort.ids]
    mean = sum(a * v.mean(0) for a, v in zip(w / w.sum(), phi, strict=True))
    squares = sum(a * v.square().mean(0) for a, v in zip(w / w.sum(), phi, strict=True))
    moments = run.state["moments"]
    torch.testing.assert_close(moments["mean"], mean, rtol=1e-10, atol=1e-12)
    spread = (squares - mean.square()).clamp(min=0).sqrt()
    kept = moments["scale"] > 0
    assert bool((kept == (spread > 1e-6 * spread.max())).all())
    torch.testing.assert_close(moments["scale"][kept], 1 / (spread[kept] * 12**0.5), rtol=1e-8, atol=0)
