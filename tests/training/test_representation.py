"""What a model knows of a sample before its last layer: against forward passes written out."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import parley as pl
from parley.core.errors import InputError


@pytest.fixture(scope="module")
def federation() -> pl.Federation:
    return pl.data.iris().split("iid", clients=3, seed=0, test_fraction=0.2)


def trained(method: pl.Algorithm, federation: pl.Federation, model=None) -> pl.Run:
    return pl.train(method, federation, model=model or pl.models.mlp(7), rounds=2)


def test_it_is_what_the_last_layer_receives(federation):
    run = trained(pl.FedAvg(lr=0.1), federation)
    x = federation.test.x
    w = run.module().state_dict()
    (first, first_bias), (last, last_bias) = [
        (w[f"{name}.weight"], w[f"{name}.bias"]) for name in dict.fromkeys(key.rpartition(".")[0] for key in w)
    ]
    phi = run.representation(x)
    torch.testing.assert_close(phi, torch.relu(x @ first.T + first_bias))
    torch.testing.assert_close(phi @ last.T + last_bias, run.predict(x))
    assert phi.shape == (len(x), 7)
    assert not phi.requires_grad


def test_of_a_client_and_of_the_best_round_as_in_predict(federation):
    run = trained(pl.FedRep(lr=0.1), federation)
    own = [run.representation(federation.test.x, client=client) for client in federation.ids]
    for client, phi in zip(federation.ids, own, strict=True):
        head = [module for module in run.personal(client).modules() if isinstance(module, nn.Linear)][-1]
        torch.testing.assert_close(head(phi).detach(), run.predict(federation.test.x, client=client))
    run = trained(pl.FedAvg(lr=0.1), federation)
    phi = run.representation(federation.test.x, best=True)
    torch.testing.assert_close(
        [*run.module(best=True).modules()][-1](phi).detach(), run.predict(federation.test.x, best=True)
    )


class Scans(nn.Module):
    """Normalisation, dropout, and a layer that is applied to every position."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.head = nn.BatchNorm1d(4), nn.Dropout(0.9), nn.Linear(2, 3)

    def forward(self, x):
        return self.head(self.drop(self.norm(x)).reshape(len(x), 2, 2)).sum(1)


def test_it_is_taken_in_evaluation_mode_and_flat(federation):
    run = trained(pl.FedAvg(lr=0.1), federation, Scans)
    norm = run.module().norm
    x = federation.test.x
    expected = (x - norm.running_mean) / torch.sqrt(norm.running_var + norm.eps) * norm.weight + norm.bias
    torch.testing.assert_close(run.representation(x), expected.detach())
    assert torch.equal(run.representation(x), run.representation(x))


def test_within_a_method_it_has_a_gradient(federation):
    run = trained(pl.FedAvg(lr=0.1), federation)
    weights = {name: value.clone().requires_grad_() for name, value in run.model()["model"].items()}
    phi = pl.representation(run.task, lambda x: run.task.apply(weights, {}, x), federation.test.x)
    names = list(weights)
    gradients = torch.autograd.grad(phi.sum(), list(weights.values()), allow_unused=True)
    assert [name for name, g in zip(names, gradients, strict=True) if g is None] == names[2:]
    w, b = (weights[name] for name in names[:2])
    same = torch.autograd.grad(F.relu(F.linear(federation.test.x, w, b)).sum(), [w, b])
    for one, other in zip(gradients[:2], same, strict=True):
        torch.testing.assert_close(one, other)


def test_what_has_none_says_so(federation):
    boosted = pl.train(pl.FFGB(), federation, rounds=1)
    with pytest.raises(InputError, match="this method trains a network"):
        boosted.representation(federation.test.x)
    run = trained(pl.FedAvg(lr=0.1), federation)
    with pytest.raises(InputError, match="the last layer of the model Sequential was not called"):
        pl.representation(run.task, lambda x: x, federation.test.x)
    run.task.network.train()
    run.representation(federation.test.x)
    assert run.task.network.training
    assert not any(module._forward_pre_hooks for module in run.task.network.modules())
