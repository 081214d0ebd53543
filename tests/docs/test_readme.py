"""README.md's commands, exactly as printed and in one shell, in a copy of the clone with an empty home."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
FILES = {
    "parley demo": ["parley-demo/report.html", "parley-demo/demo.png", "parley-runs/runs.db"],
    "parley compare digits scaffold --figure compare.png": ["compare.png"],
}
"""The files that a command promises."""
PROGRAM = "#!{python}\nfrom parley.cli.main import main\n\nmain()\n"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What a newcomer has after `make demo`: the examples, `.venv` with Parley in it, and an empty home."""
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "examples", clone / "examples")
    (tmp_path / "home").mkdir()
    venv.create(clone / ".venv", symlinks=True)
    packages = clone / ".venv" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    installed = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "parley.pth").write_text("\n".join([str(ROOT), *installed]) + "\n")
    write_program(clone, PROGRAM.format(python=clone / ".venv" / "bin" / "python"))
    return clone


def write_program(clone: Path, text: str) -> None:
    program = clone / ".venv" / "bin" / "parley"
    program.write_text(text)
    program.chmod(0o755)


def run_all(clone: Path) -> dict[str, str]:
    """What every command after `make demo` printed, all of them typed into one shell that does not know `parley`."""
    home = clone.parent / "home"
    foreign = ("PARLEY_", "XDG_", "PYTHON", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    folders = [each for each in environment["PATH"].split(os.pathsep) if not (Path(each) / "parley").exists()]
    environment |= {"HOME": str(home), "OMP_NUM_THREADS": "1", "PATH": os.pathsep.join(folders)}
    script = "".join(f"printf '\\n<%s>\\n' {shlex.quote(line)}\n{line}\n" for line in COMMANDS[1:])
    done = subprocess.run(
        ["/bin/sh", "-e", "-c", script],
        cwd=clone,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    parts = re.split(r"^<(.*)>$", done.stdout, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_commands_are_those_that_are_run_here() -> None:
    assert COMMANDS[0] == "make demo"  # run by whoever clones; its recipe is a command below, in the `.venv` it makes
    assert "\t$(BIN)/parley demo\n" in (ROOT / "Makefile").read_text(encoding="utf-8")
    assert len(COMMANDS) == 8
    assert set(FILES) <= set(COMMANDS)


def test_the_shell_finds_every_command(clone: Path) -> None:
    write_program(clone, '#!/bin/sh\necho "parley $*"\n')
    printed = run_all(clone)
    assert list(printed) == COMMANDS[1:]
    assert [text.strip() for line, text in printed.items() if line.startswith("parley ")] == COMMANDS[2:]


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.*)$", PAGE, flags=re.MULTILINE)
    return {"": parts[0]} | dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_claim_links_to_a_page_or_test() -> None:
    claims = re.split(r"^- ", sections()["What you can rely on, and what not"], flags=re.MULTILINE)[1:]
    claims += [each for each in re.split(r"(?<=\.)\s", sections()[""]) if " estimates " in each]
    claims += re.split(r"(?<=\.)\s", re.sub(r"```.*?```", "", sections()["Decide, then deploy"], flags=re.DOTALL))
    for claim in (each.strip() for each in claims):
        links = re.findall(r"\]\(([^)]+)\)", claim)
        assert links or not claim, claim
        assert all((ROOT / link).is_file() for link in links), claim


def test_methods_without_a_closed_form_are_those_that_are_named() -> None:
    facts = tomllib.loads((ROOT / "docs" / "algorithms.toml").read_text(encoding="utf-8"))
    without = {name for name, fact in facts.items() if str(fact.get("settles", "")).startswith("(no ")}
    claim = sections()["What you can rely on, and what not"].split("\n- ")[1]
    named = {name.lower() for name in re.findall(r"MOON|`([a-z-]+)`", claim)} - {""} | {"moon"}
    assert "MOON" in claim
    assert named == without


def drawn_by_a_browser(page: Path) -> None:
    if (chromium := shutil.which("chromium")) is None:
        assert "chromium" not in os.environ.get("PARLEY_REQUIRE", "")
        return
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
    flags += ["--virtual-time-budget=20000", f"--user-data-dir={page.parent / 'profile'}", "--dump-dom"]
    done = subprocess.run([chromium, *flags, page.as_uri()], capture_output=True, text=True, timeout=120)
    assert 'data-drawn="2"' in done.stdout
    assert "Fifty clients, five papers" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(1500)  # seven trainings, on machines that have other work too
def test_every_command_as_printed(clone: Path) -> None:
    printed = run_all(clone)
    for line, names in FILES.items():
        for name in names:
            assert (clone / name).stat().st_size > 1000, f"{line} left no {name}"
    assert len(re.findall(r"^[1-5]\. ", printed["parley demo"], re.MULTILINE)) == 5
    drawn_by_a_browser(clone / "parley-demo" / "report.html")
    compared = printed["parley compare digits scaffold --figure compare.png"]
    assert "digits" in compared
    assert "scaffold" in compared
    decisions = re.findall(
        r" (join|undecided|stay alone) *$", printed["parley gain examples/own-folder.toml"], re.MULTILINE
    )
    assert sorted(decisions) == ["join", *["undecided"] * 4]
    assert "one gains (1.5 times less error) and four are undecided" in (ROOT / "docs" / "choose.md").read_text("utf-8")
    assert "local steps" in printed["parley advise examples/pareto.toml"]
