"""docs/secure-sums.md: its program and its commands run as printed, and what it says of Flower is so."""

import inspect
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest

from parley.cli.main import main
from parley.secure import SecureSum
from parley.secure.masks import BOX, TOLD
from parley.study.channel_names import named_channel

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "secure-sums.md").read_text(encoding="utf-8")


def test_the_program_runs():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(block, "secure-sums.md", "exec"), {})


def test_the_section_is_that_of_the_example():
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    example = tomllib.loads((ROOT / "examples" / "secure-digits.toml").read_text(encoding="utf-8"))
    assert tomllib.loads(block)["channels"] == example["channels"]
    assert isinstance(named_channel(example["channels"]["up"][0]), SecureSum)


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```\n(parley .*?)```", PAGE, re.DOTALL)
    for line in block.splitlines():
        with pytest.raises(SystemExit) as end:
            main(shlex.split(line)[1:])
        assert not end.value.code, line
    told = capsys.readouterr().out
    assert "threshold" in told
    with pytest.raises(SystemExit):
        main(["list", "algorithms", "fedavg"])
    assert "Secure sums: yes" in capsys.readouterr().out


def test_sizes():
    assert (BOX, TOLD) == (82, 99)
    assert "about 82 bytes for each other client, 99 more to unmask" in PAGE


def test_what_is_said_of_flower():
    utils = pytest.importorskip("flwr.common.secure_aggregation.secaggplus_utils")
    source = inspect.getsource(utils.pseudo_rand_gen)
    assert "seed32 ^=" in source
    assert "RandomState(seed32)" in source
    assert "num_range - 1" in source
