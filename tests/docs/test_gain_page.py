"""The example of docs/gain.md runs as printed, and every option it names exists."""

import re
from pathlib import Path

from typer.main import get_command

from parley.cli.main import application

PAGE = (Path(__file__).parents[2] / "docs" / "gain.md").read_text(encoding="utf-8")


def test_the_example_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(block, "gain.md", "exec"), names)
    assert len(names["gains"].clients) == 4  # type: ignore[attr-defined]


def test_the_options_exist() -> None:
    command = get_command(application()).commands["gain"]  # type: ignore[attr-defined]
    known = {option for parameter in command.params for option in parameter.opts}
    named = set(re.findall(r"(?<![\w|-])--[a-z][a-z-]+", PAGE))
    assert named - known == set()
    assert known - named - {"study", "--help"} <= {"--lengthscale"}
