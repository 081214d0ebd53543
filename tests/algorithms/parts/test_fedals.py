"""FedALS against a loop written out, its parts, its traffic, and clients that come and go."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from parley.algorithms.averaging import local_sgd as module
from parley.algorithms.averaging.feddyn import FedDyn
from parley.algorithms.averaging.fednova import FedNova
from parley.algorithms.averaging.scaffold import Scaffold
from parley.algorithms.parts.fedals import FedALS
from parley.algorithms.parts.fedals_scaffold import FedALSScaffold
from parley.algorithms.protocol import Cohort, Replies
from parley.core.context import Context
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.message import Memory
from parley.core.tree import nbytes
from parley.data import ClientData, DataInfo, Federation
from parley.data.sources import InMemory
from parley.engine.settings import Evaluation, Faults
from parley.models import resnet20
from parley.store.runs import RunStore
from parley.study.train import make_task, train
from parley.training.local import Trained

HEAVY = {"momentum": 0.9, "weight_decay": 1e-3}


def mlp() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def federation(sizes=(6, 9, 5)) -> Federation:
    data = []
    for number, size in enumerate(sizes):
        random = Key(number).torch()
        x = torch.randn(size, 4, generator=random, dtype=torch.float64)
        data.append(ClientData(x, torch.randn(size, 2, generator=random, dtype=torch.float64)))
    return Federation(DataInfo("toy", (4,), 2, "regression"), tuple("abcdefgh"[: len(sizes)]), InMemory(tuple(data)))


def by_hand(method: FedALS, rounds: int, periods: dict[str, int], make) -> dict[str, torch.Tensor]:
    """Algorithm 1 with modules and torch's own optimizers: the mean of everything after the last round."""
    clients = [federation().client(i) for i in "abc"]
    shares = [len(c) / 20 for c in clients]
    models = [deepcopy(mlp()) for _ in clients]
    optimizers = [make(m.parameters()) for m in models]
    mean = {}
    for number in range(1, rounds + 1):
        for data, model, optimizer in zip(clients, models, optimizers, strict=True):
            for _ in range(method.steps):
                optimizer.zero_grad()
                (0.5 * (model(data.x) - data.y).square().sum(1)).mean().backward()
                optimizer.step()
        for name in periods:
            own = [dict(m.named_parameters())[name].data for m in models]
            mean[name] = sum(s * p for s, p in zip(shares, own, strict=True))
            if number % periods[name] == 0:
                for parameter in own:
                    parameter.copy_(mean[name])
    return mean


PERIODS = {"0.weight": 6, "0.bias": 6, "2.weight": 2, "2.bias": 2, "4.weight": 1, "4.bias": 1}


@pytest.mark.parametrize("rounds", [6, 7, 11, 12])
@pytest.mark.parametrize("runtime", ["inline", "stacked"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_three_parts_and_an_optimizer_that_runs_through(rounds, runtime, optimizer):
    options = HEAVY if optimizer == "sgd" else {"weight_decay": 0.01}
    method = FedALS(
        lr=0.05, steps=3, batch=None, periods={"0.*": 6, "2.*": 2}, report=1, optimizer=optimizer, options=options
    )
    run = train(method, federation(), model=mlp(), rounds=rounds, loss="half-squares", runtime=runtime)
    make = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimizer]
    expected = by_hand(method, rounds, PERIODS, lambda p: make(p, lr=0.05, **options))
    for name, value in run.state["shown"].items():
        torch.testing.assert_close(value, expected[name], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("kind", [FedALS, FedALSScaffold])
def test_stacked_is_inline_also_with_few_clients_and_momentum(kind):
    method = kind(lr=0.05, epochs=1, batch=4, alpha=3, layers=2, options=HEAVY)
    states = [
        train(
            method,
            federation((6, 9, 5, 12)),
            model=mlp(),
            rounds=10,
            loss="half-squares",
            runtime=runtime,
            cohort=3,
            faults=Faults(dropout=0.2, quorum=0.0),
        ).state
        for runtime in ("inline", "stacked")
    ]
    assert states[0].scalars == states[1].scalars
    for name, value in states[0].tensors.items():
        torch.testing.assert_close(states[1].tensors[name], value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "method",
    [
        FedALSScaffold(lr=0.05, steps=2, batch=4, alpha=3, options=HEAVY),
        Scaffold(lr=0.05, steps=2, batch=4, options=HEAVY, keep=True),
        FedDyn(lr=0.05, steps=2, batch=4),
        FedNova(lr=0.05, epochs=1, batch=4),
    ],
    ids=lambda method: type(method).__name__,
)
def test_inline_pool_and_a_resumed_run_give_the_same_bits(tmp_path, method):
    settings = {"model": mlp(), "loss": "half-squares", "cohort": 2}
    whole = train(method, federation(), rounds=8, runtime="inline", **settings)
    pooled = train(method, federation(), rounds=8, runtime="pool", workers=1, **settings)
    with RunStore(tmp_path / "runs.db") as store:
        first = train(method, federation(), rounds=5, runtime="inline", store=store, **settings)
        second = train(method, federation(), rounds=8, runtime="inline", store=store, resume=first.id, **settings)
    for other in (pooled, second):
        assert other.state.scalars == whole.state.scalars
        assert all(torch.equal(other.state.tensors[name], value) for name, value in whole.state.tensors.items())


# -- traffic --------------------------------------------------------------------------------------------------------


def play(method, task, data, ids, state, memories, number, lost=()):
    """One round by hand: the new state, what was sent and what came back."""
    since = {client: versions[client] for client in ids if client in (versions := memories.setdefault("since", {}))}
    cohort = Cohort(tuple(ids), (1 / len(ids),) * len(ids), since=since)
    course = method.round(task, state, cohort, number, Key(number))
    messages, replies = next(course).messages, {}
    for client, message in messages.items():
        reply = method.client(
            task,
            message,
            memories.get(client, Memory()),
            data.client(client),
            Context.alone(Key(number).fold(client), client, number),
        )
        if client not in lost:
            memories[client], replies[client] = reply.memory, reply.message
            memories["since"][client] = number
    try:
        course.send(Replies(replies, cohort.shares(list(replies))))
    except StopIteration as end:
        return end.value, messages, replies
    raise AssertionError("a round has one exchange")


def images() -> Federation:
    random = Key(0).torch()
    one = ClientData(torch.randn(2, 3, 32, 32, generator=random), torch.randint(10, (2,), generator=random))
    return Federation(DataInfo("images", (3, 32, 32), 10, "classification"), ("a", "b"), InMemory((one, one)))


def fake_training(task, x, data, key, *, buffers, **options) -> Trained:
    """Messages stay real; only the steps are left out."""
    return Trained(x, buffers, {}, torch.tensor(0.0), lambda: torch.tensor(0.5))


@pytest.mark.parametrize(
    ("alpha", "billions"), [(1, 2.344), (5, 0.473), (10, 0.239), (25, 0.099), (50, 0.052), (100, 0.029)]
)
def test_table_2_counts_the_trainable_parameters_in_messages(monkeypatch, alpha, billions):
    """ResNet-20, tau = 5, 4000 rounds, per client: 2 * 4000 * (650 + 292,304 / alpha); buffers apart."""
    monkeypatch.setattr(module, "train", fake_training)
    data = images()
    task = make_task(data, resnet20(), 0)
    method = FedALS(lr=0.1, steps=5, alpha=alpha)
    state, memories, sent, buffers = method.init(task, Key(0)), {}, [], []
    for number in range(1, 2 * alpha + 1):  # two whole phases
        state, messages, replies = play(method, task, data, "ab", state, memories, number)
        both = [messages["a"]["model"], replies["a"]["update"]]
        sent.append(sum(value.numel() for tree in both for value in tree.values()))
        both = [messages["a"].get("buffers"), replies["a"].get("buffers")]
        buffers.append(sum(value.numel() for tree in both for value in tree.values()))
    if alpha > 1:
        assert sent == sent[:alpha] * 2  # so 4000 rounds are 4000 / alpha phases
    total = sum(sent[:alpha]) * 4000 // alpha
    assert total == 2 * 4000 * (650 + 292_304 // alpha) + (2 * 4000 * (292_304 % alpha)) // alpha
    assert round(total / 1e9, 3) == billions
    statistics = sum(value.numel() for value in task.initial_buffers().values())
    assert sum(buffers[:alpha]) == 2 * statistics  # they travel with their convolutions, once a phase each way


def test_a_part_that_is_not_due_does_not_travel():
    method = FedALS(lr=0.05, steps=1, batch=None, alpha=3)
    data = federation()
    task = make_task(data, mlp(), 0, "half-squares")
    state, memories = method.init(task, Key(0)), {}
    downs, ups = [], []
    for number in range(1, 8):
        state, messages, replies = play(method, task, data, "abc", state, memories, number)
        downs.append(sorted({name.split(".")[0] for name in messages["a"]["model"]}))
        ups.append(sorted({name.split(".")[0] for name in replies["a"]["update"]}))
    everything, head = ["0", "2", "4"], ["4"]
    assert downs == [everything, head, head, everything, head, head, everything]
    assert ups == [head, head, everything, head, head, everything, head]


# -- clients that come and go ---------------------------------------------------------------------------------------


def absent_clients_get_the_current_representation() -> None:
    method = FedALS(lr=0.05, steps=1, batch=None, alpha=2)
    data = federation()
    task = make_task(data, mlp(), 0, "half-squares")
    state, memories = method.init(task, Key(0)), {}
    state, _, _ = play(method, task, data, "abc", state, memories, 1)
    state, messages, _ = play(method, task, data, "ab", state, memories, 2)  # phi is averaged without c
    assert "0.weight" not in messages["a"]["model"]
    assert "0.weight" in memories["c"]["model"]  # its own, by now outdated
    state, messages, _ = play(method, task, data, "abc", state, memories, 3)
    for client in "abc":
        assert torch.equal(messages[client]["model"]["0.weight"], state["model"]["0.weight"])
        assert torch.equal(memories[client]["start"]["0.weight"], state["model"]["0.weight"])
    state, messages, _ = play(method, task, data, "c", state, memories, 4)  # the average of one
    state, messages, _ = play(method, task, data, "a", state, memories, 5)
    assert "0.weight" in messages["a"]["model"]


def test_absent_clients_get_the_current_representation():
    absent_clients_get_the_current_representation()


def test_stale_memory_of_absent_clients_is_noticed(monkeypatch):
    right = FedALS.round

    def wrong(self, task, state, cohort, number, key):
        """Whoever took part once is believed to have the current representation."""
        since = {client: number for client, own in cohort.since.items() if own is not None}
        return right(self, task, state, replace(cohort, since=since), number, key)

    monkeypatch.setattr(FedALS, "round", wrong)
    with pytest.raises((AssertionError, InputError)):
        absent_clients_get_the_current_representation()


def test_a_lost_reply_leaves_the_client_where_it_was():
    method = FedALS(lr=0.05, steps=1, batch=None, alpha=3)
    data = federation()
    task = make_task(data, mlp(), 0, "half-squares")
    state, memories = method.init(task, Key(0)), {}
    state, _, _ = play(method, task, data, "abc", state, memories, 1, lost="b")
    assert "b" not in memories
    _, messages, _ = play(method, task, data, "abc", state, memories, 2)
    assert "0.weight" in messages["b"]["model"]
    assert "0.weight" not in messages["a"]["model"]


def test_a_client_without_its_memory_says_so():
    method = FedALS(lr=0.05, steps=1, batch=None, alpha=3)
    data = federation()
    task = make_task(data, mlp(), 0, "half-squares")
    state, memories = method.init(task, Key(0)), {}
    state, _, _ = play(method, task, data, "abc", state, memories, 1)
    del memories["a"]
    with pytest.raises(InputError, match=r"lost its part of the model with '0.weight'"):
        play(method, task, data, "abc", state, memories, 2)


def test_variates_per_part_are_means_of_the_clients():
    """c^q = 1/N sum_i c_i^q after any round, with few clients and lost replies; each part moves at its own pace."""
    method = FedALSScaffold(lr=0.05, steps=2, batch=None, alpha=2, options={"momentum": 0.5})
    data = federation((6, 9, 5, 7))
    task = make_task(data, mlp(), 0, "half-squares")
    state, memories = method.init(task, Key(0)), {}
    for number, (ids, lost) in enumerate(
        [("ab", ""), ("bcd", "c"), ("ad", ""), ("abcd", "a"), ("cd", ""), ("ab", "b")], 1
    ):
        before = state["c"]
        state, _, _ = play(method, task, data, ids, state, memories, number, lost)
        for name, value in state["c"].items():
            own = [memory["c_i"][name] for client, memory in memories.items() if client != "since"]
            torch.testing.assert_close(value, sum(own) / 4, rtol=1e-12, atol=1e-14)
            moves = name.startswith("4.") or number % 2 == 0
            assert torch.equal(value, before[name]) != moves


# -- buffers --------------------------------------------------------------------------------------------------------


def small_images() -> tuple[Federation, nn.Module]:
    random = Key(3).torch()
    data = tuple(
        ClientData(torch.randn(6, 1, 6, 6, generator=random), torch.randint(3, (6,), generator=random)) for _ in "ab"
    )
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(18, 3)
    )
    return Federation(DataInfo("images", (1, 6, 6), 3, "classification"), ("a", "b"), InMemory(data)), model


@pytest.mark.parametrize("kind", [FedALS, FedALSScaffold])
def test_statistics_go_with_their_convolution_and_never_into_variates(kind):
    data, model = small_images()
    task = make_task(data, model, 0)
    method = kind(lr=0.05, steps=1, alpha=2, layers=1)
    state, memories = method.init(task, Key(0)), {}
    trainable = {name for name, _ in task.module.named_parameters()}
    for number in range(1, 5):
        state, messages, replies = play(method, task, data, "ab", state, memories, number)
        due = number % 2 == 0
        assert ("1.running_mean" in replies["a"]["buffers"]) == due
        assert ("1.running_mean" in memories["a"].get("buffers")) != due
        assert "3.running_mean" in replies["a"]["buffers"]
        assert "3.running_mean" in messages["a"]["buffers"]
        if due:
            own = [reply["buffers"]["1.running_mean"] for reply in replies.values()]
            torch.testing.assert_close(state["statistics"]["1.running_mean"], sum(own) / 2)
        if kind is FedALSScaffold:
            assert set(memories["a"]["c_i"]) == trainable
            assert set(state["c"]) == trainable


def test_local_statistics_never_travel():
    data, model = small_images()
    task = make_task(data, model, 0, buffers="local")
    method = FedALS(lr=0.05, steps=1, alpha=2, layers=1)
    state, memories = method.init(task, Key(0)), {}
    counts = []
    for number in range(1, 4):
        state, messages, replies = play(method, task, data, "ab", state, memories, number)
        assert "buffers" not in messages["a"]
        assert "buffers" not in replies["a"]
        counts.append(int(memories["a"]["buffers"]["1.num_batches_tracked"]))
    assert counts == [1, 2, 3]


# -- the reported model ---------------------------------------------------------------------------------------------


def test_the_reported_model_changes_where_all_parts_are_averaged():
    method = FedALS(lr=0.05, steps=1, batch=None, alpha=3)
    shown = []
    for rounds in range(1, 7):
        run = train(method, federation(), model=mlp(), rounds=rounds, loss="half-squares")
        shown.append(run.learned.weights(run.model())["4.weight"])
    assert torch.equal(shown[0], shown[1])
    assert torch.equal(shown[2], shown[4])
    assert not torch.equal(shown[1], shown[2])
    assert not torch.equal(shown[4], shown[5])


def test_reporting_more_often_changes_traffic_but_no_training():
    runs = [
        train(
            FedALS(lr=0.05, steps=1, batch=None, alpha=4, report=report),
            federation(),
            model=mlp(),
            rounds=8,
            loss="half-squares",
            evaluation=Evaluation(every=8),
        )
        for report in (None, 1, 3)
    ]
    for other in runs[1:]:
        for name, value in runs[0].state["model"].items():
            assert torch.equal(other.state["model"][name], value)
    up = [sum(record.metrics["up/bytes"].value for record in run.records) for run in runs]
    assert up[0] < up[2] < up[1]


# -- the budget -----------------------------------------------------------------------------------------------------


def test_a_budget_is_kept_and_spent_on_the_parts_that_move_apart():
    method = FedALS(lr=0.1, steps=2, batch=None, budget=0.3, longest=8)
    run = train(method, federation(), model=mlp(), rounds=9, loss="half-squares")
    periods = run.state.tensor("periods").tolist()
    sizes = [25, 24, 10]
    assert sum(s / p for s, p in zip(sizes, periods, strict=True)) <= 0.3 * sum(sizes)
    assert max(periods) > min(periods)
    task, data = run.task, federation()
    state, memories, sent = method.init(task, Key(0)), {}, []
    for number in range(1, 42):
        state, _, replies = play(method, task, data, "abc", state, memories, number)
        sent.append(sum(value.numel() for value in replies["a"].get("update").values()))
    assert sent[0] == sum(sizes)  # the first round measures
    assert np.mean(sent[1:]) <= 0.3 * sum(sizes) * (1 + 1e-9)
    assert np.mean(sent[1:]) > 0.15 * sum(sizes)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"alpha": 0}, "alpha counts rounds"),
        ({"report": 0}, "report counts rounds"),
        ({"periods": {"0.*": 0}}, "at least 1"),
        ({"layers": 1, "periods": {"0.*": 2}}, "in one way"),
        ({"longest": 12, "budget": 0.5}, "power of two"),
        ({"budget": 0.01}, "between 1/longest"),
        ({"budget": 1.5}, "between 1/longest"),
        ({"lr": 0.0}, "above 0"),
        ({"steps": 0}, "steps must be a whole number of at least 1"),
        ({"optimizer": "sdg"}, "did you mean 'sgd'"),
    ],
)
def test_settings_that_make_no_sense(settings, says):
    with pytest.raises(InputError, match=says):
        FedALS(**settings)


def test_settings_of_the_combination():
    with pytest.raises(InputError, match="SGD steps"):
        FedALSScaffold(optimizer="adam")
    assert (FedALS().steps, FedALS(batch=0).batch) == (5, None)
    assert replace(FedALS(), epochs=2, steps=None).work().epochs == 2


def test_memory_holds_what_is_not_averaged():
    """Twice the representation (where it is and where it started) and the optimizer's state, nothing of the head."""
    method = FedALS(lr=0.05, steps=1, batch=None, alpha=3, options=HEAVY)
    data = federation()
    task = make_task(data, mlp(), 0, "half-squares")
    state, memories = method.init(task, Key(0)), {}
    play(method, task, data, "abc", state, memories, 1)
    phi, everything = 8 * 49, 8 * 59
    assert nbytes(memories["a"].tensors) == 2 * phi + everything
