"""README.md's commands, exactly as printed and in its order, in a copy of the clone with an empty home."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
LEFT = {
    "parley demo": ["parley-demo/report.html", "parley-demo/demo.png", "parley-runs/runs.db"],
    "parley compare digits scaffold --figure compare.png": ["compare.png"],
}
"""The files that a command promises."""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What a newcomer has: the examples, an empty home and `parley` on the path."""
    shutil.copytree(ROOT / "examples", tmp_path / "clone" / "examples")
    (tmp_path / "home").mkdir()
    program = tmp_path / "bin" / "parley"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from parley.cli.main import main; main()" "$@"\n')
    program.chmod(0o755)
    return tmp_path / "clone"


def ran(line: str, clone: Path) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PARLEY_", "XDG_"))}
    place = clone.parent
    environment = kept | {"HOME": str(place / "home"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{place / 'bin'}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["/bin/sh", "-c", line], cwd=clone, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_commands_are_those_that_are_run_here() -> None:
    assert (
        COMMANDS[0] == "make demo"
    )  # run by whoever clones; its recipe is the next command in an environment it makes
    assert "\t$(BIN)/parley demo\n" in (ROOT / "Makefile").read_text(encoding="utf-8")
    assert len(COMMANDS) == 7
    assert all(line.startswith("parley ") for line in COMMANDS[1:])
    assert set(LEFT) <= set(COMMANDS)


@pytest.mark.long
@pytest.mark.timeout(1500)  # seven trainings, on machines that have other work too
def test_every_command_as_printed(clone: Path) -> None:
    said = {}
    for line in COMMANDS[1:]:
        said[line] = ran(line, clone)
        for name in LEFT.get(line, []):
            assert (clone / name).stat().st_size > 1000, f"{line} left no {name}"
    assert len(re.findall(r"^[1-5]\. ", said["parley demo"], re.MULTILINE)) == 5
    compared = said["parley compare digits scaffold --figure compare.png"]
    assert "digits" in compared
    assert "scaffold" in compared
    assert "decision" in said["parley gain examples/own-folder.toml"]
    assert "local steps" in said["parley advise examples/pareto.toml"]
