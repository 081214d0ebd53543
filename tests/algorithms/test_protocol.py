"""The shape of the protocol itself: few members, no flags, and nobody asks a method what class it is."""

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import parley as pl
from parley.algorithms.wrappers.wrapper import Wrapper

PACKAGE = Path(pl.__file__).parent
KNOWN = ("advise",)
"""Rooms that know methods one by one: theory has a formula for each."""


def test_an_algorithm_has_few_public_members_and_no_flags():
    members = {name: value for name, value in vars(pl.Algorithm).items() if not name.startswith("_")}
    assert set(members) == {"needs", "title", "init", "round", "exchanges", "learned"}
    assert all(callable(value) or isinstance(value, property) for value in members.values())
    assert not inspect.get_annotations(pl.Algorithm)


def sources() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).parts[0] not in KNOWN]


def asked_for(path: Path) -> list[str]:
    """Where a file asks which method something is, not whether it is one: isinstance, issubclass, a type compared."""
    calls = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass")
    ]
    compared = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Call)
        and getattr(node.left.func, "id", "") == "type"
    ]
    asked = []
    for call, kinds in [*((c, c.args[1]) for c in calls), *((c, c.comparators[0]) for c in compared)]:
        names = [node for node in ast.walk(kinds) if isinstance(node, ast.Name | ast.Attribute)]
        for name in names:
            value = _value(path, ast.unparse(name))
            for kind in value if isinstance(value, tuple | list | set | frozenset) else (value,):
                if not (isinstance(kind, type) and issubclass(kind, pl.Algorithm) and kind is not pl.Algorithm):
                    continue
                where = path.relative_to(PACKAGE) if PACKAGE in path.parents else path.name
                asked.append(f"{where}:{call.lineno}: {ast.unparse(call)}")
    return asked


def _value(path: Path, text: str) -> Any:
    if not any(part.lstrip("_")[:1].isupper() for part in text.split(".")):
        return None
    module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    try:
        return eval(text, vars(importlib.import_module(module)))
    except Exception:  # a name of a function's own, which is no method
        return None


def test_methods_are_asked_through_what_they_declare():
    text = [source.read_text() for source in sources()]
    assert sum("isinstance(" in each for each in text) > 50
    asks = ("isinstance(", "issubclass(", "type(")
    candidates = [source for source, each in zip(sources(), text, strict=True) if any(ask in each for ask in asks)]
    found = [line for source in candidates for line in asked_for(source)]
    assert found == []


def test_the_search_finds_what_it_looks_for():
    make = PACKAGE / "advise" / "plan" / "make.py"
    assert any("LocalSGD" in line for line in asked_for(make))


@pytest.mark.parametrize("text", ["type(self.of) not in _METHODS", "type(x) in (FedAvg, Ema)", "type(x) is FedAvg"])
def test_the_search_sees_types_compared(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "wrapper.py").write_text(f"def f(self, x):\n    return {text}\n")
    scope = {"_METHODS": (pl.FedAvg,), "FedAvg": pl.FedAvg, "Ema": pl.EMA}
    monkeypatch.setitem(globals(), "_value", lambda path, name: scope.get(name))
    assert asked_for(tmp_path / "wrapper.py")


@pytest.mark.parametrize("learned", [{"personal": True}, {"incremental": True}, {}])
def test_a_wrapper_passes_on_what_was_learned(learned: dict[str, bool], task):
    """Fields of a Learned that no wrapper has heard of are passed on too."""
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Special(pl.Learned):
        secret: int = 0

        def outputs(self, message, memory, x, before=None):
            return x + self.secret

    class Method(pl.FedAvg):
        def learned(self, task):
            return Special(task, secret=3, **learned)

    class Plain(Wrapper):
        of = Method()

    seen = Plain().learned(task)
    assert isinstance(seen, Special)
    assert (seen.secret, seen.personal, seen.incremental) == (
        3,
        learned.get("personal", False),
        learned.get("incremental", False),
    )
    state = pl.State.of(of={"model/w": task.initial()["weight"]}, model={"w": task.initial()["weight"] + 1})
    assert seen.message(state)["model"]["w"].equal(task.initial()["weight"])


@pytest.fixture
def task() -> pl.Task:
    import torch

    from parley.data import DataInfo
    from parley.training.losses import cross_entropy

    torch.manual_seed(0)
    return pl.Task(nn.Linear(2, 2), cross_entropy, DataInfo("toy", (2,), 2, "classification"), 1)


@pytest.mark.parametrize(("name", "real"), [("FedAvg", pl.FedAvg), ("Scaffold", pl.Scaffold)])
def test_the_methods_of_the_docstring_are_what_they_are_called(name: str, real: type[pl.Algorithm]):
    import textwrap
    from dataclasses import dataclass

    import torch

    from parley.algorithms import protocol

    lines = (protocol.__doc__ or "").split("\n")
    code = textwrap.dedent("\n".join(line for line in lines if line.startswith("    ") or not line))
    public = {each: getattr(pl, each) for each in ("LocalSGD", "OneExchange", "State", "Message", "Form", "exchange")}
    trees = {each: getattr(pl.tree, each) for each in ("add", "subtract", "scale", "zeros_like")}
    scope = {"dataclass": dataclass, "transforms": pl.transforms, **public, **trees}
    exec(code, scope)
    federation = pl.data.iris().split(pl.Dirichlet(0.5), clients=5, seed=0)
    cohort = pl.Sampling(size=2, scheme="unbiased")
    runs = [
        pl.train(
            kind(lr=0.1, steps=3, batch=8),
            federation,
            model=pl.models.linear(),
            rounds=4,
            cohort=cohort,
            runtime="inline",
        )
        for kind in (scope[name], real)
    ]
    for tree, value in runs[1].model()["model"].items():
        torch.testing.assert_close(runs[0].model()["model"][tree], value)
