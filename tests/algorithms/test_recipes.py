"""FedPer, LG-FedAvg and FedBN as docs/algorithms.md prints them, and the example of a method of one's own."""

import re
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

import parley as pl
from parley.core.wire import wire_size
from parley.engine.listeners import Listener

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def printed() -> dict[str, object]:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "algorithms.md").read_text("utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(block, "algorithms.md", "exec"), names)
    return names


class Names(Listener):
    """The parameters and statistics that travelled, down and up."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.up: set[str] = set()

    def exchange(self, number, exchange, asked, messages, received) -> None:
        self.down |= {name.partition("/")[2] for message in messages.values() for name in message.tensors}
        self.up |= {name.partition("/")[2] for message in received.values() for name in message.tensors}


HEAD, BODY = {"3.weight", "3.bias"}, {"1.weight", "1.bias"}
NORM = {"2.weight", "2.bias", "2.running_mean", "2.running_var", "2.num_batches_tracked"}


@pytest.mark.parametrize(
    ("recipe", "model", "own", "shared"),
    [
        ("fedper", "mlp", HEAD, BODY),
        ("lg_fedavg", "mlp", BODY, HEAD),
        ("fedbn", "normalised", NORM, BODY | {"4.weight", "4.bias"}),
    ],
)
def test_what_travels_and_what_stays(printed, recipe, model, own, shared):
    method, federation, names = printed[recipe], printed["federation"], Names()
    run = pl.train(method, federation, model=printed[model], rounds=3, cohort=5, listeners=[names], runtime="inline")
    assert run.learned.personal
    assert names.down == names.up == shared
    one, other = (run.personal(i).state_dict() for i in list(run.clients_with_memory())[:2])
    start = run.task.network.state_dict()
    for name in own:
        assert not torch.equal(one[name], start[name])
        assert name.endswith("tracked") or not torch.equal(one[name], other[name])
    for name in shared:
        assert torch.equal(one[name], other[name])
    message = pl.Message({f"update/{name}": start[name] for name in shared})
    assert run.records[-1].metrics["up/bytes"].value == 5 * wire_size(message)


def test_fedper_is_local_sgd_from_the_common_body_and_the_own_head(printed):
    """Two rounds written out with modules."""
    federation, start = printed["federation"], printed["mlp"]
    run = pl.train(pl.FedALS(lr=0.1, steps=2, batch=0, periods={"3.*": "never"}), federation, model=start, rounds=2)
    shares = {i: federation.size(i) / sum(map(federation.size, federation.ids)) for i in federation.ids}
    body = start[1].state_dict()
    heads = {i: start[3].state_dict() for i in federation.ids}
    for _ in range(2):
        bodies = {}
        for i in federation.ids:
            model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
            model[1].load_state_dict(body)
            model[3].load_state_dict(heads[i])
            optimizer, data = torch.optim.SGD(model.parameters(), lr=0.1), federation.client(i)
            for _ in range(2):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(data.x), data.y).backward()
                optimizer.step()
            bodies[i], heads[i] = model[1].state_dict(), model[3].state_dict()
        body = {name: sum(shares[i] * bodies[i][name] for i in bodies) for name in body}
    torch.testing.assert_close(run.state["model"]["1.weight"], body["weight"])
    for i in federation.ids:
        torch.testing.assert_close(run.personal(i)[3].weight, heads[i]["weight"])


@pytest.fixture(scope="module")
def example() -> dict[str, object]:
    return runpy.run_path(str(ROOT / "examples" / "own_method.py"))


def test_the_example_imports_public_names_only():
    text = (ROOT / "examples" / "own_method.py").read_text("utf-8")
    assert "from parley" not in text
    for name in set(re.findall(r"\bpl\.(\w+)", text)):
        assert name in pl.__all__


def test_the_example_does_what_it_says(example, capsys):
    example["main"]()
    found = re.findall(r"^(.*?)\s+accuracy (\S+)\s+sent up (\S+) MB$", capsys.readouterr().out, re.MULTILINE)
    accuracy = {name: float(value) for name, value, _ in found}
    sent = {name: float(size) for name, _, size in found}
    assert sent["LazyAverage, 10%"] < sent["FedAvg"] / 4
    assert sent["LazyAverage, 10%"] == sent["FedAvg, top-k channel, 10%"]
    assert accuracy["LazyAverage, 10%"] > accuracy["FedAvg"] - 0.03


def test_the_example_works_everywhere(example, works_everywhere):
    works_everywhere(example["LazyAverage"](lr=0.1, batch=4, share=0.3, keep=True, options={"momentum": 0.5}))
