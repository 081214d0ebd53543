"""The benchmarks import `parley` as a user does; what they measure from within is listed with the reason."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import parley
import parley_benchmarks

ROOT = Path(parley_benchmarks.__file__).parent
WITHIN = {
    "parley.cli": "commands that print as all commands do, and their completion",
    "parley.core.errors": "the nearest valid name, in sentences",
    "parley.core.processes": "free ports and processes that end with their parent",
    "parley.core.text": "names that cannot be printed",
    "parley.core.wire": "bytes of a message, by themselves",
    "parley.display.progress": "one progress display for all commands",
    "parley.channels.base": "the cost of a channel without a run around it",
    "parley.data.ids": "names of a hundred thousand clients that cost nothing",
    "parley.data.sources": "samples that are in memory already, pooled or by client",
    "parley.deploy": "a federation of machines is started and stopped step by step",
    "parley.engine": "the parts of a round are timed one by one",
    "parley.runtimes": "a runtime is opened once and asked for rounds",
    "parley.store.memories": "what clients remember is measured on the disk",
    "parley.training.losses": "the loss that a Jacobian is timed with",
    "parley.algorithms.ntk.jacobian": "the Jacobian of a round by itself",
    "parley.conformance.problem": "the quadratics that other libraries train on",
    "parley.conformance.reference": "fixed points in NumPy",
    "parley.theory": "quadratics and arrays as the theory has them",
}
"""Room or module -> why the benchmarks reach into it."""


def imported() -> set[tuple[str, str]]:
    """(module, name) of everything that the benchmarks import from Parley."""
    found = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "parley":
                found |= {(str(node.module), alias.name) for alias in node.names}
            if isinstance(node, ast.Import):
                found |= {(alias.name, "") for alias in node.names if alias.name.startswith("parley.")}
    return found


def is_public(module: str, name: str) -> bool:
    """A public name, or one that a public room offers: `parley.Key`, `parley.models.mlp`."""
    room = parley if module == "parley" else getattr(parley, module.partition(".")[2], None)
    public = module == "parley" or module.partition(".")[2] in parley.__all__
    return public and isinstance(room, ModuleType) and name in room.__all__


def reason(module: str) -> str | None:
    return next((room for room in WITHIN if module == room or module.startswith(f"{room}.")), None)


def test_benchmarks_use_public_names_or_have_a_reason() -> None:
    assert {f"{m}.{n}" for m, n in imported() if not is_public(m, n) and reason(m) is None} == set()


def test_every_reason_is_needed() -> None:
    assert {reason(m) for m, n in imported() if not is_public(m, n)} == set(WITHIN)


def test_public_names_are_imported_from_the_top() -> None:
    """Where a name is public, it is not taken from the module that happens to define it."""
    homes = {(home, name) for name, home in parley._HOME.items()}
    assert imported() & homes == set()
