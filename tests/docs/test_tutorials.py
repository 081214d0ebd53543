"""docs/tutorials: every notebook from its first cell to its last, and what is stored of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
MAKER = "docs/make_tutorials.py"


def outputs(path: Path) -> list[list[dict[str, Any]]]:
    """What each cell of code shows."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell["outputs"] for cell in cells if cell["cell_type"] == "code"]


def kinds(path: Path) -> list[list[list[str]]]:
    """The kinds of what each cell shows: a stream's name, or the media types of a value. What goes to stderr depends on
    the machine: progress, if a run takes long; a word about a cache."""
    return [
        sorted(sorted(out.get("data", [out.get("name", "error")])) for out in cell if out.get("name") != "stderr")
        for cell in outputs(path)
    ]


def beginnings(path: Path) -> list[list[str]]:
    """The first word of every line that a cell prints; numbers may differ a little between machines."""
    printed = [["".join(out["text"]) for out in cell if out.get("name") == "stdout"] for cell in outputs(path)]
    return [[line.split()[0] for text in cell for line in text.splitlines() if line.strip(" ─")] for cell in printed]


def words(path: Path) -> str:
    shown = [out.get("text", out.get("data", {}).get("text/plain", "")) for cell in outputs(path) for out in cell]
    return "\n".join("".join(part) for part in shown)


def holds(name: str, said: str) -> None:
    """What a tutorial tells its reader to see."""
    if name == "first-federation":
        assert re.search(r"90 clients.*'join': [1-8]", said)
    elif name == "own-method":
        surrogate, drift, mended = map(float, re.findall(r"to the (?:surrogate's minimiser|optimum): +(\S+)", said))
        assert max(surrogate, mended) < 1e-12 < 0.01 < drift
        assert len(re.findall("passed .* Checked", said)) == 5
        assert "FAILED" not in "\n".join(line for line in said.splitlines() if "Checked" in line)
        assert len(re.findall("FAILED .* WrongSign", said)) == 3
    elif name == "papers-figure":
        assert "all 13 checks passed" in said
        assert float(re.findall("at most (.*)", said)[-1]) < 1e-12
    else:
        assert "pain[typical]" in said
        assert float(re.findall("agree within (.*)", said)[0]) < 1e-5


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_stored(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text) < 300_000
    assert not re.search(r"(?<![\w.])/(home|root|tmp|work|Users)/", text), "a path of the machine that executed it"
    assert "\\u001b" not in text
    said = [line for cell in outputs(path) for out in cell if out.get("name") == "stderr" for line in out["text"]]
    assert all(line.startswith("fedavg-hospitals: runtime ") for line in said)
    assert not any(["error"] in cell for cell in kinds(path))
    assert json.loads(text)["metadata"]["kernelspec"]["name"] == "python3"
    holds(path.stem, words(path))
    for link in re.findall(r"\]\((\.\./[^)#]+)", text):
        assert (path.parent / link).is_file(), link


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_from_its_first_cell_to_its_last(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    command = [sys.executable, MAKER, path.stem, "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    again = tmp_path / path.name
    holds(path.stem, words(again))
    for shown in (kinds, beginnings):
        assert shown(again) == shown(path), f"{path.name} shows other things now: run python {MAKER} {path.stem}"
