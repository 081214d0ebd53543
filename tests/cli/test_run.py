"""`parley run`, `runs` and `export`: several seeds, who was missing, and nothing that a terminal would obey."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import parley as pl
from parley.runtimes import fork_server
from parley.store.runs import RunStore

STUDY = """
rounds = 2
[data]
folder = "clients"
[model]
name = "linear"
[algorithm]
name = "fedavg"
[faults]
dropout = 0.4
quorum = 0.0
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARLEY_STORE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # other packages look there, and complain where they cannot
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "clients").mkdir()
    for i in range(4):
        rows = "\n".join(f"{row},{row + i},{row % 2}" for row in range(10))
        (tmp_path / "clients" / f"site{i}.csv").write_text(f"a,b,label\n{rows}\n")
    return tmp_path


def sentence(result: tuple[int, str, str]) -> str:
    code, out, err = result
    assert code == 2, err
    assert out == ""
    assert err.count("\n") == 1, err
    assert err.startswith("parley: ")
    return err


def test_several_seeds_are_runs_of_one_study(parley):
    code, out, _ = parley("run", "study.toml", "--seeds", "0-2")
    assert code == 0
    firsts = [line.split()[0] for line in out.splitlines() if line.strip()]
    assert [word for word in firsts if word in ("0", "1", "2", "mean", "±")] == ["0", "1", "2", "mean", "±"]
    with RunStore() as store:
        runs = store.runs()
        assert [info.config["seed"] for info in runs] == [0, 1, 2]
        assert [pl.difference(runs[0].config, info.config)[0].setting for info in runs[1:]] == ["seed", "seed"]
    # With --resume only what is missing is trained.
    code, out, _ = parley("run", "study.toml", "--seeds", "0-3", "--resume", "--quiet")
    assert code == 0
    assert out.split()[:3] == [info.id for info in runs]
    with RunStore() as store:
        assert len(store.runs()) == 4


def test_a_worker_that_dies_before_it_is_given_a_seed_is_reported(parley, monkeypatch):
    original = fork_server.start

    def start(module: str, files: list[int]) -> fork_server.Process:
        process = original(module, [])
        process.wait()
        return process

    monkeypatch.setattr("parley.study.side_by_side.fork_server.start", start)
    code, out, err = parley("run", "study.toml", "--seeds", "0-1", "--workers", "2", "--store", "died.db")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("parley: a worker process died")


def test_seeds_side_by_side_are_those_one_after_the_other(parley):
    assert parley("run", "study.toml", "--seeds", "0-1")[0] == 0
    code, out, err = parley("run", "study.toml", "--seeds", "0-2", "--workers", "2")
    assert code == 0, err
    told = [line.split(":")[0] for line in err.splitlines() if line.startswith("seed ")]
    assert sorted(told) == ["seed 0", "seed 1", "seed 2"]
    assert "mean" in out
    with RunStore() as store:
        runs = store.runs()
        assert sorted(info.config["seed"] for info in runs) == [0, 0, 1, 1, 2]
        for one in runs[:2]:
            other = next(info for info in runs[2:] if info.config["seed"] == one.config["seed"])
            assert one.fingerprint == other.fingerprint
            for name in ("train/loss", "up/bytes"):
                assert store.series(one.id, name)[1].tolist() == store.series(other.id, name)[1].tolist()
    # With --resume only what is missing is trained, and the order is that of the seeds.
    code, out, _ = parley("run", "study.toml", "--seeds", "0-3", "--resume", "--quiet", "--workers", "2")
    assert code == 0
    with RunStore() as store:
        assert [store.info(run).config["seed"] for run in out.split()] == [0, 1, 2, 3]
        assert len(store.runs()) == 6
    code, out, _ = parley("run", "study.toml", "--seeds", "0,1", "--workers", "2", "--init-from", "last", "-q")
    with RunStore() as store:
        first, second = (store.info(run).config["init_from"]["run"] for run in out.split())
        assert first == second == store.runs()[5].id
    assert "name them with --seeds" in sentence(parley("run", "study.toml", "--workers", "2"))


@pytest.mark.parametrize("seeds", ["", "x", "3-1", "1,1", "0-99999999999", "-1", "1--2", "9" * 5000, "0-1-2", "1;2"])
def test_seeds_that_are_none(parley, seeds: str):
    assert "--seeds takes" in sentence(parley("run", "study.toml", f"--seeds={seeds}"))


def test_who_was_missing_is_named(parley, place: Path):
    code, out, _ = parley("run", "study.toml")
    assert code == 0
    with RunStore() as store:
        missing = store.failures("last")
    assert missing
    for text in (out, parley("runs", "show", "last")[1]):
        assert "why, the last time" in text
        assert all(one.client in text for one in missing)
        assert "dropped out (simulated)." in text
    assert parley("runs", "export", "last", "missing.csv", "--failures")[0] == 0
    assert "missing.xyz must end in .csv or .parquet." in sentence(parley("runs", "export", "last", "missing.xyz"))
    with (place / "missing.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["client"], int(row["round"]), row["reason"]) for row in rows] == [tuple(one) for one in missing]


def test_the_model_of_one_client(parley, place: Path):
    assert parley("run", "study.toml", "--set", "algorithm.name=local-only", "-q")[0] == 0
    assert parley("export", "last", "model", "--client", "site2", "--format", "safetensors")[0] == 0
    story = json.loads((place / "model" / "card.json").read_text())["provenance"]
    assert story["model"] == "that of client site2"
    assert str(place) not in (place / "model" / "card.json").read_text()
    assert "there is no client 'site9'" in sentence(parley("export", "last", "other", "--client", "site9"))


def test_a_run_from_python_can_be_used(parley, place: Path):
    x = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    federation = pl.Federation.from_arrays({"a": (x, (x[:, 0] > 0).astype(int))})
    pl.train(pl.FedAvg(), federation, model=pl.models.mlp(3), rounds=1, store=place / "runs.db")
    np.savez(place / "new.npz", x=x)
    assert parley("predict", "last", "new.npz", "--out", "out.csv", "--store", "runs.db")[0] == 0
    assert len((place / "out.csv").read_text().splitlines()) == 10
    assert parley("runs", "show", "last", "--store", "runs.db")[0] == 0


def test_a_terminal_is_not_spoken_to_by_names(parley, place: Path):
    x = np.ones((9, 3), np.float32)
    evil = "a\x1b[2Jb\nc\u202e"
    federation = pl.Federation.from_arrays({evil: (x, np.zeros(9, int)), "b": (x, np.ones(9, int))})
    faults = pl.Faults(dropout=0.999, quorum=0)
    pl.train(pl.FedAvg(), federation, model=pl.models.mlp(3), rounds=1, faults=faults, store="runs.db", name="x\x1b[1m")
    for command in (["runs"], ["runs", "show", "last"]):
        code, out, err = parley(*command, "--store", "runs.db")
        assert code == 0
        assert "\x1b" not in out + err
        assert "\u202e" not in out
    assert "\x1b" not in sentence(parley("run", "study.toml", "--set", "algorithm.name=\x1b[2J"))


def test_files_that_are_none(parley, place: Path):
    os.mkfifo(place / "fifo.toml")
    assert "it is not a file" in sentence(parley("run", "fifo.toml"))
    assert "File name too long" in sentence(parley("run", "x" * 5000))
    assert "NUL" in sentence(parley("run", "a\0b.toml"))
    assert "NUL" in sentence(parley("run", "study.toml", "--set", 'data.folder="a\\u0000b"'))
    assert sentence(parley("run", "study.toml", "--set", f"data.folder={'x' * 3000}"))
    assert sentence(parley("run", "study.toml", "--store", "x" * 3000))
    (place / "large.toml").write_bytes(b"#" * 2**21)
    assert "more than 1 MB" in sentence(parley("run", "large.toml"))
    assert sentence(parley("run", "/dev/zero"))


HARD = [
    "seed=" + "9" * 5000, "model.hidden=" + "[" * 500 + "]" * 500, "algorithm.lr=nan", "algorithm.server.lr=inf",
    "evaluate.target=nan", "faults.straggling=inf", "faults.deadline=inf", "data.test_fraction=nan",
    "runtime.workers=1000000000", "rounds=1e400", "algorithm.options={momentum=nan}", "plugins=[\"none.py\"]",
    "logging.wandb=project", "listeners=[\"none.py:X\"]", "logging.tensorboard=3",
]  # fmt: skip


@pytest.mark.parametrize("override", HARD, ids=[text[:30] for text in HARD])
def test_hard_settings_are_one_sentence(parley, place: Path, override: str):
    assert sentence(parley("run", "study.toml", "--set", override))
    assert not (place / "parley-runs" / "runs.db").exists() or parley("runs")[1].count("fedavg") == 0


LEAVES = """
import sys
import parley as pl

def net():
    sys.exit(0)

class Watcher(pl.Listener):
    def round(self, record):
        sys.exit(0)
"""


@pytest.mark.parametrize(
    ("override", "line"), [('model.name="leaves.py:net"', 6), ('listeners=["leaves.py:Watcher"]', 10)]
)
def test_code_of_ones_own_cannot_end_a_run_as_if_it_had_worked(parley, place: Path, override: str, line: int):
    (place / "leaves.py").write_text(LEAVES)
    code, out, err = parley("run", "study.toml", "-q", "--set", override)
    assert (code, out) == (2, "")
    assert (
        err.splitlines()[-1] == f"parley: the program was ended by sys.exit(0) (leaves.py, line {line}), not by parley."
    )


def test_a_plugin_that_ends_the_program_trains_nothing_and_says_so(parley, place: Path):
    (place / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    assert "it ends the program (sys.exit(0)" in sentence(parley("run", "study.toml", "--set", 'plugins=["leaves.py"]'))


def test_help_and_lists_load_nothing_heavy():
    for words in (["--help"], ["list"], ["list", "algorithms"], ["run", "--help"], ["runs", "--help"]):
        code = (
            "import sys\nfrom parley.cli.main import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"
            "print([name for name in ('torch', 'numpy', 'scipy', 'pydantic', 'matplotlib') if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]", words


def test_starting_from_a_run_or_a_file(parley, place: Path):
    first = parley("run", "study.toml", "-q")[1].strip()
    assert parley("export", first, "out")[0] == 0
    code, out, err = parley("run", "study.toml", "--set", "rounds=1", "--init-from", "last", "--seeds", "0-1")
    assert code == 0, err
    with RunStore() as store:
        runs = store.runs()
        assert [info.config["init_from"]["run"] for info in runs[1:]] == [first, first]
        assert {info.config["init_from"]["digest"] for info in runs[1:]} != {None}
        begin = store.series(runs[1].id, "train/loss")[1]
    code, out, err = parley("run", "study.toml", "--rounds", "1", "--init-from", "out/model.safetensors", "-q")
    assert code == 0, err
    with RunStore() as store:
        filed = store.info(out.strip())
        assert filed.config["init_from"]["file"] == str(place / "out" / "model.safetensors")
        assert store.series(filed.id, "train/loss")[1].tolist() == begin.tolist()
    assert "there is no run 'nobody'" in sentence(parley("run", "study.toml", "--init-from", "nobody"))
    assert "which is not there" in sentence(parley("run", "study.toml", "--init-from", "no.safetensors"))
    wrong = sentence(parley("run", "study.toml", "--init-from", first, "--set", 'model.name="mlp"'))
    assert "has weights of another model" in wrong
    assert "'last' may be another run" in sentence(parley("run", "study.toml", "--init-from", "last", "--resume"))
