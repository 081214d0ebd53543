"""What can be read off: inputs by division, labels by signs, targets of kernel methods; against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeRegressor
from torch import nn

import parley as pl
from parley.attack.evidence import gradient_of, jacobian
from parley.attack.exact import divided, first_layer, from_gradient, from_jacobian, label_share, labels
from parley.attack.intercept import Prepared, SeenExchange, intercept
from parley.attack.membership import auc
from parley.attack.quality import matching_order, quality
from parley.attack.surfaces import kernel_targets
from parley.attack.trees import alone_in_leaf, residuals, tree_evidence
from parley.attack.verbatim import disclosed
from parley.core.key import Key
from parley.data import ClientData, Federation
from parley.study.study import Study
from parley.training.losses import half_squares

SIDE = 5


def federation(seed: int, samples: int = 6, classes: int = 4) -> Federation:
    draw = np.random.default_rng(seed)
    return Federation.from_arrays(
        {str(i): (draw.standard_normal((samples, SIDE)), np.arange(i, i + samples) % classes) for i in range(3)}
    )


def prepared(method: pl.Algorithm, seed: int, module: nn.Module | None = None) -> Prepared:
    fed = federation(seed)
    return Prepared.of(Study(method, fed, module or pl.models.mlp(16), seed=seed))


def some(place: Prepared, rows: int) -> ClientData:
    data = place.federation.client("1")
    return ClientData(data.x[:rows], data.y[:rows])


@given(seed=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
@pytest.mark.parametrize("method", [pl.FedSGD(), pl.FedAvg(lr=0.3), pl.FedProx(lr=0.1, steps=1)])
def test_one_sample_s_input_and_label_stand_in_what_it_sends(method: pl.Algorithm, seed: int) -> None:
    place = prepared(method, seed)
    victim = some(place, 1)
    seen = intercept(place, victim, Key(seed))
    found = gradient_of(place, seen, 1)
    assert found is not None
    x = found.exact(torch.zeros(SIDE, dtype=torch.float64))
    if all(float(value.abs().max()) == 0 for value in found.tree.values()):
        return  # a network whose units all sleep tells nothing
    if float(found.tree[first_layer(place.task)[1]].abs().max()) > 1e-6:
        torch.testing.assert_close(x, victim.x.double(), rtol=1e-4, atol=1e-5)
    assert found.labels((-1.0, 1.0)).tolist() == victim.y.tolist()


@given(seed=st.integers(0, 10**6), samples=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_a_jacobian_holds_every_sample_s_input(seed: int, samples: int) -> None:
    place = prepared(pl.FedSGD(), seed)
    weights = {name: value.double() for name, value in place.task.initial().items()}
    x = some(place, samples).x.double()
    rows = [jacobian(place.task, weights, {}, one) for one in x]
    name, bias = first_layer(place.task)
    found = from_jacobian(
        torch.stack([own[name] for own in rows]), torch.stack([own[bias] for own in rows]), torch.zeros(SIDE).double()
    )
    awake = torch.stack([own[bias].abs().max() for own in rows]) > 1e-9
    torch.testing.assert_close(found[awake], x[awake], rtol=1e-8, atol=1e-8)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_units_of_their_own_give_a_batch_away(seed: int) -> None:
    """Two units for every sample, and some for all of them together."""
    draw = np.random.default_rng(seed)
    x, delta = torch.from_numpy(draw.standard_normal((3, SIDE))), torch.from_numpy(draw.standard_normal((3, 9)))
    own = torch.zeros(3, 9).double()
    own[0, :2] = own[1, 2:4] = own[2, 4:6] = 1
    own[:, 6:] = 1
    delta = delta * own
    found = from_gradient(delta.T @ x, delta.sum(0), 3, torch.zeros(SIDE).double())
    order = matching_order(x, found)
    torch.testing.assert_close(found[order], x, rtol=1e-7, atol=1e-7)


def test_entries_that_were_not_sent_count_for_nothing() -> None:
    x, delta, fill = torch.tensor([2.0, -3.0, 0.5]), torch.tensor([1.0, -2.0]), torch.tensor([9.0, 9.0, 9.0])
    weight = torch.outer(delta, x)
    weight[0, 0] = 0  # unit 1 still shows it
    weight[:, 2] = 0  # of this pixel nothing came
    assert torch.allclose(divided(weight, delta, fill), torch.tensor([2.0, -3.0, 9.0]))


@given(seed=st.integers(0, 10**6), samples=st.integers(2, 12))
@settings(max_examples=30, deadline=None)
def test_counts_of_labels_are_exact_where_the_mean_probabilities_are_known(seed: int, samples: int) -> None:
    draw = np.random.default_rng(seed)
    place = prepared(pl.FedSGD(), 0)
    p = torch.from_numpy(draw.dirichlet(np.ones(4), samples))
    y = torch.from_numpy(draw.integers(0, 4, samples))
    slope = (p - torch.nn.functional.one_hot(y, 4)).mean(0)
    last = list(place.task.form)[-1]
    found = labels(place.task, {last: slope}, samples, p.mean(0) + 1e-9)
    assert found.sort().values.tolist() == y.sort().values.tolist()
    assert label_share(y, found, 4) == 1
    assert label_share(y, (y + 1) % 4, 4) < 1 or len(y.unique()) == 4


def test_a_convolution_is_not_divided() -> None:
    module = nn.Sequential(nn.Unflatten(1, (1, SIDE)), nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Linear(8, 4))
    place = prepared(pl.FedSGD(), 0, module.double())
    assert first_layer(place.task) is None
    bare = nn.Sequential(nn.Linear(SIDE, 6, bias=False), nn.ReLU(), nn.Linear(6, 4)).double()
    assert first_layer(prepared(pl.FedSGD(), 0, bare).task) is None


@pytest.mark.parametrize("method", [pl.KernelFedAvg(steps=3), pl.KernelFedAvg(batch=2), pl.KernelFedProx(lr=2.0)])
def test_kernel_methods_give_inputs_and_targets_away(method: pl.Algorithm) -> None:
    draw = np.random.default_rng(3)
    fed = Federation.from_arrays({n: (draw.standard_normal((5, 3)), draw.standard_normal(5)) for n in "ab"})
    place = Prepared.of(Study(method, fed, pl.models.linear()))
    victim, decoy = fed.client("a"), fed.client("b")
    seen = intercept(place, victim, Key(1))
    points, sent = seen.reply("points").received.tensor("points"), seen.reply().received.tensor("coefficients")
    f = place.task.predictor(place.task.initial())(victim.x).detach().double().reshape(5, 1)
    torch.testing.assert_close(kernel_targets(method, points, f, sent)[:, 0], victim.y, rtol=1e-7, atol=1e-8)
    (said,) = [one for one in disclosed(seen.exchanges, victim, decoy) if one.what == "inputs"]
    assert (said.tensor, said.share, said.decoy) == ("points", 1.0, 0.0)
    assert "it sends the data" in said.sentence()


def test_what_stands_there_as_it_is() -> None:
    fed = federation(0)
    victim, decoy = fed.client("1"), fed.client("2")
    place = prepared(pl.DataShare(share=0.99), 0)
    shared = disclosed(intercept(place, victim, Key(0)).exchanges, victim, decoy)
    assert {one.what for one in shared if one.asked == "shared"} == {"inputs", "labels"} or shared[0].what == "inputs"
    place = prepared(pl.FedAvg(lr=0.1), 0)
    assert disclosed(intercept(place, victim, Key(0)).exchanges, victim, decoy) == []


def test_trees_bracket_values_and_small_leaves_hold_targets() -> None:
    draw = np.random.default_rng(0)
    victim, decoy = (
        ClientData(*map(torch.from_numpy, (draw.normal(size=(30, 3)), draw.normal(size=30)))) for _ in "ab"
    )
    for leaf, share in ((1, 1.0), (5, 0.0)):
        fitted = DecisionTreeRegressor(min_samples_leaf=leaf, random_state=0).fit(victim.x, -victim.y).tree_
        inner = fitted.children_left >= 0
        message = pl.Message.of(
            learners={
                "features": torch.from_numpy(fitted.feature[inner]),
                "thresholds": torch.from_numpy(fitted.threshold[inner]),
                "values": torch.from_numpy(fitted.value[~inner, :, 0]),
            }
        )
        answer = SeenExchange("client", "victim", pl.Message(), message)
        residual = residuals(victim.y, half_squares, 1)
        torch.testing.assert_close(residual[:, 0], -victim.y)
        assert alone_in_leaf(message["learners"]["values"], residual) == share
        said = tree_evidence([answer], victim, decoy, half_squares, 1)
        assert said[0].startswith("100% of the thresholds in 'learners/thresholds'")
        assert len(said) == (2 if leaf == 1 else 1)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_auc_is_the_chance_that_a_member_comes_first(members: list[int], others: list[int]) -> None:
    pairs = [(a < b) + (a == b) / 2 for a in members for b in others]
    assert auc(np.array(members, float), np.array(others, float)) == pytest.approx(np.mean(pairs))


def test_quality() -> None:
    draw = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    same = quality(draw, draw, 1.0)
    assert (same.ssim, same.psnr) == (pytest.approx(1.0), 100.0)
    assert matching_order(draw, draw[[2, 0, 1]]) == [1, 2, 0]
    worse = quality(draw, draw + 0.1, 1.0)
    assert worse.psnr == pytest.approx(20.0, abs=1e-3)
    assert worse.ssim < 1
    assert np.isnan(quality(draw.flatten(1), draw.flatten(1), 1.0).ssim)
