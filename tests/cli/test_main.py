"""The command line: exit codes, one sentence per mistake, and a quick start."""

import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from parley.core.errors import InputError
from parley.core.extras import how_to_install
from parley.store.runs import RunStore

ROOT = Path(__file__).parents[2]

STUDY = """
rounds = 3
loss = "cross-entropy"
[data]
name = "digits"
clients = 8
[data.partition]
name = "dirichlet"
[model]
name = "linear"
[algorithm]
name = "fedavg"
lr = 0.1
[cohort]
size = 4
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own with a study in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARLEY_STORE", raising=False)
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path


def refused(result: tuple[int, str, str]) -> str:
    """The one sentence of a refusal."""
    code, out, err = result
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1, err
    assert err.startswith("parley: ")
    return err.removeprefix("parley: ").rstrip("\n")


def test_run_and_look_at_it(parley, place: Path):
    code, out, _ = parley("run", "study.toml", "--set", "algorithm.lr=0.05", "--rounds", "2")
    assert code == 0
    assert "fedavg-digits-" in out
    assert "finished" in out
    assert (place / "parley-runs" / "runs.db").is_file()
    code, out, _ = parley("runs")
    assert code == 0
    assert "2/2" in out
    code, out, _ = parley("runs", "show", "last")
    assert code == 0
    assert "algorithm.lr" in out
    assert "0.05" in out
    code, out, _ = parley("runs", "export", "last", "numbers.csv")
    assert code == 0
    assert (place / "numbers.csv").read_text().startswith("round,metric,client,value\n")
    code, out, _ = parley("runs", "delete", "last")
    assert out.startswith("deleted fedavg-digits-")
    assert "no runs yet" in refused(parley("runs", "show", "last"))


def test_quiet_prints_the_id_alone(parley):
    code, out, err = parley("run", "study.toml", "--quiet", "--runtime", "inline", "--store", "other.db")
    assert code == 0
    assert err == ""
    assert parley("runs", "--store", "other.db")[1].count(out.strip()) == 1


def test_the_store_can_be_named_by_the_environment(parley, place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PARLEY_STORE", str(place / "elsewhere.db"))
    parley("run", "study.toml", "--quiet")
    assert (place / "elsewhere.db").is_file()
    assert not (place / "parley-runs").exists()


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("algoritm.lr=1", "a study has no section or setting 'algoritm': did you mean 'algorithm'?"),
        ("algorithm.lr=fast", "algorithm.lr must be a number, not 'fast'."),
        ("algorithm.lr=-0.1", "[algorithm] the local step size lr must be at least 0, not -0.1."),
        ("algorithm=3", "algorithm must be a section, not 3: write [algorithm] and its settings below it."),
        ("data.clients=0", "data.clients must be at least 1, not 0."),
        ("data.clients=2000", "[data] 1438 samples cannot give 2000 clients 1 each; use fewer clients."),
        ("data.name=digets", "unknown data set 'digets': did you mean 'digits'?"),
        ("rounds=0", "rounds must be at least 1, not 0."),
        ("cohort.size=9", "cohort.size is 9, but the federation has only 8 clients; lower it."),
        ("runtime.name=stakced", "unknown runtime 'stakced': did you mean 'stacked'?"),
    ],
)
def test_mistakes_in_a_study(parley, place: Path, override: str, sentence: str):
    assert refused(parley("run", "study.toml", "--set", override)) == sentence
    assert not (place / "parley-runs").exists()


def test_mistakes_in_files(parley, place: Path):
    assert refused(parley("run", "none.toml")) == "there is no study file none.toml."
    (place / "broken.toml").write_text("rounds = 3\n[data\n")
    assert "broken.toml is not valid TOML" in refused(parley("run", "broken.toml"))
    assert "line 2" in refused(parley("run", "broken.toml"))
    (place / "text.db").write_text("no database " * 100)
    assert "is not a run store" in refused(parley("run", "study.toml", "--store", "text.db"))
    assert "there is no run store at" in refused(parley("runs"))


def test_mistakes_on_the_command_line(parley):
    assert "No such command 'rn'" in refused(parley("rn"))
    assert refused(parley("run")) == "Missing argument 'STUDY'. See 'parley run --help'."
    assert "'many' is not a valid" in refused(parley("run", "study.toml", "--rounds", "many"))
    assert "did you mean 'algorithms'" in refused(parley("list", "algoritms"))
    assert "did you mean 'fedprox'" in refused(parley("list", "algorithms", "fedporx"))
    assert "did you mean 'digits'" in refused(parley("data", "show", "digist"))
    assert "did you mean 'mnist'" in refused(parley("data", "fetch", "mnits"))
    assert "need a study file" in refused(parley("data", "show", "digits", "--figure", "x.png"))
    assert "no unfinished run" in refused(parley("run", "study.toml", "--resume"))


def test_lists(parley):
    code, out, _ = parley("list")
    assert code == 0
    assert "fedavg" in out
    assert "dirichlet" in out
    for kind in ("algorithms", "models", "partitioners", "data sets", "server_optimizers", "losses", "runtimes"):
        code, out, _ = parley("list", kind)
        assert code == 0, kind
        assert len(out.splitlines()) > 3, kind
    _, out, _ = parley("list", "algorithms", "fedprox")
    assert "Strength of the proximal pull" in out
    _, out, _ = parley("list", "algorithms", "local-update")
    assert "a list of numbers" in out
    _, out, _ = parley("list", "data-sets", "digits")
    assert "central_fraction" in out
    assert "License: CC BY 4.0" in out


def test_data(parley, place: Path):
    code, out, _ = parley("data", "list")
    assert code == 0
    assert "embedded" in out
    code, out, _ = parley("data", "show", "study.toml", "--figure", "spread.png")
    assert code == 0
    assert "total variation" in out
    assert (place / "spread.png").stat().st_size > 5000
    assert "cannot be written" in parley("data", "show", "study.toml", "--figure", "none/x.png")[2]
    code, out, _ = parley("data", "show", "iris")
    assert code == 0
    assert "natural clients" in out
    code, out, _ = parley("data", "fetch", "digits")
    assert "nothing to fetch" in out


def test_compare_export_and_predict(parley, place: Path):
    for name in ("fedavg", "fedprox"):
        assert parley("run", "study.toml", "--set", f"algorithm.name={name}", "--quiet")[0] == 0
    code, out, _ = parley("compare", "fedavg", "fedprox", "--target", "0.5", "--figure", "c.png", "--out", "c.json")
    assert code == 0
    assert "fedprox-digits" in out
    assert "50.0%" in out
    assert (place / "c.png").stat().st_size > 5000
    assert (place / "c.json").read_text().startswith("{")
    assert parley("compare", "last", "--out", "c.csv")[0] == 0
    assert "did you mean" in refused(parley("compare", "fedavg-digts"))
    assert parley("compare", "last", "--figure", "c.jpeg2")[0] == 2

    code, out, _ = parley("export", "last", "model", "--best", "--format", "safetensors")
    assert code == 0
    assert (place / "model" / "model.safetensors").is_file()
    assert "did you mean 'onnx'" in refused(parley("export", "last", "other", "--format", "onx"))
    np.savez(place / "new.npz", x=np.zeros((3, 1, 8, 8), np.float32))
    code, out, _ = parley("predict", "last", "new.npz", "--out", "answers.csv")
    assert code == 0
    assert out == "3 predictions in answers.csv\n"
    assert len((place / "answers.csv").read_text().splitlines()) == 4
    assert "there is no file" in refused(parley("predict", "last", "none.npz", "--out", "answers.csv"))


def test_predict_with_a_clients_own_model(parley, place: Path):
    assert parley("run", "study.toml", "--set", "algorithm.name=local-only", "--set", "rounds=1", "--quiet")[0] == 0
    np.savez(place / "new.npz", x=np.ones((3, 1, 8, 8), np.float32))
    done = [parley("predict", "last", "new.npz", "--client", client, "--out", f"{client}.csv") for client in range(8)]
    assert len([one for one in done if one[0] == 0]) == 4
    assert len({file.read_text() for file in place.glob("?.csv")}) == 4
    for one in done:
        if one[0] != 0:
            assert "has no model of its own: it has not completed a round yet" in refused(one)
    sentence = refused(parley("predict", "last", "new.npz", "--out", "answers.csv"))
    assert "name a client: client=" in sentence
    assert refused(parley("export", "last", "model")) == sentence
    assert not (place / "answers.csv").exists()
    assert not (place / "model").exists()
    predict = ("predict", "last", "new.npz", "--out", "answers.csv", "--client")
    assert "there is no client '8'" in refused(parley(*predict, 8))
    assert "last round only" in refused(parley(*predict, 1, "--best"))


def test_demo(parley, place: Path):
    code, out, _ = parley("demo", "--rounds", "2")
    assert code == 0
    assert all(method in out for method in ("fedavg", "fedprox", "local-only", "centralised"))
    assert (place / "parley-demo" / "demo.png").stat().st_size > 5000
    assert parley("runs")[1].count("finished") == 12


def test_reproduce_exits_by_the_checks(parley, place: Path, monkeypatch: pytest.MonkeyPatch):
    from parley_papers.catalogue import at_most, studies, study

    monkeypatch.setattr(studies, "_items", {})
    for name, measured in (("900/good", 1.0), ("900/bad", 3.0)):

        @study(name, scales={"smoke": "at once", "paper": "a day"})
        def measure(scale, context, measured=measured):
            """A number is small."""
            return context.result([at_most("the number", measured, 2.0)])

    assert "A number is small." in parley("reproduce")[1]
    code, out, told = parley("reproduce", "900/good", "--scale", "smoke")
    assert code == 0
    assert not told
    assert "passed" in out
    assert "900/good, paper: a day." in parley("reproduce", "900/good", "--scale", "paper")[2]
    assert (place / "reproduced" / "900" / "good" / "smoke.json").is_file()
    code, out, _ = parley("reproduce", "900", "--scale", "smoke", "--out", "there")
    assert code == 1
    assert "FAILED" in out
    assert (place / "there" / "900" / "good" / "smoke.json").is_file()
    assert "did you mean '900/good'" in refused(parley("reproduce", "900/god"))
    assert "has no scale 'cpu'" in refused(parley("reproduce", "900/good"))


def test_bench_refuses_what_it_does_not_know(parley):
    assert "unknown scale 'smok': did you mean 'smoke'" in refused(parley("bench", "--scale", "smok"))
    assert "unknown workload" in refused(parley("bench", "nothing", "--scale", "smoke"))


IGNORING = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
"""Starts a command as a script's background does."""


@pytest.mark.parametrize(
    ("number", "prefix"),
    [
        pytest.param(signal.SIGINT, [], id="SIGINT"),
        pytest.param(signal.SIGTERM, IGNORING, id="SIGTERM, SIGINT being ignored", marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, [], id="SIGHUP", marks=pytest.mark.long),
    ],
)
def test_an_interrupted_run_says_how_to_go_on_and_does(parley, place: Path, number: signal.Signals, prefix: list[str]):
    long = ["run", "study.toml", "--set", "store.checkpoint=0", "--rounds", "300", "--store", "runs.db"]
    code = "import sys; from parley.cli.main import main; main(sys.argv[1:])"
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", code, *long], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        status, out, _ = parley("runs", "--store", "runs.db")
        if status == 0 and "/300" in out and " 0/300" not in out:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGSTOP)  # it must not end meanwhile
    assert "running" in out
    assert "no unfinished run" in refused(parley(*long, "--resume"))
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert "Traceback" not in err
    last = err.strip().splitlines()[-1]
    words = shlex.split(last.removeprefix("parley: interrupted; resume with: "))
    assert words == ["parley", *long, "--resume"]
    with RunStore("runs.db") as store:
        (stopped,) = store.runs()
        assert stopped.status == "interrupted"
        assert 0 < stopped.rounds < 300

    assert parley(*words[1:], "--quiet")[0] == 0
    assert parley(*long, "--quiet")[0] == 0
    with RunStore("runs.db") as store:
        resumed, whole = store.runs()
        assert (resumed.status, resumed.rounds, resumed.fingerprint) == ("finished", 300, whole.fingerprint)
        for metric in ("central/accuracy", "central/loss", "train/loss", "up/bytes"):
            np.testing.assert_array_equal(store.series(resumed.id, metric), store.series(whole.id, metric))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_before_anything_was_trained(parley, place: Path, monkeypatch, number: signal.Signals):
    before = signal.getsignal(number)
    monkeypatch.setattr("parley.study.toml.load_study", lambda *arguments: os.kill(os.getpid(), number))
    assert parley("run", "study.toml", "--store", "runs.db") == (128 + number, "", "parley: interrupted.\n")
    assert signal.getsignal(number) is before
    assert not Path("runs.db").exists()


def test_a_signal_that_is_ignored_stays_ignored(parley, place: Path, monkeypatch):
    """As nohup asks for."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        monkeypatch.setattr("parley.study.toml.load_study", lambda *arguments: _hung_up())
        assert "still here" in refused(parley("run", "study.toml", "--store", "runs.db"))
    finally:
        signal.signal(signal.SIGHUP, before)


def _hung_up() -> None:
    os.kill(os.getpid(), signal.SIGHUP)
    raise InputError("still here.")


def test_start_is_quick_and_does_not_load_torch():
    code = (
        "import sys\nfrom parley.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines()[-1] == "False False"
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 2.0  # 0.2 s on an idle machine


def test_the_version(parley):
    code, out, _ = parley("--version")
    assert code == 0
    assert out.startswith("parley 0.")


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.toml")))
def test_every_example_trains(parley, example: str, place: Path):
    file = ROOT / "examples" / example
    if "--freeze" in file.read_text():  # as its first lines say
        shutil.copytree(ROOT / "examples" / "hospitals", place / "hospitals")
        frozen = place / "frozen.toml"
        assert parley("stats", shutil.copy(file, place), "--freeze", frozen, "--fill", "median")[0] == 0
        file = frozen
    arguments = ["run", file, "--rounds", "2", "--quiet"]
    code, _, err = parley(*arguments)
    missing = [("is not here", "data")] + [(how_to_install(extra), extra) for extra in ("hf", "privacy")]
    for lacking, need in missing:
        if code == 2 and lacking in " ".join(err.split()):
            if need in os.environ.get("PARLEY_REQUIRE", ""):
                pytest.fail(err)
            pytest.skip(err.strip())
    assert code == 0, err
    assert "2/2" in parley("runs")[1]


def test_where_numbers_of_a_comparison_go(parley, place: Path):
    assert parley("run", "study.toml", "--quiet")[0] == 0
    sentence = "x.tex ends in .tex, but csv is to be written; end it in .csv."
    assert refused(parley("compare", "--export", "csv", "--out", "x.tex")) == sentence
    assert "go to a file, not to standard output" in refused(parley("compare", "--export", "json", "--out", "-"))
    assert "go to a file, not to standard output" in refused(parley("compare", "--out", "-"))
    assert sorted(file.name for file in place.iterdir()) == ["parley-runs", "study.toml"]
    assert parley("compare", "--export", "csv", "--out", "x")[0] == 0
    assert parley("compare", "--export", "csv", "--out", "y.csv")[0] == 0
    assert (place / "x.csv").read_text() == (place / "y.csv").read_text()
    assert "'auc' was not measured; there is central/accuracy" in refused(parley("compare", "--metric", "auc"))


def test_the_list_tells_clients_metrics_from_central_ones(parley, place: Path):
    settings = ["--set", "data.test_fraction=0.2", "--quiet"]
    assert parley("run", "study.toml", *settings)[0] == 0
    assert "held-out" not in parley("runs")[1]
    assert parley("run", "study.toml", *settings, "--set", "algorithm.name=local-only")[0] == 0
    lines = parley("runs")[1].splitlines()
    federated, alone = ([line for line in lines if f" {name}-digits" in line] for name in ("fedavg", "local-only"))
    assert " accuracy " in federated[0]
    assert "clients'" not in federated[0]
    assert "clients' accuracy " in alone[0]
    assert alone[0].split("%")[1].split()[0] == "-"
    assert any("clients': on clients' own held-out samples" in line for line in lines)


def test_two_seeds_are_said_to_be_few(parley, place: Path):
    words = "Two seeds are too few for an interval"
    for seeds, said in (("0-1", True), ("0-2", False)):
        _, out, _ = parley("run", "study.toml", "--seeds", seeds, "--resume")
        assert (words in out) is said
        assert (words in " ".join(parley("compare")[1].split())) is said
        assert (words in parley("runs")[1]) is said


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_who_has_seen_enough_is_no_error(unbuffered: str):
    code = 'from parley.cli.main import main; main(["list", "algorithms"])'
    command = f"({sys.executable} -c '{code}'; echo $? >&2) | true"
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(["sh", "-c", command], stderr=subprocess.PIPE, text=True, env=environment) as shell:
        assert shell.communicate(timeout=60)[1] == "0\n"
