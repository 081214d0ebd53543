"""docs/tutorials/hospitals.ipynb: the study it shows, and its last part, deployed on three nodes."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pandas as pd
import pytest

from parley.cli import deploy
from parley.cli.main import main
from parley.deploy.serverapp import carry_out
from parley.study.stored import load_run
from tests.deploy.conftest import make_node, server  # noqa: F401 (fixtures)
from tests.deploy.test_runs import Place, identity, place  # noqa: F401 (fixtures)

ROOT = Path(__file__).parents[2]
CELLS = json.loads((ROOT / "docs" / "tutorials" / "hospitals.ipynb").read_text(encoding="utf-8"))["cells"]
PAGE = "\n".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]
((PREDICT, _),) = [code.splitlines()[1:] for code in CODE if code.startswith("%%sh\nparley predict")]
(DEPLOYED,) = [block.splitlines() for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)]
STUDY, NODE = [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)]
(PROGRAM,) = [code for code in CODE if "onnxruntime" in code]


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "copy").mkdir()
    shutil.copytree(ROOT / "examples", tmp_path / "copy" / "examples")
    monkeypatch.chdir(tmp_path / "copy")
    monkeypatch.delenv("PARLEY_STORE", raising=False)
    return tmp_path / "copy"


def say(line: str, capfd: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(line)[1:])
    out, err = capfd.readouterr()
    assert ended.value.code == 0, (line, err)
    return " ".join(out.split())


def run_elsewhere() -> None:
    """The notebook's program: ONNX Runtime on raw rows gives what `parley predict` gave."""
    pytest.importorskip("onnxruntime")
    exec(compile(PROGRAM, "hospitals.ipynb", "exec"), {})


def test_the_page_shows_the_example():
    example = tomllib.loads((ROOT / "examples" / "hospitals.toml").read_text())
    assert STUDY["data"] == example["data"]
    assert STUDY["preprocessing"]["table"].items() <= example["preprocessing"]["table"].items()
    columns = (ROOT / "examples" / "hospitals" / "cork.csv").read_text().splitlines()[0].split(",")
    table = PAGE[PAGE.index("| column |") : PAGE.index("`examples/hospitals.toml`")]
    assert set(columns) == set(re.findall(r"`(\w+)`", table))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_the_same_between_machines(copy: Path, place: Place, capfd, monkeypatch: pytest.MonkeyPatch):  # noqa: F811
    """Three nodes with the settings of the page, one of them with a row that cannot be read."""
    hospitals = copy / "examples" / "hospitals"
    with (hospitals / "cork.csv").open("a") as file:
        file.write("yesterday,70,1.5,none,male,false,I,no\n")
    for node, name in zip(place.nodes.values(), ("aachen", "bergen", "cork"), strict=True):
        node.set(data=str(hospitals / f"{name}.csv"), **{key: _plain(value) for key, value in NODE.items()})
        (node.path / "policy.toml").write_text('algorithms = ["*"]\nmodels = ["*"]\nrounds = 40\n')
    follow = deploy.finished

    def served(path: Path, id: str, *, whole: bool) -> str | None:
        if place.submissions[id].active:
            place.submissions.update(id, attempts=1)
            carry_out(place.folder, id, place.grid)
        return follow(path, id, whole=whole)

    monkeypatch.setattr(deploy, "finished", served)
    stats, _, export = (line.replace("parley-server", str(place.folder.path)) for line in DEPLOYED)
    say(stats, capfd)
    frozen = tomllib.loads((copy / "examples" / "hospitals-deployed.toml").read_text())
    assert frozen["preprocessing"]["table"]["pain"]["levels"] == ["atypical", "none", "typical"]
    trained = place.run({name: value for name, value in frozen.items() if name != "data"} | {"rounds": 4})
    assert trained.status == "finished", place.said(trained)
    say(export, capfd)
    say(f"{PREDICT} --store {place.folder.store}", capfd)
    run_elsewhere()
    assert "yesterday" in (place.nodes["c"].path / "skipped.txt").read_text()
    deployed = load_run(place.folder.store, str(trained.run))
    rows = pd.read_csv(copy / "examples" / "new-patients.csv")
    shares = deployed.predict(rows).softmax(1)[:, 1]
    assert shares.tolist() == pytest.approx(pd.read_csv("predicted.csv")["p(yes)"].tolist(), abs=1e-5)


def _plain(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
