"""Warm starts: from a stored run, a file, rounds of another method, from Python and from the command line."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import parley as pl
from parley.algorithms.protocol import OneExchange
from parley.core.errors import InputError
from parley.models import mlp
from parley.store.runs import RunStore
from parley.study.initial import FILE
from parley.study.toml import load_study, study_from_dict


def federation() -> pl.Federation:
    random = np.random.default_rng(0)
    x = random.normal(size=(80, 4)).astype(np.float32)
    y = (x @ random.normal(size=(4, 3))).argmax(1)
    clients = {f"c{i}": (x[15 * i : 15 * i + 15], y[15 * i : 15 * i + 15]) for i in range(4)}
    return pl.Federation.from_arrays(clients, test=(x[60:], y[60:]))


FIRST = pl.FedAvg(steps=3)


def trained(algorithm: object = None, rounds: int = 2, **settings) -> pl.Run:
    settings = {"model": mlp(5), "runtime": "inline", **settings}
    return pl.train(algorithm or pl.Scaffold(steps=3), federation(), rounds=rounds, **settings)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def same(a: pl.Run, b: pl.Run) -> None:
    assert a.state.tensors.keys() == b.state.tensors.keys()
    for name, value in a.state.tensors.items():
        assert torch.equal(value, b.state.tensors[name]), name
    assert a.series("accuracy")[1].tolist() == b.series("accuracy")[1].tolist()


def test_all_sources_give_the_same_start_and_only_the_model_is_taken(store: Path, tmp_path: Path):
    first = trained(FIRST, 3, store=store)
    weights = first.module().state_dict()
    save_file(weights, tmp_path / "w.safetensors")
    stored = [trained(init_from=source, store=store) for source in (first.id, first.id[:-1])]
    elsewhere = [
        first,
        weights,
        str(tmp_path / "w.safetensors"),
        tmp_path / "w.safetensors",
        pl.WarmStart(run=first.id, store=str(store)),
        pl.WarmStart(algorithm=FIRST, rounds=3),
    ]
    runs = [*stored, *[trained(init_from=source) for source in elsewhere]]
    same(trained(init_from="last", store=store), trained(init_from=stored[-1]))
    for run in runs:
        same(run, runs[0])
    begin = trained(rounds=1, init_from=first).task.initial()
    assert all(torch.equal(begin[name], first.state["model"][name]) for name in begin)
    cold = trained()
    assert not torch.equal(runs[0].state.tensors["model/1.weight"], cold.state.tensors["model/1.weight"])
    from_scaffold = trained(rounds=1, init_from=runs[0])
    kept = from_scaffold.algorithm.init(from_scaffold.task, pl.Key(0))
    assert all(not value.any() for value in kept["c"].values())


def test_another_method_s_traffic_is_counted_in_round_0(store: Path):
    first, alone = trained(FIRST, 3), trained()
    run = trained(init_from=pl.WarmStart(algorithm=FIRST, rounds=3), store=store)
    assert run.records[0].number == 0
    for name in ("up/bytes", "down/bytes"):
        assert run.records[0].metrics[name].value == first.total(name) > 0
        assert run.records[0].metrics[name].clients.keys() == first.records[-1].metrics[name].clients.keys()
        assert run.total(name) == first.total(name) + alone.total(name)
    assert "up/bytes" not in trained(init_from=first).records[0].metrics
    silent = trained(
        init_from=pl.WarmStart(algorithm=FIRST, rounds=3), evaluation=pl.Evaluation(central=False, clients="none")
    )
    assert silent.total("up/bytes") == run.total("up/bytes")
    loaded = pl.load_run(store, run.id)
    assert loaded.total("up/bytes") == run.total("up/bytes")


def test_a_resumed_run_does_without_its_source(store: Path, tmp_path: Path):
    first = trained(FIRST, 3, store=store)
    save_file(first.module().state_dict(), tmp_path / "w.safetensors")
    for source in (first.id, str(tmp_path / "w.safetensors"), pl.WarmStart(algorithm=FIRST, rounds=3)):
        whole = trained(rounds=4, init_from=first)
        run = trained(init_from=source, store=store)
        if source == first.id:
            with RunStore(store) as runs:
                runs.delete(first.id)
        elif isinstance(source, str):
            Path(source).unlink()
        again = trained(rounds=4, init_from=source, store=store, resume=True)
        assert again.id == run.id
        same(again, whole)


class Stop(pl.Listener):
    """Ends a run at its very start, before anything of it is stored."""

    def start(self, run: pl.Run, rounds: int) -> None:
        raise RuntimeError("killed")


def test_killed_before_the_first_checkpoint(store: Path):
    source = pl.WarmStart(algorithm=FIRST, rounds=3)
    for gone in (False, True):
        with pytest.raises(RuntimeError, match="killed"):
            trained(init_from=source, store=store, listeners=[Stop()])
        with RunStore(store) as runs:
            run = runs.info("last").id
            if gone:
                (runs.folder(run) / FILE).unlink()
        again = trained(init_from=source, store=store, resume=run)
        assert again.id == run
        same(again, trained(init_from=source))
        assert again.total("up/bytes") == trained(init_from=source).total("up/bytes")


def test_another_start_is_another_run(store: Path, tmp_path: Path):
    first, other = trained(FIRST, 3, store=store), trained(FIRST, 2, store=store)
    save_file(first.module().state_dict(), tmp_path / "w.safetensors")
    run = trained(init_from=first.id, store=store)
    for source, message in ((other.id, "init_from.run"), (None, "was started with init_from")):
        with pytest.raises(InputError, match=message):
            trained(rounds=4, init_from=source, store=store, resume=run.id)
    with pytest.raises(InputError, match=r"init_from = None, which is a section now"):
        trained(FIRST, rounds=4, init_from=first.id, store=store, resume=other.id)
    with pytest.raises(InputError, match="no unfinished run of this configuration"):
        trained(rounds=4, init_from=other.id, store=store, resume=True)
    with pytest.raises(InputError, match="'last' may be another run by now"):
        trained(rounds=4, init_from="last", store=store, resume=True)
    filed = trained(init_from=tmp_path / "w.safetensors", store=store)
    save_file(other.module().state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(InputError, match=r"was started from other weights than .* has now"):
        trained(rounds=4, init_from=tmp_path / "w.safetensors", store=store, resume=filed.id)
    with RunStore(store) as runs:
        (runs.folder(run.id) / FILE).unlink()
    with pytest.raises(InputError, match=r"initial weights of run .* are missing"):
        trained(rounds=4, init_from=first.id, store=store, resume=run.id)
    with RunStore(store) as runs:
        path = runs.folder(filed.id) / FILE
        path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\1")
    (tmp_path / "w.safetensors").unlink()
    with pytest.raises(InputError, match="are damaged"):
        trained(rounds=4, init_from=tmp_path / "w.safetensors", store=store, resume=filed.id)


@dataclass(frozen=True)
class Constant(OneExchange):
    """Learns nothing from a network."""

    def init(self, task, key):
        return pl.State.of(x=torch.zeros(3))

    def learned(self, task):
        return Same(task)


class Same(pl.Learned):
    def outputs(self, message, memory, x, before=None):
        return message.tensor("x").expand(len(x), 3)


def test_what_cannot_be_a_start_is_refused(store: Path, tmp_path: Path):
    first = trained(FIRST, 1, store=store)
    weights = first.module().state_dict()
    lacking = {name: value for name, value in weights.items() if name != "1.bias"}
    cases = [
        ("nobody", "there is no run 'nobody'"),
        (str(tmp_path / "w.safetensors"), "which is not there"),
        (str(tmp_path) + "/", "names the folder"),
        (lacking, "it lacks '1.bias'"),
        ({**weights, "more": torch.ones(1)}, "'more', which this one does not have"),
        ({**weights, "1.bias": torch.ones(6)}, r"'1.bias' is \[6\] there and \[5\] here"),
        ({**weights, "1.bias": torch.full((5,), torch.inf)}, "not finite"),
        ({**weights, "1.bias": torch.ones(5, dtype=torch.int64)}, "is torch.int64 there"),
        (3, "init_from must be a run's id"),
        (pl.WarmStart(algorithm=pl.LocalOnly(), rounds=1), "init_from: LocalOnly has no network of the server's own"),
    ]
    for source, message in cases:
        with pytest.raises(InputError, match=message):
            trained(init_from=source, store=store)
    (tmp_path / "w.safetensors").write_bytes(b"no weights at all")
    with pytest.raises(InputError, match="is not a file of weights"):
        trained(init_from=tmp_path / "w.safetensors")
    with pytest.raises(InputError, match="no store that has it"):
        trained(init_from=first.id)
    with pytest.raises(InputError, match=r"'1.weight' is \[5, 4\] there and \[6, 4\] here"):
        trained(init_from=first.id, store=store, model=mlp(6))
    with pytest.raises(InputError, match="Constant does not start from any"):
        trained(Constant(), init_from=first)
    with pytest.raises(InputError, match="does not cover rounds of another method"):
        trained(init_from=pl.WarmStart(algorithm=FIRST), privacy=pl.Privacy(clip=1.0, epsilon=8.0))
    for wrong, message in (
        ({}, "one of run, file and algorithm, not none"), ({"run": "a", "file": "b"}, "not run and file"),
        ({"run": "a", "rounds": 2}, "rounds belongs to init_from.algorithm"),
        ({"file": "a", "best": True}, "best belongs to init_from.run"),
        ({"algorithm": FIRST, "rounds": 0}, "rounds must be at least 1"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            pl.WarmStart(**wrong)
    with RunStore(store) as runs:
        assert [info.id for info in runs.runs()] == [first.id]


def test_methods_whose_runs_do_not_have_a_whole_model(store: Path, tmp_path: Path):
    babu = trained(pl.FedBABU(steps=3), store=store)
    with pytest.raises(InputError, match=r"\(FedBABU\) does not have all weights of its model; export it"):
        trained(init_from=babu.id, store=store)
    save_file(babu.module().state_dict(), tmp_path / "babu.safetensors")
    same(trained(init_from=tmp_path / "babu.safetensors"), trained(init_from=babu))
    local = trained(pl.LocalOnly(steps=3), store=store)
    with pytest.raises(InputError, match=r"\(LocalOnly\) has no network of the server's own"):
        trained(init_from=local.id, store=store)
    # Of a method that leaves the head alone, the head is the warm start's, also in a run that was stored.
    warm = trained(pl.FedBABU(steps=3), init_from=babu, store=store)
    loaded = pl.load_run(store, warm.id)
    for name, value in warm.module().state_dict().items():
        assert torch.equal(value, loaded.module().state_dict()[name])
    assert torch.equal(warm.module().state_dict()["3.weight"], babu.module().state_dict()["3.weight"])


class Net(nn.Module):
    """Made in Python, with statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.norm(self.a(x)).relu())


def test_models_of_python_their_statistics_and_the_best_round(store: Path):
    first = trained(FIRST, 5, store=store, model=Net)
    run = trained(FIRST, rounds=1, init_from=first.id, store=store, model=Net)
    begin = run.algorithm.init(run.task, pl.Key(0))
    for name, value in (*first.state["model"].items(), *first.state["buffers"].items()):
        assert torch.equal({**begin["model"], **begin["buffers"]}[name], value), name
    best = trained(FIRST, rounds=1, init_from=pl.WarmStart(run=first.id, best=True), store=store, model=Net)
    assert best.series("accuracy")[1][0] == first.best("accuracy")


def test_in_other_runtimes():
    source = pl.WarmStart(algorithm=FIRST, rounds=2)
    inline = trained(init_from=source)
    for runtime in ("pool", "wire"):
        same(trained(init_from=source, runtime=runtime, workers=1), inline)


STUDY = """
rounds = 2
init_from = "{source}"
[data]
name = "iris"
clients = 4
[model]
name = "mlp"
hidden = [5]
[algorithm]
name = "scaffold"
steps = 3
[runtime]
name = "inline"
"""


def test_in_a_study_file(tmp_path: Path):
    file = tmp_path / "study.toml"
    file.write_text(STUDY.format(source="w.safetensors"))
    study = load_study(file)
    assert study.resolved()["init_from"] == {"file": str(tmp_path / "w.safetensors")}
    without = STUDY.replace('init_from = "{source}"\n', "")
    file.write_text(without + '[init_from]\nrounds = 3\n[init_from.algorithm]\nname = "fedavg"\n')
    study = load_study(file)
    described = study.resolved()["init_from"]
    assert (described["rounds"], described["algorithm"]["name"]) == (3, "fedavg")
    assert study_from_dict(study.resolved()).resolved() == study.resolved()
    cold = study_from_dict({key: value for key, value in study.resolved().items() if key != "init_from"})
    assert study.fingerprint() != cold.fingerprint()
    for wrong, message in (
        ("init_from = 3\n", "init_from must be"),
        ("[init_from]\nround = 3\n", "'round'"),
        ("[init_from]\nrounds = 3\n", "needs one of run, file and algorithm"),
    ):
        file.write_text(wrong + without if "[" not in wrong else without + wrong)
        with pytest.raises(InputError, match=message):
            load_study(file)
