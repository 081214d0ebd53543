"""Methods, models, losses and listeners of one's own, from one file that a study names."""

import os
from pathlib import Path

import pytest

import parley as pl
from parley.algorithms import algorithms
from parley.core.errors import InputError, ParleyWarning
from parley.engine.observers import listeners
from parley.study.stored import load_run
from parley.study.toml import study_from_dict

CODE = '''
from dataclasses import dataclass
import torch
from torch import nn
import parley as pl

@dataclass(frozen=True)
class Half(pl.FedAvg):
    """FedAvg whose steps are scaled."""

    factor: float = 0.5
    """How much."""

    def work(self):
        return super().work()

class Net(nn.Module):
    def __init__(self, width: int = 3):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))

    def forward(self, x):
        return self.layers(x)

def squares(outputs, targets):
    """Squared distance to the class's corner."""
    return (outputs - nn.functional.one_hot(targets, 3)).square().sum(1)

class Count(pl.Listener):
    seen = 0

    def round(self, record):
        Count.seen += 1
'''
STUDY = """
rounds = 2
loss = "moon.py:squares"
listeners = ["moon.py:Count", "drift"]
[data]
name = "iris"
clients = 4
[model]
name = "moon.py:Net"
width = 5
[algorithm]
name = "moon.py:Half"
factor = 0.25
[runtime]
name = "inline"
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / "moon.py").write_text(CODE)
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path / "study.toml"


def test_everything_from_one_file(study: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir("/")  # files are looked for beside the study, not here
    loaded = pl.load_study(study)
    assert type(loaded.algorithm).__name__ == "Half"
    assert loaded.algorithm.factor == 0.25
    assert loaded.title == "Half-iris"  # the name of the class; nobody is told of folders
    assert loaded.model().layers[1].out_features == 5
    run = pl.train(loaded)
    assert run.task.loss.__name__ == "squares"
    assert listeners[f"{study.parent / 'moon.py'}:Count"].seen == 3
    assert "drift" in run.metrics()


def test_the_stored_run_is_rebuilt_with_it(study: Path, tmp_path: Path):
    with pl.RunStore(tmp_path / "runs.db") as store:
        run = pl.train(pl.load_study(study), store=store)
        config = store.info("last").config
        assert config["plugins"] == [str(study.parent / "moon.py")]
        assert config["algorithm"]["name"] == f"{study.parent / 'moon.py'}:Half"
        assert config["model"] == {"name": f"{study.parent / 'moon.py'}:Net", "width": 5}
        x = run.federation.test.x
        assert (load_run(store, "last").predict(x) == run.predict(x)).all()
        again = pl.train(pl.load_study(study, ["rounds=3"]), store=store, resume=True)
        assert again.id == run.id
        (study.parent / "moon.py").write_text(CODE + "\n# changed\n")
        with pytest.raises(InputError, match="no unfinished run of this configuration"):
            pl.train(pl.load_study(study, ["rounds=4"]), store=store, resume=True)
        with pytest.raises(InputError, match=r"the file .*moon\.py has changed since run '.*start a new run\."):
            pl.train(pl.load_study(study, ["rounds=4"]), store=store, resume=run.id)
        with pytest.warns(ParleyWarning, match=r"moon\.py has changed since"):
            load_run(store, "last")


def test_worker_processes_get_the_code(study: Path):
    pooled = pl.load_study(study, ["runtime.name=pool", "runtime.workers=1", "rounds=1"])
    run = pl.train(pooled)
    assert run.records[-1].failures == ()
    assert run.last() == pl.train(pooled, runtime="inline").last()


def test_a_file_may_register_names(study: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(algorithms, "_items", dict(algorithms._items))
    plugin = study.parent / "moon.py"
    head = "@dataclass(frozen=True)\nclass Half"
    plugin.write_text(CODE.replace(head, f'@pl.algorithm("half")\n{head}'))
    named = pl.load_study(study, ['plugins=["moon.py"]', "algorithm.name=half"])
    assert named.resolved()["algorithm"]["name"] == "half"
    # Written again, it replaces what it was.
    plugin.write_text(plugin.read_text().replace("factor: float = 0.5", "factor: float = 0.75"))
    table = named.resolved() | {"algorithm": {"name": "half"}}
    table.pop("plugin_digests", None)
    assert study_from_dict(table).algorithm.factor == 0.75


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("algorithm.name=mon.py:Half", "there is no file"),
        ("algorithm.name=moon.py:Halff", "defines no 'Halff'"),
        ("algorithm.name=moon.py:Net", "must be a dataclass"),
        ("algorithm.factr=2", "has no setting 'factr': did you mean 'factor'"),
        ("algorithm.factor=x", "algorithm.factor must be a number, not 'x'"),
        ("model.width=x", "model.width must be a whole number, not 'x'"),
        ("model.widht=3", "has no setting 'widht': did you mean 'width'"),
        ('plugins=["broken.py"]', "broken.py cannot be run: ZeroDivisionError: division by zero"),
        ('plugins=["syntax.py"]', "syntax.py cannot be run: SyntaxError"),
        ('plugins=["leaves.py"]', "leaves.py cannot be run: it ends the program (sys.exit(0)"),
        ("algorithm.name=leaves.py:Half", "leaves.py cannot be run: it ends the program (sys.exit(0)"),
        ('plugins=["fifo.py"]', "there is no file"),
        ('listeners=["drfit"]', "unknown listener 'drfit': did you mean 'drift'"),
    ],
)
def test_mistakes_in_plugins(study: Path, override: str, sentence: str):
    (study.parent / "broken.py").write_text("1 / 0\n")
    (study.parent / "syntax.py").write_text("def\n")
    (study.parent / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    os.mkfifo(study.parent / "fifo.py")
    with pytest.raises(InputError) as caught:
        pl.load_study(study, [override])
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
