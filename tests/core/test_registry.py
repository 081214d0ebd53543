"""Registries and the ends of sentences about unknown names."""

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from parley.core import registry as module
from parley.core.errors import InputError, ParleyError, ParleyWarning, QuorumError, UnsupportedError, WireError, nearest
from parley.core.registry import Registry


def test_things_are_found_by_name_and_listed_in_order():
    models = Registry[object]("model")
    b, a = models("b")(object()), models("a")(object())
    assert (models["a"], models["b"]) == (a, b)
    assert list(models) == ["a", "b"]
    assert "a" in models
    assert "c" not in models
    assert models.name_of(b) == "b"
    with pytest.raises(InputError, match="not a registered model"):
        models.name_of(object())


def test_unknown_names_suggest_the_nearest():
    models = Registry[object]("model")
    models("linear")(object())
    with pytest.raises(InputError, match=r"unknown model 'linaer': did you mean 'linear'\?"):
        models["linaer"]


def test_a_name_is_taken_once():
    models = Registry[object]("model")
    thing = models("a")(object())
    assert models("a")(thing) is thing
    with pytest.raises(InputError, match="two things call themselves model 'a'"):
        models("a")(object())


def test_other_packages_add_by_entry_point(monkeypatch: pytest.MonkeyPatch):
    group = "parley.data_sets"
    points = [EntryPoint("ordered", "collections:OrderedDict", group), EntryPoint("own", "collections:deque", group)]
    points.append(EntryPoint("model", "collections:deque", "parley.models"))
    monkeypatch.setattr(module, "_entry_points", lambda: EntryPoints(points))
    things = Registry[object]("data set")
    mine = things("own")(object())
    assert things["ordered"].__name__ == "OrderedDict"
    assert things["own"] is mine
    assert list(things) == ["ordered", "own"]


def test_nearest():
    assert nearest("algoritm", ["algorithm", "data"]) == "did you mean 'algorithm'?"
    assert nearest("xyz", ["b", "a"]) == "choose one of a, b."
    assert nearest("x", []) == "there are no choices."


@pytest.mark.parametrize("kind", [InputError, WireError, UnsupportedError, QuorumError])
def test_all_errors_are_parley_errors(kind: type[Exception]):
    assert issubclass(kind, ParleyError)


def test_a_broken_entry_point_breaks_nothing_else(monkeypatch: pytest.MonkeyPatch):
    points = [EntryPoint("bad", "no_such_package:thing", "parley.algorithms")]
    points.append(EntryPoint("good", "collections:deque", "parley.algorithms"))
    monkeypatch.setattr(module, "_entry_points", lambda: EntryPoints(points))
    things = Registry[object]("algorithm")
    mine = things("own")(object())
    with pytest.warns(ParleyWarning, match="algorithm 'bad' of another package is left out"):
        assert things["own"] is mine
    assert list(things) == ["good", "own"]
    assert list(things.broken) == ["bad"]
    with pytest.raises(InputError, match="algorithm 'bad' cannot be loaded: its entry point no_such"):
        things["bad"]


def test_an_entry_point_that_ends_the_program_is_broken_too(tmp_path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "leaves_at_once.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    points = EntryPoints([EntryPoint("bad", "leaves_at_once:thing", "parley.algorithms")])
    monkeypatch.setattr(module, "_entry_points", lambda: points)
    things = Registry[object]("algorithm")
    with pytest.warns(ParleyWarning, match="algorithm 'bad' of another package is left out.* raises SystemExit: 0"):
        assert list(things) == []


def test_a_cell_run_again_replaces_what_it_registered():
    things = Registry[type]("model")
    cell = "@things('net')\nclass Net:\n    pass"
    for _ in range(2):
        space = {"things": things, "__name__": "__main__"}
        exec(cell, space)
        assert things["net"] is space["Net"]
    other = {"things": things, "__name__": "elsewhere"}
    with pytest.raises(InputError, match="two things call themselves model 'net'"):
        exec(cell, other)
