"""The papers' studies import `parley` as a user does: what they use is public."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import parley
import parley_papers

ROOT = Path(parley_papers.__file__).parent
MOST = 220
"""Public names at the top: 184 before the studies stood on them, and at most a quarter more."""


def chains(path: Path) -> set[str]:
    """Every `pl.a.b.c` of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {name for name in names if re.fullmatch(r"pl(\.\w+)+", name)}


def private(chain: str) -> str | None:
    """The first step of a chain that is not public; what follows a class or function is its own business."""
    thing: Any = parley
    for step in chain.split(".")[1:]:
        if not isinstance(thing, ModuleType):
            return None
        if step not in getattr(thing, "__all__", ()):
            return f"{chain}: {thing.__name__}.{step}"
        thing = getattr(thing, step)
    return None


def test_studies_use_public_names_only() -> None:
    found = {problem for path in ROOT.rglob("*.py") for chain in chains(path) if (problem := private(chain))}
    assert found == set()


def test_studies_import_no_room_directly() -> None:
    lines = [line for path in ROOT.rglob("*.py") for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if re.match(r"\s*(from|import) parley\.", line)] == []


def test_public_names_do_not_grow_much() -> None:
    assert len(parley.__all__) <= MOST


@pytest.mark.parametrize("chain", ["pl.engine.loop", "pl.theory.theta.Array", "pl.core.wire.wire_size"])
def test_a_private_name_would_be_noticed(chain: str) -> None:
    assert private(chain) is not None
