"""Gains through the engine: nobody is judged on what he was trained on, and who should join is found."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import parley as pl
from parley.advise.gain import estimate as module
from parley.advise.gain import federated, gain, local
from parley.advise.gain.closed import exact_method, linear_problem, make_kernel, moved_per_round
from parley.advise.gain.folds import Deal, Setup, looked_at
from parley.advise.gain.measures import make_measure, score
from parley.advise.gain.result import ClientGain, Gains
from parley.advise.gain.stop import StopAdvice, by_curves, linear_rule
from parley.core.errors import InputError
from parley.core.key import Key
from parley.data import ClientData, DataInfo
from parley.data.sources import InMemory
from parley.engine.settings import Evaluation, Faults, Sampling
from parley.models.dense import Linear, Mlp
from parley.study.train import make_task
from parley.theory import kernel
from parley.theory.gain.models import feature_path

FEDAVG = pl.FedAvg(lr=0.1, steps=5, batch=None)
QUICK = {"folds": 3, "local_rounds": 5, "local_rates": [0.1]}


def federation(sizes: dict[str, int], flipped: tuple[str, ...] = (), seed: int = 0, noise: float = 0.3):
    """Clients with one linear truth, some with its opposite."""
    rng = np.random.default_rng(seed)
    truth, clients = rng.standard_normal(3), {}
    for name, n in sizes.items():
        x = rng.standard_normal((n, 3))
        y = (-1 if name in flipped else 1) * x @ truth + noise * rng.standard_normal(n)
        clients[name] = (x.astype(np.float32), y.astype(np.float32))
    return pl.Federation.from_arrays(clients)


def classes(sizes: dict[str, int], seed: int = 0):
    rng = np.random.default_rng(seed)
    clients = {}
    for name, n in sizes.items():
        y = rng.integers(0, 3, n)
        clients[name] = ((rng.standard_normal((n, 2)) + 1.5 * np.eye(3, 2)[y]).astype(np.float32), y)
    return pl.Federation.from_arrays(clients)


def test_no_model_is_judged_on_what_it_was_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    own = federation({"a": 20, "b": 7, "c": 4, "tiny": 2})
    runs: list[tuple[set[float], list[float]]] = []
    train, train_local = federated.train, local._train

    def spy(algorithm, trained, *, listeners, **options):
        seen = {float(v) for id in trained.ids for v in trained.client(id).x[:, 0]}
        runs.append((seen, listeners[0].data.x[:, 0].tolist()))
        return train(algorithm, trained, listeners=listeners, **options)

    def spy_local(setup, parts, *rest):
        for part in parts:
            assert not (part.train & part.judged).any()
            assert part.train.any()
            assert part.judged.any()
        return train_local(setup, parts, *rest)

    monkeypatch.setattr(federated, "train", spy)
    monkeypatch.setattr(local, "_train", spy_local)
    gain(pl.FedAvg(lr=0.05, epochs=1), own, model=Mlp((3,)), rounds=2, **(QUICK | {"folds": 4}))
    assert len(runs) == 8
    for seen, judged in runs:
        assert not seen & set(judged)
    # The first run of a pair chooses the round and has seen neither fold; the second is judged, on every sample once.
    for (early, _), (_, judged) in zip(runs[::2], runs[1::2], strict=True):
        assert not early & set(judged)
    everything = [float(v) for id in ("a", "b", "c") for v in own.client(id).x[:, 0]]
    assert sorted(value for _, judged in runs[1::2] for value in judged) == sorted(everything)
    assert {float(v) for v in own.client("tiny").x[:, 0]} <= runs[0][0]


@pytest.mark.parametrize("model", [Linear(zero=True), Mlp((8,), activation="tanh")])
def test_who_should_join_is_found(model) -> None:
    own = federation({"small": 8, "a": 60, "b": 60, "against": 60}, ("against",))
    gains: dict[str, list[float]] = {}
    for seed in range(3):
        found = gain(pl.FedAvg(lr=0.05, epochs=2), own, model=model, rounds=8, folds=5, local_rounds=20, seed=seed)
        rows = {one.client: one for one in found.clients}
        assert rows["against"].decision == "stay alone"
        assert rows["against"].gain < 0.3
        assert all(one.low <= one.gain <= one.high for one in found.clients)
        assert found.measure == "mean squared error"
        for one in found.clients:
            gains.setdefault(one.client, []).append(one.gain)
    means = {client: sum(own) / len(own) for client, own in gains.items()}
    assert means["small"] > means["a"] > means["against"]


@pytest.mark.parametrize("measure", ["loss", "error-rate", "brier"])
def test_classes(measure: str) -> None:
    own = classes({"a": 30, "b": 30, "one": 1})
    found = gain(pl.FedAvg(lr=0.1, epochs=1), own, model=Mlp((4,)), rounds=4, measure=measure, **QUICK)
    assert found.measure == {"loss": "cross-entropy", "error-rate": "error rate", "brier": "Brier score"}[measure]
    assert [one.decision for one in found.clients][2] == "too few samples"
    if measure == "error-rate":
        assert all(0 <= one.local_error <= 1 for one in found.clients[:2])
    assert found.stop.round in range(5)
    assert found.stop.low <= found.stop.high


def test_the_runtime_does_not_change_the_answer() -> None:
    own = classes({"a": 15, "b": 12})
    stacked, inline = (
        gain(pl.FedAvg(lr=0.1, epochs=1), own, model=Mlp((4,)), rounds=3, runtime=runtime, **QUICK)
        for runtime in ("stacked", "inline")
    )
    for one, other in zip(stacked.clients, inline.clients, strict=True):
        assert one.local_error == pytest.approx(other.local_error, rel=1e-4)
        assert one.gain == pytest.approx(other.gain, rel=1e-3)


def test_any_module_and_any_algorithm() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.drop, self.last = nn.Linear(2, 5), nn.Dropout(0.2), nn.Linear(5, 3)

        def forward(self, x):
            return self.last(self.drop(torch.relu(self.first(x))))

    own = classes({"a": 9, "b": 9})
    for method in (pl.Scaffold(lr=0.1, steps=2), pl.FedSGD(), pl.FedAdam(lr=0.1), pl.FedDyn(lr=0.1)):
        found = gain(method, own, model=Odd(), rounds=2, folds=3, local_rounds=2)
        assert all(np.isfinite(one.gain) for one in found.clients)


def test_a_model_that_diverges_is_not_chosen() -> None:
    own = federation({"a": 20, "b": 20})
    found = gain(pl.FedAvg(lr=0.05, epochs=1), own, model=Mlp((3,)), rounds=2, folds=3, local_rates=[0.05, 1e30])
    assert all(one.local_error < 10 for one in found.clients)


def test_a_sample_of_clients_is_judged_and_all_train(monkeypatch: pytest.MonkeyPatch) -> None:
    own, trained = classes({str(i): 8 for i in range(6)}), []
    train = federated.train
    monkeypatch.setattr(
        federated, "train", lambda method, fed, **rest: trained.append(len(fed)) or train(method, fed, **rest)
    )
    found = gain(pl.FedAvg(), own, model=Mlp((2,)), rounds=1, clients=2, **QUICK)
    assert len(found.clients) == 2
    assert found.population == 6
    assert set(trained) == {6}
    assert "2 clients (drawn from 6)" in found.summary()


def test_repeats_deal_anew() -> None:
    own = classes({"a": 12, "b": 12})
    once, twice = (gain(pl.FedAvg(), own, model=Mlp((2,)), rounds=2, repeats=r, **QUICK) for r in (1, 2))
    assert once.clients[0].local_error != twice.clients[0].local_error
    assert twice.how.endswith("3 folds, 2 times.")


# -- in closed form ----------------------------------------------------------------------------------------------------


def setup_of(algorithm, own, model, loss=None, rounds=10) -> Setup:
    return Setup(algorithm, own, make_task(own, model, 0, loss), rounds, Sampling(), Faults(), 0)


@pytest.mark.parametrize("loss", ["mse", "half-squares"])
@pytest.mark.parametrize("method", [FEDAVG, pl.LocalUpdate(lr=0.1, epochs=3, batch=None, server=pl.Descent(lr=0.1))])
def test_the_closed_form_is_the_training(loss: str, method) -> None:
    own = federation({"a": 20, "b": 9, "c": 4})
    setup = setup_of(method, own, Linear(), loss)
    problem = linear_problem(setup, [own.client(id) for id in own.ids])
    exact = exact_method(setup, problem.scale)
    run = pl.train(method, own, model=Linear(), rounds=6, loss=loss, evaluation=Evaluation(central=False))
    start = problem.coordinates(np.concatenate([v.double().numpy().ravel() for v in setup.task.initial().values()]))
    path = feature_path(kernel.Identity(), exact, [0, 6], start)
    at = path(problem.designs, [y[:, 0] for y in problem.targets])
    x = torch.randn(5, 3, generator=Key(1).torch())
    points = np.hstack([x.double().numpy(), np.ones((5, 1))])
    np.testing.assert_allclose(at(points)[:, 1], run.predict(x)[:, 0].double(), rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(at(points)[:, 0], points @ start)
    assert moved_per_round(setup, problem.scale, [20, 9, 4]) == pytest.approx(exact.eta * exact.s)


def test_only_the_paper_s_fedavg_is_taken_in_closed_form() -> None:
    own = federation({"a": 20, "b": 20})
    assert exact_method(setup_of(FEDAVG, own, Linear()), 1.0) == kernel.GradientSteps(0.1, 5)
    others = (
        pl.FedAvg(lr=0.1, steps=5),
        pl.FedProx(lr=0.1, steps=5, batch=None),
        pl.FedAvgM(lr=0.1, steps=5, batch=None),
        pl.FedAvg(lr=0.1, steps=5, batch=None, options={"momentum": 0.5}),
        pl.Scaffold(lr=0.1, steps=5, batch=None),
        pl.LocalUpdate(lr=0.1, steps=5, batch=None, server=pl.Descent(lr=0.2)),
        pl.MAML(batch=None),
    )
    for method in others:
        assert exact_method(setup_of(method, own, Linear()), 1.0) is None
    changed = replace(setup_of(FEDAVG, own, Linear()), faults=Faults(dropout=0.1))
    assert exact_method(changed, 1.0) is None
    assert exact_method(replace(changed, faults=Faults(), sampling=Sampling(size=1)), 1.0) is None


def test_closed_form_and_training_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    own = federation({"a": 60, "b": 60, "against": 60}, ("against",))
    closed = gain(FEDAVG, own, model=Linear(), rounds=10)
    assert closed.how.startswith("Closed form")
    monkeypatch.setattr("parley.advise.gain.closed.exact_method", lambda *_: None)
    trained = gain(FEDAVG, own, model=Linear(), rounds=10, folds=4)
    assert trained.how.startswith("Trained")
    for one, other in zip(closed.clients, trained.clients, strict=True):
        assert one.federated_error == pytest.approx(other.federated_error, rel=0.3)
        assert one.local_error == pytest.approx(other.local_error, rel=0.25)
    assert closed.stop.round == trained.stop.round
    assert closed.clients[2].decision == trained.clients[2].decision == "stay alone"


def test_steps_too_large_for_the_closed_form_are_trained() -> None:
    own = federation({"a": 12, "b": 12})
    found = gain(pl.FedAvg(lr=0.3, steps=1, batch=None), own, model=Linear(), rounds=2, **QUICK)
    assert found.how.startswith("Trained")
    assert "too large for the closed form" in found.notes[0]


def test_kernels() -> None:
    rng = np.random.default_rng(0)
    x = [rng.uniform(-1, 1, (n, 1)).astype(np.float32) for n in (10, 40, 40)]
    signs = (1, 1, -1)
    y = [(s * np.sin(3 * p[:, 0]) + 0.1 * rng.standard_normal(len(p))).astype(np.float32) for s, p in zip(signs, x)]  # noqa: B905
    own = pl.Federation.from_arrays({str(i): pair for i, pair in enumerate(zip(x, y, strict=True))})
    found = gain(pl.FedAvg(lr=0.5, steps=3), own, model=Linear(), rounds=20, kernel="rbf", folds=3, repeats=1)
    assert found.clients[2].decision == "stay alone"
    assert "RBF(lengthscale=" in found.how
    assert found.stop.rule.norm == 1.0
    points = np.vstack(x).astype(np.float64)
    assert make_kernel("rbf", 0.3, points) == kernel.RBF(0.3)
    assert make_kernel("laplace", None, points).lengthscale == pytest.approx(
        np.median(np.abs(points[:, 0][:, None] - points[:, 0])[np.triu_indices(90, 1)])
    )
    with pytest.raises(InputError, match="did you mean 'laplace'"):
        make_kernel("laplac", None, points)
    with pytest.raises(InputError, match="has no lengthscale"):
        make_kernel("linear", 1.0, points)


def test_the_kernel_algorithm_of_a_study_is_taken_in_closed_form() -> None:
    own = federation({"a": 12, "b": 20, "c": 16})
    method = pl.algorithms.algorithms["kernel-fedprox"](lr=2.0, kernel=kernel.RBF(2.0))
    found = gain(method, own, model=Linear(zero=True), rounds=5, folds=3, repeats=1)
    assert "RBF(lengthscale=2.0)" in found.how
    assert "FedProx with step 2 at its best round" in found.how
    assert found.stop.rule is not None
    # From another start the closed form would not be the study's, so it is trained.
    trained = gain(method, own, model=Linear(), rounds=2, **QUICK)
    assert trained.how.startswith("Trained")


# -- when to stop ------------------------------------------------------------------------------------------------------


def test_the_linear_rule_is_equation_23() -> None:
    rng = np.random.default_rng(0)
    Z, method = rng.standard_normal((60, 4)), kernel.GradientSteps(0.1, 5)
    y = Z @ rng.standard_normal(4) + 0.4 * rng.standard_normal(60)
    own = kernel.KernelFederation.of(kernel.Linear(), [Z[:20], Z[20:]], method)
    expected = kernel.stopping_round(kernel.exact_spectrum(own).kernel, 60, method, 0.3, norm=2.0)
    found = linear_rule(Z, y, method.eta * method.s, rounds=3, sigma=0.3, norm=2.0)
    assert found.round == expected.T
    assert "standard deviation of 0.3 (given)" in found.reason
    left = np.linalg.lstsq(Z, y, rcond=None)[1][0]
    assert linear_rule(Z, y, 0.5, 3).rule.sigma == pytest.approx(np.sqrt(left / 56), rel=0.02)
    assert "takes the start to be 2 away" in found.reason
    assert linear_rule(Z, y, 0.5, 3, sigma=0.1).round > linear_rule(Z, y, 0.5, 3, sigma=1.0).round
    wide = rng.standard_normal((5, 20))
    assert linear_rule(wide, rng.standard_normal(5), 0.5, 3).round is None
    assert linear_rule(np.zeros((5, 2)), np.ones(5), 0.5, 3).round is None


def test_the_least_held_out_error() -> None:
    curves = np.array([[3.0, 1.0, 2.0, 2.0], [3.0, 2.0, 1.5, np.nan]])
    found = by_curves(curves, [0, 1, 5, 9])
    assert (found.round, found.low, found.high) == (1, 1, 5)
    assert "still falling" in by_curves(np.array([[2.0, 1.0]]), [0, 7]).reason


# -- pieces ------------------------------------------------------------------------------------------------------------


def test_dealing() -> None:
    own = classes({"a": 23, "b": 3, "c": 2, "d": 40})
    deal = Deal(5, Key(3), own.source)
    assert sorted(np.bincount(deal.groups(0))) == [4, 4, 5, 5, 5]
    assert len(set(deal.groups(1).tolist())) == 3
    assert set(deal.groups(2).tolist()) == {-1}
    rest = deal.federation(own, (0, 1))
    for number, id in enumerate(own.ids):
        kept = ~np.isin(deal.groups(number), (0, 1))
        assert rest.size(id) == len(rest.client(id)) == kept.sum() > 0
        assert torch.equal(rest.client(id).x, own.client(id).x[torch.from_numpy(kept)])


def test_rounds_looked_at() -> None:
    assert looked_at(3) == [0, 1, 2, 3]
    for rounds in (1, 41, 1000):
        found = looked_at(rounds)
        assert found[0] == 0
        assert found[-1] == rounds
        assert len(found) <= 72
        stages = local.stages(rounds)
        assert stages[0] == 0
        assert stages[-1] == rounds
        assert all(after - before <= max(1, before // 3) for before, after in pairwise(stages))


def test_measures() -> None:
    own = classes({"a": 5})
    task = make_task(own, Mlp((2,)), 0)
    outputs, y = torch.tensor([[2.0, 0, 0], [0, 3.0, 0]]), torch.tensor([0, 2])
    wrong, loss = make_measure(task, "error-rate")(outputs, y)
    assert wrong.tolist() == [0, 1]
    torch.testing.assert_close(make_measure(task, "loss")(outputs, y)[0], loss)
    # Fewer errors win; among equals the smaller loss; a model that diverged never.
    errors = np.array([[[1.0, 0], [0, 0], [0, 0], [np.nan, 0]], [[0.1, 0.1], [0.4, 0], [0.3, 0], [0, 0]]])
    assert int(np.argmin(score(errors))) == 2


def test_the_brier_score_is_the_squared_error_of_the_probabilities() -> None:
    task = make_task(classes({"a": 6}), Mlp((2,)), 0)
    outputs = torch.log(torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.25, 0.25]]))
    found = make_measure(task, "brier")(outputs, torch.tensor([0, 2]))
    torch.testing.assert_close(found[0], torch.tensor([0.09 + 0.04 + 0.01, 0.25 + 0.0625 + 0.5625]).double())


def test_closed_forms_name_the_squared_error_they_give() -> None:
    """Half the squares is the loss trained with, not the number shown."""
    own = federation({"a": 40, "b": 40}, noise=1.0)
    halves, squares = (gain(FEDAVG, own, model=Linear(), rounds=5, loss=loss) for loss in ("half-squares", "mse"))
    assert halves.how.startswith("Closed form")
    assert halves.measure == squares.measure == "mean squared error"
    # The noise has variance 1, and no model's squared error is below it.
    assert all(0.6 < one.local_error < 2 for one in halves.clients)


def test_classes_hardly_seen_are_warned_of_under_cross_entropy_only() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((20, 2)).astype(np.float32), np.array([0] * 10 + [1] * 9 + [2])
    own = pl.Federation.from_arrays({"a": (x, y), "b": (x, np.arange(20) % 3)})
    warned = [
        any("1 of 2 clients have classes with fewer than 3 samples" in note for note in found.notes)
        for found in (
            gain(pl.FedAvg(), own, model=Mlp((2,)), rounds=1, measure=name, **QUICK) for name in ("loss", "brier")
        )
    ]
    assert warned == [True, False]


def test_several_seeds_widen_the_intervals_by_the_luck_of_training() -> None:
    own = federation({"a": 20, "b": 20}, noise=1.0)
    once, often = (
        gain(pl.FedAvg(lr=0.3, epochs=1, batch=4), own, model=Mlp((3,)), rounds=3, seeds=n, **QUICK) for n in (1, 3)
    )
    assert (once.trainings, often.trainings) == (1, 3)
    assert "exclude variance between training runs" in once.summary()
    assert "include variance between training runs (3 seeds)" in often.summary()
    assert any(b.high - b.low > a.high - a.low for a, b in zip(once.clients, often.clients, strict=True))
    closed = gain(FEDAVG, own, model=Linear(), rounds=3, seeds=3)
    assert closed.trainings == 1
    assert any("--seeds changes nothing" in note for note in closed.notes)


def test_the_output_speaks_plainly() -> None:
    own = federation({"a": 12, "b": 12})
    for found in (
        gain(FEDAVG, own, model=Linear(), rounds=3),
        gain(pl.FedAvg(), own, model=Mlp((2,)), rounds=1, **QUICK),
    ):
        text = " ".join([found.summary(), found.stop.reason, found.how, *found.notes])
        assert "new data of that client: new samples from the same distribution" in text
        for jargon in ("paper 0", "||", "_H", "(23)"):
            assert jargon not in text


def test_what_is_likely_and_what_is_sure_are_told_apart() -> None:
    stop = StopAdvice(3, "as asked for.")
    rows = [
        ClientGain(name, 20, 1.0, 1.0 / g, g, low, high, "undecided")
        for name, g, low, high in (("a", 1.4, 0.9, 2.0), ("b", 1.3, 1.1, 1.5), ("c", 1.2, 0.8, 1.7))
    ]

    def words(*clients: ClientGain) -> str:
        return Gains(clients, len(clients), "brier score", 0.9, "by hand", stop).summary().partition(" Gain =")[0]

    assert words(*rows) == (
        "Of 3 clients, 3 have an estimated gain above 1 and 0 below; the interval lies above 1 for 1 of them and below "
        "1 for 0. Controlling errors over all clients: 0 gain, 0 lose, 3 undecided."
    )
    sure = ClientGain("d", 9, 1.0, 0.5, 2.0, 1.5, 2.5, "join")
    worse = ClientGain("e", 9, 1.0, 2.0, 0.5, 0.4, 0.6, "stay alone")
    assert words(sure, worse, ClientGain("f", 1)) == (
        "Of 3 clients, 1 has an estimated gain above 1 and 1 below; the interval lies above 1 for 1 of them and below "
        "1 for 1. Controlling errors over all clients: 1 gains, 1 loses, 0 undecided, 1 has "
        "too few samples."
    )


def test_tables() -> None:
    own = classes({"a": 12, "one": 1})
    found = gain(pl.FedAvg(), own, model=Mlp((2,)), rounds=1, **QUICK)
    lines = found.csv().splitlines()
    assert lines[0] == "client,samples,local_error,federated_error,gain,low,high,decision"
    assert lines[2] == "one,1,,,,0.0,,too few samples"
    whole = json.loads(found.json())
    assert whole["clients"][1]["gain"] is None
    assert whole["decisions"]["too few samples"] == 1
    assert pl.gain is gain
    assert pl.Gains is module.Gains


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"algorithm": pl.LocalOnly()}, "local-only keeps a model per client and has none of the server's"),
        ({"folds": 2}, "folds must be at least 3, not 2"),
        ({"folds": 13}, "13 folds, but no client has more than 12 samples"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"measure": "brier"}, "the Brier score is for classes"),
        ({"level": 1.0}, "between 0 and 1, not 1"),
        ({"clients": 0}, "at least 1, not 0"),
        ({"rounds": 0}, "at least 1"),
        ({"local_rates": [-1.0]}, "must be positive"),
        ({"measure": "eror-rate"}, "did you mean 'error-rate'"),
        ({"measure": "error-rate"}, "this is a regression"),
        ({"kernel": "rfb"}, "did you mean 'rbf'"),
        ({"federation": federation({"a": 2, "b": 1})}, "no client has more than 2 samples"),
        ({"federation": classes({"a": 9}), "kernel": "rbf"}, "needs a regression study"),
        ({"algorithm": pl.FedAvg(lr=1e30)}, "the federated model could not be trained without fold 0"),
    ],
)
def test_bad_input(change: dict, sentence: str) -> None:
    given = {"algorithm": pl.FedAvg(), "federation": federation({"a": 12, "b": 5}), "model": Mlp((2,)), "rounds": 2}
    given |= QUICK | change
    with pytest.raises(InputError, match=sentence):
        gain(given.pop("algorithm"), given.pop("federation"), **given)


def test_numbers_that_are_none_are_named() -> None:
    x, y = np.ones((5, 2), dtype=np.float32), np.ones(5, dtype=np.float32)
    y[3] = np.nan
    clients = [ClientData(torch.from_numpy(x), torch.from_numpy(each)) for each in (np.ones(5, dtype=np.float32), y)]
    own = pl.Federation(DataInfo("own", (2,), 1, "regression"), ("good", "bad"), InMemory(tuple(clients)))
    with pytest.raises(InputError, match="client 'bad' has NaN or infinite targets"):
        gain(pl.FedAvg(), own, model=Linear(), rounds=1)
