"""FFGB as runs: what travels, what is kept, what goes wrong, and how well it does on real tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import parley as pl
from parley.algorithms.boosting.ffgb import FFGB
from parley.algorithms.boosting.weak import Estimator, KernelRidge, Linear, Network, RegressionTree
from parley.algorithms.exchange import exchange
from parley.conformance.boosting_oracles import Cones
from parley.conformance.boosting_problems import shifted
from parley.core.context import Context
from parley.core.errors import InputError, QuorumError, UnsupportedError
from parley.core.key import Key
from parley.core.message import Memory, Message
from parley.data import ClientData, DataInfo, Federation
from parley.engine.observers import WeakLearning
from parley.engine.settings import Evaluation, Sampling
from parley.models import mlp
from parley.study.train import train
from parley.training.losses import cross_entropy
from parley.training.task import Task

QUIET = Evaluation(central=False, clients="none")


# --- what travels ---


@pytest.fixture(scope="module")
def table() -> Federation:
    random = np.random.default_rng(1)
    clients = {}
    for number in range(5):
        x = random.normal(size=(30 + 5 * number, 4)).astype(np.float32)
        clients[f"c{number}"] = (x, (x[:, 0] * x[:, 1] > 0).astype(np.int64) + (x[:, 2] > 1))
    x = random.normal(size=(50, 4)).astype(np.float32)
    return Federation.from_arrays(clients, test=(x, (x[:, 0] * x[:, 1] > 0).astype(np.int64) + (x[:, 2] > 1)))


def test_messages_are_the_new_learners_and_nothing_else(table):
    """A client that was away receives what it missed; a new one everything."""
    run = train(FFGB(steps=2, learner=RegressionTree(3)), table, rounds=6, runtime="inline", cohort=3)
    tree = 7 * (2 + 4) + 8 * 3 * 4
    last, total = {}, 0
    for record in run.records[1:]:
        asked = record.metrics["down/bytes"].clients
        for sent in record.metrics["up/bytes"].clients.values():
            assert 2 * tree < sent < 2 * tree + 400
        for client, received in asked.items():
            rounds = record.number - max(last.get(client, 0), 1)
            added = 3 * 2 * (tree + 8) + 8  # three clients' two trees, their coefficients, and a decay
            assert rounds * added <= received < rounds * (added + 500) + 200, (record.number, client)
            total += rounds
        last |= dict.fromkeys(asked, record.number)
    assert total > 5
    assert {name.split("/", 1)[1] for name in run.state.get("learners")} == {
        "features",
        "thresholds",
        "values",
        "coefficients",
        "decay",
    }


def test_only_new_trees_are_written_at_a_checkpoint(table, tmp_path):
    run = train(FFGB(), table, rounds=6, runtime="inline", store=tmp_path / "runs.db", checkpoint=0)
    files = sorted(tmp_path.glob("**/state-*.safetensors"))
    assert len(files) == 6
    sizes = [file.stat().st_size for file in files]
    assert max(sizes) == min(sizes)
    assert run.memory("c1").tensors["f"].shape == (35, 3)


@pytest.mark.parametrize("learner", [RegressionTree(3), Linear(), KernelRidge(), Network(epochs=20, lr=0.01)])
def test_the_same_bits_in_processes_and_when_resumed(table, tmp_path, learner):
    more = {"model": mlp(4)} if learner.needs_model else {}
    method = FFGB(lr=0.5, steps=2, mu=0.1, learner=learner)
    whole = train(method, table, rounds=4, runtime="inline", cohort=3, seed=2, **more)
    train(method, table, rounds=2, runtime="inline", cohort=3, seed=2, store=tmp_path / "runs.db", **more)
    resumed = train(
        method, table, rounds=4, runtime="inline", cohort=3, seed=2, store=tmp_path / "runs.db", resume=True, **more
    )
    others = [resumed]
    if isinstance(learner, RegressionTree):  # the others take the same way
        others.append(train(method, table, rounds=4, runtime="pool", workers=2, cohort=3, seed=2))
    for other in others:
        assert whole.series("central/loss")[1].tolist() == other.series("central/loss")[1].tolist()
        for name, value in whole.state.tensors.items():
            assert torch.equal(value, other.state.tensors[name]), name


def test_evaluation_from_scratch_gives_the_bits_of_evaluation_round_by_round(table):
    method = FFGB(lr=0.7, steps=2, mu=0.05, learner=RegressionTree(3))
    run = train(method, table, rounds=7, runtime="inline")
    x = table.test.x
    grown = None
    for number in range(1, 8):
        part = {n: v for n, v in run.state.get("learners").items() if int(n[:6]) == number}
        grown = run.learned.outputs(Message.of(learners=part), None, x, grown)
    assert torch.equal(run.predictor()(x), grown)
    loss = cross_entropy(grown, table.test.y).mean()
    assert run.series("central/loss")[1][-1] == pytest.approx(float(loss), rel=1e-12)


def test_a_stack_is_refused_in_a_sentence(table):
    with pytest.raises(UnsupportedError, match='use "inline"'):
        train(FFGB(learner=Network(epochs=1)), table, model=mlp(4), rounds=1, runtime="stacked")


# --- one class, and other things that go wrong ---


def test_clients_of_one_class_learn_constants():
    """Every gradient is constant in x: right, and at chance, as the page says."""
    random = np.random.default_rng(0)
    clients = {str(c): (random.normal(size=(20, 2)).astype(np.float32) + 5 * c, np.full(20, c)) for c in range(3)}
    run = train(FFGB(lr=0.5), Federation.from_arrays(clients), rounds=5, runtime="inline", evaluation=QUIET)
    out = run.predictor()(torch.from_numpy(random.normal(size=(40, 2)).astype(np.float32) * 9))
    assert torch.allclose(out, out[:1].expand_as(out), atol=1e-12)


def test_bad_input_is_refused(table):
    for wrong in ({"steps": 0}, {"lr": 0.0}, {"mu": -1.0}):
        with pytest.raises(InputError, match="steps must be at least 1, lr above 0 and mu at least 0"):
            FFGB(**wrong)
    with pytest.raises(InputError, match="constant must be above 0"):
        FFGB(constant=0.0)
    with pytest.raises(InputError, match="square loss"):
        train(FFGB(oracle="lipschitz", learner=Linear()), table, rounds=1)
    with pytest.raises(UnsupportedError, match='RegressionTree cannot be fitted in the norm "lipschitz"'):
        train(FFGB(oracle="lipschitz"), own_regression(), rounds=1, loss="half-squares")
    with pytest.raises(InputError, match="no module to take out"):
        train(FFGB(learner=Linear()), table, rounds=1, runtime="inline").module()


def own_regression(conflict: bool = False) -> Federation:
    x = np.linspace(0, 1, 8)[:, None]
    y = np.sin(3 * x)
    x = np.concatenate([x, x]) if conflict else x
    y = np.concatenate([y, y + 1]) if conflict else y
    return Federation.from_arrays({"a": (x, y), "b": (x + 0.1, y)})


def fails(method: FFGB, federation: Federation, says: str, **more: Any) -> None:
    with pytest.raises(QuorumError, match=says):
        train(method, federation, rounds=1, runtime="inline", loss="half-squares", **more)


def test_a_client_says_what_is_wrong_with_its_data_or_learner():
    lipschitz = FFGB(oracle="lipschitz", learner=Linear())
    fails(lipschitz, own_regression(conflict=True), "different labels at the same input")
    fails(replace(lipschitz, constant=0.5), own_regression(), "more than 0.5; raise algorithm.constant")
    wild = Network(epochs=5, lr=50.0, optimizer="sgd", clip=None)
    fails(FFGB(learner=wild), own_regression(), r"gamma = -|NaN or infinite|gamma = nan", model=mlp(4))


def test_labels_out_of_range_are_named():
    about = Task(None, cross_entropy, DataInfo("any", (3,), 3, "classification"), 1)
    data = ClientData(torch.zeros(4, 3), torch.tensor([0, 1, 2, 3]))
    with pytest.raises(InputError, match="label 3 or 0 outside of 0 to 2"):
        FFGB().client(about, Message(), Memory(), data, Context.alone(Key()))


def test_a_tree_that_looks_at_no_column_of_ours_is_left_out(table):
    class Hostile(FFGB):
        @exchange(like=FFGB.client)
        def client(self, task, message, memory, data, context):
            reply = super().client(task, message, memory, data, context)
            if context.id != "c2":
                return reply
            learners = reply.message["learners"]
            return replace(reply, message=Message.of(learners=learners | {"features": learners["features"] + 90}))

    run = train(Hostile(learner=RegressionTree(2)), table, rounds=2, runtime="inline")
    assert run.records[1].metrics["server/unsound"].value == 1
    assert len(run.state.get("learners")["000001/values"]) == 4


def test_any_regressor_works_in_one_process_alone(table):
    from sklearn.neighbors import KNeighborsRegressor

    method = FFGB(learner=Estimator(KNeighborsRegressor(3)))
    run = train(method, table, rounds=3, runtime="inline")
    assert run.series("central/accuracy")[1][-1] > run.series("central/accuracy")[1][0]
    with pytest.raises(QuorumError, match="KNeighborsRegressor cannot leave the process it was fitted in"):
        train(method, table, rounds=1, runtime="wire", workers=1)


def test_what_oracles_achieve_is_recorded(table):
    run = train(FFGB(steps=3), table, rounds=2, runtime="inline", listeners=[WeakLearning()])
    gamma = run.records[-1].metrics["weak/gamma"]
    assert 0 < gamma.value <= 1
    assert gamma.value == min(gamma.clients.values())
    for name in ("gradient", "query", "learner", "residual", "function"):
        assert f"weak/{name}" in run.records[-1].metrics
    problem = shifted(0.5)
    run = problem.run(FFGB(lr=0.5, learner=Cones(0.5), oracle="lipschitz"), 1, (WeakLearning(),))
    found = {
        name: run.records[-1].metrics[f"weak/{name}"].value for name in ("gamma/values", "gamma/constant", "L", "B")
    }
    assert found["gamma/values"] == pytest.approx(0.5)
    assert found["gamma/constant"] == pytest.approx(0.5)
    assert 1 < found["L"] < 2
    assert found["B"] <= 1


# --- real tables, with the settings that docs/boosting.md says how were chosen ---


def compared(name: str, method: FFGB, rounds: int, seed: int) -> tuple[float, float, float]:
    """Accuracy of FFGB at s = .3 with ten clients, of scikit-learn's boosting on all data, and of clients alone."""
    from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier

    federation = pl.data.load(name).split(pl.SHomogeneity(0.3), clients=10, seed=seed)
    clients = [federation.client(i) for i in federation.ids]
    test, depth = federation.test, method.learner.depth
    run = train(method, federation, rounds=rounds, seed=seed, runtime="inline", evaluation=Evaluation(every=rounds))
    if name == "digits":
        made = HistGradientBoostingClassifier(
            max_iter=rounds, max_depth=depth, max_leaf_nodes=None, early_stopping=False
        )
    else:
        made = GradientBoostingClassifier(n_estimators=rounds, max_depth=depth, random_state=0)

    def score(data: ClientData) -> float:
        return float(
            made.fit(data.x.flatten(1).numpy(), data.y.numpy()).score(test.x.flatten(1).numpy(), test.y.numpy())
        )

    pooled = ClientData(torch.cat([c.x for c in clients]), torch.cat([c.y for c in clients]))
    alone = [score(client) for client in clients[:: 1 if name != "digits" else 5]]
    return run.series("central/accuracy")[1][-1], score(pooled), float(np.mean(alone))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_trees_come_close_to_pooled_boosting_and_beat_clients_alone(seed: int):
    found, pooled, alone = compared("breast-cancer", FFGB(lr=0.3, learner=RegressionTree(5)), 40, seed)
    assert found >= pooled - 0.05
    assert found >= alone + 0.03


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_trees_on_the_digits(seed: int):
    found, pooled, alone = compared("digits", FFGB(lr=1.0, steps=4, learner=RegressionTree(3, leaf=5)), 24, seed)
    assert found >= pooled - 0.05
    assert found >= alone + 0.3


@pytest.mark.parametrize("name", ["breast-cancer", "digits"])
def test_at_s_0_clients_of_one_class_leave_the_ensemble_at_chance(name: str):
    """The same prediction for every input: right for some class, whatever is trained."""
    whole = pl.data.load(name)
    classes = 2 if name == "breast-cancer" else 10
    federation = whole.split(pl.SHomogeneity(0.0), clients=classes, seed=0)
    sorted_out = {
        str(c): tuple(
            torch.cat(part).numpy()
            for part in zip(
                *[(d.x[d.y == c], d.y[d.y == c]) for d in map(federation.client, federation.ids)], strict=True
            )
        )
        for c in range(classes)
    }
    test = federation.test
    one_class = pl.Federation.from_arrays(sorted_out, test=(test.x.numpy(), test.y.numpy()))
    run = train(FFGB(lr=1.0), one_class, rounds=5, runtime="inline", cohort=Sampling(weights="uniform"))
    shares = torch.bincount(test.y).double() / len(test.y)
    assert any(run.series("central/accuracy")[1][-1] == pytest.approx(float(share)) for share in shares)
