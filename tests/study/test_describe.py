"""One description of a run, from Python or from a file, and what is compared before a run goes on."""

import inspect
import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import parley as pl
from parley.core.errors import InputError, QuorumError
from parley.study.difference import difference
from parley.study.opaque import is_opaque, opaque
from parley.study.study import as_study
from parley.study.toml import Study, load_study, study_from_dict
from parley.study.train import train

STUDY = """
rounds = 2
[data]
name = "iris"
clients = 4
[model]
name = "mlp"
hidden = [5]
[algorithm]
name = "fedavg"
"""


def federation(shift: float = 0.0) -> pl.Federation:
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 4)).astype(np.float32) + np.float32(shift)
    y = random.integers(3, size=60)
    clients = {f"c{i}": (x[10 * i : 10 * i + 10], y[10 * i : 10 * i + 10]) for i in range(5)}
    return pl.Federation.from_arrays(clients, test=(x[50:], y[50:]))


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, width), nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).relu())


def squares(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - nn.functional.one_hot(targets, 3)).square().sum(1)


def test_a_study_in_python_is_the_study_of_a_file(tmp_path: Path):
    file = tmp_path / "study.toml"
    file.write_text(STUDY)
    read = load_study(file)
    built = Study(pl.FedAvg(), read.data, model=pl.models.mlp(5), rounds=2)
    assert built.resolved() == read.resolved()
    assert built.fingerprint() == read.fingerprint()
    one, other = train(read, runtime="inline"), train(built, runtime="inline")
    assert one.last() == other.last()


def test_both_forms_of_train_are_one():
    data = federation()
    study = Study(pl.FedAvg(lr=0.2), data, model=pl.models.mlp(5), rounds=2, cohort=3, seed=1)
    one = pl.train(study)
    other = pl.train(pl.FedAvg(lr=0.2), data, model=pl.models.mlp(5), rounds=2, cohort=3, seed=1)
    for name, value in one.state.tensors.items():
        assert torch.equal(value, other.state.tensors[name])
    assert pl.train(study, rounds=1).summary()["rounds"] == 1
    with pytest.raises(InputError, match="there is no setting 'round': did you mean 'rounds'"):
        pl.train(study, round=3)
    with pytest.raises(InputError, match="leave the federation out"):
        pl.train(study, data)  # type: ignore[call-overload]
    with pytest.raises(InputError, match="needs an algorithm, a federation and a model"):
        pl.train(pl.FedAvg(), data)  # type: ignore[call-overload]


def test_the_keyword_form_has_the_settings_of_a_study():
    from typing import get_overloads

    keyword = inspect.signature(get_overloads(train)[1]).parameters
    own = {field.name: field for field in fields(Study)}
    hidden = {"plugins", "observers", "data_fingerprint"}  # of files; Python passes the things themselves
    assert set(own) - hidden - {"data"} == set(keyword) - {
        "federation",
        "store",
        "resume",
        "listeners",
        "progress",
        "secret",
    }
    for name, parameter in keyword.items():
        if name in own and parameter.default not in (parameter.empty, ...):
            assert parameter.default == own[name].default, name


def test_a_stored_run_has_the_whole_description(tmp_path: Path):
    with pl.RunStore(tmp_path / "runs.db") as store:
        pl.train(pl.FedProx(alpha=0.5), federation(), model=Net(), rounds=1, loss=squares, store=store)
        config = store.info("last").config
    assert config["algorithm"]["name"] == "fedprox"
    assert config["algorithm"]["alpha"] == 0.5
    assert config["model"] == opaque(Net()) | {"digest": config["model"]["digest"]}
    assert config["loss"]["python"] == "squares"
    assert config["data"]["ids"] == ["c0", "c1", "c2", "c3", "c4"]
    assert config["data_fingerprint"]
    assert json.loads(json.dumps(config)) == config
    with pytest.raises(InputError, match="the data was made in Python"):
        study_from_dict(config)


def test_a_digest_tells_objects_apart():
    net = Net()
    same = Net()
    same.load_state_dict(net.state_dict())
    assert opaque(net) == opaque(same)
    with torch.no_grad():
        next(same.parameters())[0] += 1e-6
    assert opaque(net) != opaque(same)
    assert opaque(squares) == opaque(squares)
    assert opaque(lambda a: a + 1)["digest"] != opaque(lambda a: a + 2)["digest"]
    factor = 2.0
    doubled = lambda a: a * factor  # noqa: E731
    before = opaque(doubled)
    factor = 3.0
    assert opaque(doubled) != before
    assert is_opaque({"a": [{"b": opaque(net)}]})
    assert not is_opaque({"a": [{"b": 3}]})


START = {"model": Net, "rounds": 2, "cohort": 3, "seed": 1, "loss": squares, "runtime": "inline"}
OTHERS = [
    ({"seed": 2}, "seed = 1, which is 2 now"),
    ({"algorithm": pl.FedProx(lr=0.2)}, "algorithm.name = 'fedavg', which is 'fedprox' now"),
    ({"algorithm": pl.FedAvg(lr=0.3)}, "algorithm.lr = 0.2, which is 0.3 now"),
    ({"model": pl.models.mlp(5)}, "model.name = 'Net', which is 'mlp' now"),
    ({"model": lambda: Net(5)}, "model.name = 'Net', which is"),
    ({"loss": "cross-entropy"}, "loss"),
    ({"loss": lambda outputs, targets: squares(outputs, targets)}, "loss.name = 'squares'"),
    ({"cohort": 4}, "cohort.size = 3, which is 4 now"),
    ({"cohort": pl.Sampling(3, weights="uniform")}, "cohort.weights = 'size', which is 'uniform' now"),
    ({"buffers": "local"}, "buffers = 'average', which is 'local' now"),
    ({"faults": pl.Faults(dropout=0.1)}, "faults.dropout = 0.0, which is 0.1 now"),
    ({"evaluation": pl.Evaluation(every=2)}, "evaluate.every = 1, which is 2 now"),
    ({"federation": federation(1e-3)}, "other data"),
]


@pytest.mark.parametrize(
    ("change", "sentence"),
    OTHERS,
)
def test_a_run_does_not_go_on_with_something_else(tmp_path: Path, change, sentence: str):
    with pl.RunStore(tmp_path / "runs.db") as store:
        first = train(pl.FedAvg(lr=0.2), federation(), store=store, **START)
        before = store.info(first.id)
        say = START | {"rounds": 4} | change
        method, data = say.pop("algorithm", pl.FedAvg(lr=0.2)), say.pop("federation", federation())
        with pytest.raises(InputError, match="was started with") as caught:
            train(method, data, store=store, resume=first.id, **say)
        assert sentence in str(caught.value)
        assert store.info(first.id) == before


def test_other_weights_are_noticed(tmp_path: Path):
    with pl.RunStore(tmp_path / "runs.db") as store:
        say = {"rounds": 1, "store": store, "runtime": "inline"}
        net = Net()
        first = train(pl.FedAvg(), federation(), model=net, **say)
        train(pl.FedAvg(), federation(), model=net, resume=first.id, **(say | {"rounds": 2}))
        with pytest.raises(InputError, match="was started with another object as model"):
            train(pl.FedAvg(), federation(), model=Net(), resume=first.id, **say)


def test_what_may_change_while_a_run_goes_on(tmp_path: Path):
    with pl.RunStore(tmp_path / "runs.db") as store:
        first = train(pl.FedAvg(lr=0.2), federation(), store=store, **START)
        changed = START | {
            "rounds": 3,
            "runtime": "auto",
            "workers": 1,
            "checkpoint": 0.0,
            "name": "other",
            "faults": pl.Faults(quorum=0.1),
            "evaluation": pl.Evaluation(target=1.0, patience=9),
        }
        again = train(pl.FedAvg(lr=0.2), federation(), store=store, resume=True, **changed)
        assert (again.id, again.summary()["rounds"]) == (first.id, 3)


def test_a_lower_quorum_lets_a_stopped_run_go_on(tmp_path: Path):
    data = federation()
    say = {"model": pl.models.mlp(4), "rounds": 3, "runtime": "inline"}
    with pl.RunStore(tmp_path / "runs.db") as store:
        with pytest.raises(QuorumError):
            train(pl.FedAvg(), data, store=store, faults=pl.Faults(dropout=0.5, quorum=1.0), **say)
        stopped = store.info("last")
        lower = pl.Faults(dropout=0.5, quorum=0.0)
        resumed = train(pl.FedAvg(), data, store=store, resume=True, faults=lower, **say)
        assert (resumed.id, resumed.status) == (stopped.id, "finished")
        whole = train(pl.FedAvg(), data, faults=lower, **say)
        assert all(torch.equal(value, whole.state.tensors[n]) for n, value in resumed.state.tensors.items())


def test_data_replaced_between_start_and_resume_are_refused(tmp_path: Path):
    folder = tmp_path / "clients"
    folder.mkdir()

    def write(factor: int) -> None:
        for i in range(3):
            rows = "\n".join(f"{factor * row},{row + i},{row % 2}" for row in range(10))
            (folder / f"site{i}.csv").write_text(f"a,b,label\n{rows}\n")

    write(1)
    file = tmp_path / "study.toml"
    file.write_text('rounds = 1\n[data]\nfolder = "clients"\n[model]\nname = "linear"\n[algorithm]\nname = "fedavg"\n')
    with pl.RunStore(tmp_path / "runs.db") as store:
        train(load_study(file), store=store)
        write(2)
        with pytest.raises(InputError, match="was started with other data"):
            train(load_study(file, ["rounds=2"]), store=store, resume=True)
        write(1)
        assert train(load_study(file, ["rounds=2"]), store=store, resume=True).summary()["rounds"] == 2


def test_without_a_run_to_resume_the_nearest_one_is_named(tmp_path: Path):
    with pl.RunStore(tmp_path / "runs.db") as store:
        with pytest.raises(InputError, match="there is no unfinished run of this configuration to resume"):
            train(pl.FedAvg(), federation(), store=store, resume=True, **START)
        first = train(pl.FedAvg(lr=0.2), federation(), store=store, **START)
        with pytest.raises(InputError, match=rf"run '{first.id}' differs in algorithm.lr = 0.2, not 0.3"):
            train(pl.FedAvg(lr=0.3), federation(), store=store, resume=True, **(START | {"rounds": 4}))
        train(pl.FedAvg(lr=0.2), federation(), store=store, **(START | {"seed": 2}))  # newer, but farther
        with pytest.raises(InputError, match=rf"run '{first.id}' differs in algorithm.lr = 0.2, not 0.3"):
            train(pl.FedAvg(lr=0.3), federation(), store=store, resume=True, **(START | {"rounds": 4}))


def test_a_run_whose_samples_came_in_another_order_is_refused(tmp_path: Path, monkeypatch):
    """Runs of a version that drew other orders are neither continued nor taken for the same."""
    more = START | {"rounds": 4}
    with pl.RunStore(tmp_path / "runs.db") as store:
        with monkeypatch.context() as before:
            before.setattr("parley.study.study.ORDER", 1)
            first = train(pl.FedAvg(), federation(), store=store, **START)
        with pytest.raises(InputError, match="started by another version of Parley"):
            train(pl.FedAvg(), federation(), store=store, resume=first.id, **more)
        with pytest.raises(InputError, match="there is no unfinished run"):
            train(pl.FedAvg(), federation(), store=store, resume=True, **more)


def test_differences_are_named():
    a = study_from_dict(
        {"data": {"name": "iris", "clients": 3}, "model": {"name": "linear"}, "algorithm": {"name": "fedavg"}}
    )
    b = as_study(a, None, {"seed": 3, "algorithm": pl.FedProx(), "cohort": 2})
    found = {one.setting: (one.first, one.second) for one in difference(a.resolved(), b.resolved())}
    assert found == {
        "name": ("fedavg-iris", "fedprox-iris"),
        "seed": (0, 3),
        "data.seed": (0, 3),
        "algorithm.name": ("fedavg", "fedprox"),
        "cohort.size": (None, 2),
    }


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rounds": 2.5}, "rounds must be a whole number, not 2.5"),
        ({"rounds": float("nan")}, "rounds must be a finite number, not nan"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"seed": "x"}, "seed must be a whole number, not 'x'"),
        ({"workers": 10**9}, "runtime.workers is 1000000000, but this machine has"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"checkpoint": float("inf")}, "checkpoint must be a finite number, not inf"),
        ({"runtime": "poll"}, "unknown runtime 'poll': did you mean 'pool'"),
        ({"faults": {"dropout": 1}}, "faults must be a Faults, not a dict"),
        ({"loss": "mes"}, "unknown loss 'mes': did you mean 'mse'"),
    ],
)
def test_settings_in_python_are_checked(change, sentence: str):
    with pytest.raises(InputError, match=sentence):
        train(pl.FedAvg(), federation(), **({"model": pl.models.mlp(3), "rounds": 1} | change))
