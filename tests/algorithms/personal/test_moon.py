"""MOON: its gradient against autograd of the loss as the paper writes it, its identity, and mistakes."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.personal import moon as module
from parley.algorithms.personal.moon import MOON
from parley.core.context import Context, Secrets
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.message import Memory, Message
from parley.data import ClientData, Federation
from parley.study.train import make_task, train
from parley.training import last_layer

PLAIN = MOON(lr=0.1, steps=2, batch=4, mu=2.0)


def test_everywhere(works_everywhere):
    run = works_everywhere(replace(PLAIN, options={"momentum": 0.5}, keep=True))
    assert "previous" in run.memory("c1")


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def first_step(method: MOON, table: Federation) -> tuple[dict, dict]:
    """One step from a given model with a given previous one, and the same written out: eq. (3) and Algorithm 1."""
    data = ClientData(table.client("c0").x.double(), table.client("c0").y)
    task = make_task(table, lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), 0)
    task = replace(task, module=net())
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        x, previous, second = (dict(net().named_parameters()) for _ in range(3))
    x, previous, second = ({n: v.detach() for n, v in tree.items()} for tree in (x, previous, second))
    context = Context("c0", 2, "client", 0, Key(0), Secrets(b""))
    two = replace(method, steps=2, batch=None)  # at the first step z = z_x, where the cosine has no slope
    reply = two.client(task, Message.of(model=x), Memory.of(previous=previous), data, context)

    def representation(w, inputs):
        hidden = torch.tanh(inputs @ w["0.weight"].T + w["0.bias"])
        return torch.tanh(hidden @ w["2.weight"].T + w["2.bias"])

    w = x
    for _ in range(2):
        leaves = {name: value.clone().requires_grad_() for name, value in w.items()}
        z, z_x, z_p = (representation(tree, data.x) for tree in (leaves, x, previous))
        sup = nn.functional.cross_entropy(z @ leaves["4.weight"].T + leaves["4.bias"], data.y)

        def sim(a, b):
            return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))

        up, down = torch.exp(sim(z, z_x) / method.temperature), torch.exp(sim(z, z_p) / method.temperature)
        con = -torch.log(up / (up + down)).mean()
        gradients = torch.autograd.grad(sup + method.mu * con, list(leaves.values()))
        w = {name: w[name] - method.lr * g for name, g in zip(w, gradients, strict=True)}
    return reply.message["update"], {name: x[name] - w[name] for name in x}


def agrees(table: Federation) -> None:
    for method in (PLAIN, replace(PLAIN, mu=5.0, temperature=0.2)):
        sent, written = first_step(method, table)
        for name, value in written.items():
            torch.testing.assert_close(sent[name], value, rtol=1e-10, atol=1e-12)


def test_the_gradient_is_that_of_the_written_loss(table):
    agrees(table)


def test_a_network_that_is_no_chain_has_the_same_gradient(table, monkeypatch):
    monkeypatch.setattr(module, "cut", lambda network, head: None)
    agrees(table)


@pytest.mark.parametrize("runtime", ["inline", "stacked"])
def test_one_pass_a_step_leads_to_the_numbers_of_four(table, dense_network, monkeypatch, runtime):
    one = train(PLAIN, table, model=dense_network, rounds=4, runtime=runtime)
    monkeypatch.setattr(module, "cut", lambda network, head: None)
    four = train(PLAIN, table, model=dense_network, rounds=4, runtime="inline")
    for name, value in four.state["model"].items():
        torch.testing.assert_close(one.state["model"][name], value, rtol=1e-4, atol=1e-6)


def test_without_its_loss_it_is_fedavg_bit_for_bit(table, network):
    runs = [
        train(m, table, model=network, rounds=3) for m in (replace(PLAIN, mu=0.0), FedAvg(lr=0.1, steps=2, batch=4))
    ]
    for name, value in runs[1].state.tensors.items():
        assert torch.equal(runs[0].state.tensors[name], value)


def test_in_the_first_round_the_two_models_are_one(table, dense_network):
    runs = [train(m, table, model=dense_network, rounds=2, runtime="inline") for m in (PLAIN, replace(PLAIN, mu=0.0))]
    one, two = [
        train(m, table, model=dense_network, rounds=1, runtime="inline").state for m in (PLAIN, replace(PLAIN, mu=0.0))
    ]
    assert all(torch.equal(one.tensors[name], value) for name, value in two.tensors.items())
    assert not torch.equal(runs[0].state["model"]["0.weight"], runs[1].state["model"]["0.weight"])


def test_running_statistics_are_updated_once_a_step(table, network):
    runs = [train(m, table, model=network, rounds=2, runtime="inline") for m in (PLAIN, replace(PLAIN, mu=0.0))]
    counts = [run.state["buffers"]["1.num_batches_tracked"] for run in runs]
    assert torch.equal(*counts)


def test_settings_that_make_no_sense():
    with pytest.raises(InputError, match="temperature above 0"):
        MOON(temperature=0.0)


def flipped(patch) -> None:
    own = module.softplus
    patch.setattr(module, "softplus", lambda value: own(-value))


def no_negative(patch) -> None:
    own, seen = module.cosine_similarity, []

    def similarity(a, b):
        seen.append(1)
        return own(a, b) * (0.0 if len(seen) % 2 else 1.0)

    patch.setattr(module, "cosine_similarity", similarity)


def dot_products(patch) -> None:
    patch.setattr(module, "cosine_similarity", lambda a, b: (a * b).sum(1))


def another_layer(patch) -> None:
    own = last_layer.layers
    patch.setattr(last_layer, "layers", lambda network: own(network)[:-1])


@pytest.mark.parametrize("mistake", [flipped, no_negative, dot_products, another_layer], ids=lambda m: m.__name__)
def test_mistakes_are_noticed(monkeypatch, table, mistake):
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        agrees(table)
