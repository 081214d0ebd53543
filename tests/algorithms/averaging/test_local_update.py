"""The family's settings, its messages, and what each part of a round carries."""

import pytest
import torch
from torch import nn

from parley.algorithms import algorithms
from parley.algorithms.averaging.baselines import LocalOnly
from parley.algorithms.averaging.local_sgd import LocalSGD
from parley.algorithms.averaging.local_update import FOMAML, FedAvg, FedProx, FedSGD, LocalUpdate
from parley.algorithms.boosting.distilling import Distilling
from parley.algorithms.protocol import Algorithm, Cohort, Replies
from parley.core.context import Context
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.message import Memory, Message
from parley.core.tree import schema
from parley.data import ClientData, DataInfo, Federation
from parley.study.train import train
from parley.training.losses import losses
from parley.training.task import Task


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FedAvg(steps=1, epochs=1), "either steps or epochs"),
        (lambda: FedAvg(steps=0), "steps must be a whole number of at least 1"),
        (lambda: FedAvg(batch=-1), "batch must be a whole number of at least 1"),
        (lambda: FedAvg(lr=0.0), "lr must be above 0"),
        (lambda: FedAvg(lr=-0.1), "at least 0"),
        (lambda: LocalUpdate(theta="last", form="delta"), 'theta = "all"'),
        (lambda: FedProx(alpha=-1.0), "alpha"),
        (lambda: FedProx(alpha=float("nan")), "alpha"),
        (lambda: LocalUpdate(theta=(1.0, 2.0), steps=3), "steps must be 2"),
        (lambda: LocalUpdate(theta=(1.0, 2.0)), "steps must be 2"),
        (lambda: LocalUpdate(theta=(0.0, 0.0), steps=2), "not all zero"),
        (lambda: LocalUpdate(theta=(1.0, -1.0), steps=2), "not negative"),
        (lambda: LocalUpdate(optimizer="adam"), "plain local SGD"),
        (lambda: LocalUpdate(options={"momentum": 0.9}), "plain local SGD"),
        (lambda: FedAvg(optimizer="sdg"), "did you mean 'sgd'"),
        (lambda: LocalOnly(lr=-1.0), "at least 0"),
        (lambda: FedAvg(epochs=2.5), "epochs must be a whole number"),
        (lambda: FedAvg(clip=0.0), "clip must be above 0"),
    ],
)
def test_settings_that_make_no_sense(make, says: str):
    with pytest.raises(InputError, match=says):
        make()


def test_defaults_mean_one_epoch_and_zero_means_all_samples():
    assert (FedAvg().steps, FedAvg().epochs) == (None, 1)
    assert FedAvg(batch=0).batch is None
    assert LocalOnly(batch=0).work().batch is None
    assert FedSGD().work().count(100) == 1
    assert LocalUpdate(theta=[1, 2], steps=2).theta == (1.0, 2.0)
    assert FOMAML().theta == "last"


@pytest.mark.parametrize("name", list(algorithms))
def test_every_registered_algorithm_is_one(name: str):
    kind = algorithms[name]
    made = kind()
    assert isinstance(made, Algorithm)
    assert kind.__doc__
    assert made == kind()


@pytest.fixture
def normed() -> Task:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    return Task(module, losses["cross-entropy"], DataInfo("toy", (3,), 2, "classification"), 2)


def client(seed: int, shift: float = 0.0) -> ClientData:
    random = Key(seed).torch()
    return ClientData(torch.randn(8, 3, generator=random) + shift, torch.randint(2, (8,), generator=random))


def at(seed: int) -> Context:
    return Context.alone(Key(seed))


@pytest.mark.parametrize("policy", ["average", "local"])
@pytest.mark.parametrize("name", [n for n in algorithms if issubclass(algorithms[n], LocalSGD) and n != "maml"])
def test_no_method_touches_the_module_s_own_buffers(normed: Task, name: str, policy):
    """Whatever the policy: training and prediction work on statistics of their own."""
    task = Task(normed.module, normed.loss, normed.info, 2, policy)
    before = {n: b.clone() for n, b in task.module.named_buffers()}
    data = {"0": (client(0).x, client(0).y), "1": (client(1, 3.0).x, client(1, 3.0).y)}
    federation = Federation.from_arrays(data, public=client(2).x)
    settings = {"model": task.module, "rounds": 2, "buffers": policy, "runtime": "inline"}
    if issubclass(algorithms[name], Distilling) and policy == "local":
        with pytest.raises(InputError, match='set buffers = "average"'):
            train(algorithms[name](), federation, **settings)
        return
    run = train(algorithms[name](), federation, **settings)
    split = run.learned.personal or policy == "local"
    run.predict(client(1).x, client=run.federation.ids[0] if split else None)
    for module in (task.module, run.task.module):
        assert all(torch.equal(before[n], b) for n, b in module.named_buffers())
    if policy == "local" and not run.algorithm.needs.pooled and name != "datashare":
        means = [run.personal(i).state_dict()["1.running_mean"] for i in ("0", "1")]
        assert not torch.equal(*means)  # each client's own, not a blend


def test_averaged_buffers_travel_both_ways(normed: Task):
    algorithm = FedAvg(steps=2, batch=None)
    state = algorithm.init(normed, Key(0))
    message = algorithm.broadcast(normed, state, 1)
    replies = {str(i): algorithm.client(normed, message, Memory(), client(i, i), at(i)).message for i in range(2)}
    (declared,) = algorithm.exchanges()
    form = declared.form(normed, message)
    assert all(form.fits(schema(reply.tensors)) for reply in replies.values())
    state = algorithm.aggregate(normed, state, Replies(replies, {"0": 0.25, "1": 0.75}), 1, Key(0))
    means = [reply["buffers"]["1.running_mean"] for reply in replies.values()]
    torch.testing.assert_close(state["buffers"]["1.running_mean"], 0.25 * means[0] + 0.75 * means[1])
    assert state["buffers"]["1.num_batches_tracked"] == 2
    learned = algorithm.learned(normed)
    assert learned.weights(learned.message(state)).keys() == normed.module.state_dict().keys()


def test_local_buffers_never_travel(normed: Task):
    task = Task(normed.module, normed.loss, normed.info, 2, "local")
    algorithm = FedAvg(steps=2, batch=None)
    state = algorithm.init(task, Key(0))
    message = algorithm.broadcast(task, state, 1)
    assert "buffers" not in message
    first = algorithm.client(task, message, Memory(), client(0), at(0))
    assert "buffers" not in first.message
    assert first.memory is not None
    assert first.memory["buffers"]["1.num_batches_tracked"] == 2
    second = algorithm.client(task, message, first.memory, client(0), at(0))
    assert second.memory is not None
    assert second.memory["buffers"]["1.num_batches_tracked"] == 4
    state = algorithm.aggregate(task, state, Replies({"0": first.message}, {"0": 1.0}), 1, Key(0))
    assert "buffers" not in state
    x, learned = client(1).x, algorithm.learned(task)
    model = learned.message(state)
    with torch.no_grad():
        own = learned.outputs(model, second.memory, x)
        central = learned.outputs(model, None, x)  # with the statistics of the batch
        empty = learned.outputs(model, Memory(), x)
    assert not torch.allclose(own, central)
    assert torch.equal(central, empty)


def test_shares_after_failures():
    cohort = Cohort(("a", "b", "c"), (0.5, 0.3, 0.2))
    assert cohort.shares(["a", "b", "c"]) == pytest.approx({"a": 0.5, "b": 0.3, "c": 0.2})
    assert cohort.shares(["a", "c"]) == pytest.approx({"a": 5 / 7, "c": 2 / 7})
    assert cohort.shares([]) == {}
    unbiased = Cohort(("a", "b", "c"), (0.5, 0.6, 0.2), normalise=False)
    assert unbiased.shares(["a", "b", "c"]) == {"a": 0.5, "b": 0.6, "c": 0.2}
    assert unbiased.shares(["b"]) == pytest.approx({"b": 0.6 * 3})
    assert Cohort(("a", "b"), (1.0, 0.0)).shares(["b"]) == {"b": 0.0}
    assert (list(cohort), len(cohort), cohort[1]) == (["a", "b", "c"], 3, "b")


def test_replies_average_the_cohort_s_clients_only():
    messages = {
        i: Message.of(update={"w": torch.tensor(value)}) for i, value in (("b", 2.0), ("party", 100.0), ("a", 4.0))
    }
    replies = Replies(messages, {"a": 0.25, "b": 0.75})
    assert replies.mean_change("update")["w"] == 0.25 * 4 + 0.75 * 2
    assert list(replies) == ["b", "party", "a"]
    assert (len(replies), replies["party"]["update"]["w"].item()) == (3, 100.0)
