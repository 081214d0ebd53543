"""docs/pareto.md: its examples run as printed, its pictures are there, and its small example is right."""

import re
from pathlib import Path

import numpy as np
import pytest

from parley.theory.surrogate import All, Quadratics
from parley_papers.harness import matching

PAGE = Path(__file__).parents[2] / "docs" / "pareto.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_examples_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert len(blocks) == 3


def test_the_pictures_and_studies_exist() -> None:
    pictures = re.findall(r"\]\((figures/[^)]+)\)", TEXT)
    assert len(pictures) == 7
    for picture in pictures:
        assert (PAGE.parent / picture).is_file()
    for name in re.findall(r"parley reproduce (\S+?)`", TEXT):
        assert matching(name)


def test_the_smallest_example() -> None:
    clients = Quadratics(np.array([[[1.0]], [[4.0]]]), np.array([[0.0], [1.0]]))
    assert clients.empirical_minimiser == pytest.approx(0.8)
    assert clients.distortion(0.1, All(5)).ravel() == pytest.approx([4.1, 2.3], abs=0.05)
    assert clients.minimiser(0.1, All(5)) == pytest.approx(0.69, abs=0.005)
    assert clients.minimiser(0.1, All(10_000)) == pytest.approx(0.5, abs=1e-6)
