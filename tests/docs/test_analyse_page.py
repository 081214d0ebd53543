"""docs/analyse.md: its commands and its Python run as printed."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from parley.cli.main import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "analyse.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(line)[1:])
    out, err = capfd.readouterr()
    assert ended.value.code == 0, err
    assert "clients" in out
    for file in re.findall(r"--(?:csv|json|figure) (\S+)", line):
        assert (tmp_path / file).stat().st_size


def test_the_example_runs() -> None:
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/analyse.md", "exec"), {})
