"""docs/data.md: its examples run in order, and it names everything that is registered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parley.data import datasets, partitioners

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = set(partitioners)
    names: dict[str, object] = {}
    try:
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
            exec(compile(block, str(PAGE), "exec", dont_inherit=True), names)
    finally:
        for name in set(partitioners) - known:
            del partitioners._items[name]
    assert (tmp_path / "clients.png").stat().st_size > 1000
    assert names["federation"].info.name == "mine"


@pytest.mark.parametrize("name", sorted({*datasets, *partitioners}))
def test_the_page_names_it(name):
    assert f"`{name}`" in PAGE.read_text()
