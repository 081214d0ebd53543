"""The building's rules: imports point downwards, theory needs no torch, nothing is unpickled."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import parley

ROOT = Path(parley.__file__).parent
FLOORS = (
    ("cli",), ("demo",), ("report",), ("advise", "attack", "conformance", "deploy"), ("analyse",),
    ("sklearn", "statistics", "tuning"), ("study",), ("display",), ("privacy", "robust", "secure"), ("engine",),
    ("store",), ("runtimes",), ("algorithms",), ("channels",), ("training",), ("models",), ("data",),
    ("theory",), ("core",),
)  # fmt: skip
LEVEL = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything a module imports, wherever in it the import stands."""
    package = path.relative_to(ROOT.parent).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def upward(path: Path) -> list[str]:
    found = []
    own = room_of(path)
    for line, name in imports(path):
        parts = name.split(".")
        if parts[0] != "parley":
            continue
        target = parts[1] if len(parts) > 1 else ""
        if target.startswith("__") or (not target and LEVEL[own] <= LEVEL["demo"]):
            continue  # the version; or the whole package, as its users import it
        if target not in LEVEL:
            found.append(f"{path.relative_to(ROOT.parent)}:{line} imports {name}; name the room it comes from")
        elif target != own and LEVEL[target] <= LEVEL[own]:
            found.append(f"{path.relative_to(ROOT.parent)}:{line} ({own}) imports {name}")
    return found


def test_every_module_is_in_a_room():
    assert {room_of(path) for path in MODULES} <= {*LEVEL, "__main__"}


def test_imports_point_downwards():
    assert [line for path in MODULES if room_of(path) in LEVEL for line in upward(path)] == []


def test_the_library_does_without_the_laboratory():
    """`parley reproduce` and `parley bench` are found through entry points."""
    found = [(path, line, name) for path in MODULES for line, name in imports(path) if name.startswith("parley_")]
    assert found == []


def test_an_import_upwards_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "parley" / "training" / "wrong.py"
    path.parent.mkdir(parents=True)
    path.write_text("def f():\n    from parley.engine import train\n    from ..algorithms import server\n")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path / "parley")
    assert [line.split(" ", 1)[0] for line in upward(path)] == [
        "parley/training/wrong.py:2",
        "parley/training/wrong.py:3",
    ]


def test_theory_needs_no_torch():
    names = sorted(f"parley.theory.{path.stem}" for path in (ROOT / "theory").glob("*.py") if path.stem != "__init__")
    code = f"import sys, {', '.join(names)}\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not [
        line for path in (ROOT / "theory").rglob("*.py") for line in imports(path) if line[1].startswith("torch")
    ]


def test_the_package_itself_loads_at_once():
    subprocess.run([sys.executable, "-c", "import sys, parley; assert 'torch' not in sys.modules"], check=True)


def test_modules_that_are_public_names_load_on_first_use():
    """`pl.tree` before anything else: its package has not loaded it yet."""
    code = "import parley as pl; assert pl.tree.zeros_like({}) == {}; assert pl.transforms.pull({}, 0.1)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_exists():
    for name in parley._HOME:
        assert getattr(parley, name) is not None
    assert set(parley._HOME) <= set(dir(parley))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = parley.nothing


BANNED = {
    "torch.manual_seed", "torch.seed", "torch.load", "np.random.seed", "np.random.rand", "np.random.randn",
    "np.random.normal", "np.random.choice", "np.random.permutation", "np.random.shuffle", "pickle.load",
    "pickle.loads",
}  # fmt: skip


def test_no_global_random_state_and_nothing_unpickled():
    found = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in BANNED:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node.func)}")
        found += [
            f"{path.relative_to(ROOT)}:{line} {name}" for line, name in imports(path) if name.split(".")[0] == "pickle"
        ]
    assert found == []


def test_the_private_parts_of_torch_that_stacks_need_are_behind_one_module():
    users = {path.relative_to(ROOT).as_posix() for path in MODULES for _, name in imports(path) if "_functorch" in name}
    assert users == {"training/stack.py"}
