"""Registries and the ends of sentences about unknown names."""

from importlib.metadata import EntryPoint

import pytest

from parley.core import registry as module
from parley.core.errors import InputError, ParleyError, QuorumError, UnsupportedError, WireError, nearest
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
    asked = []

    def points(group: str) -> list[EntryPoint]:
        asked.append(group)
        return [EntryPoint("ordered", "collections:OrderedDict", group), EntryPoint("own", "collections:deque", group)]

    monkeypatch.setattr(module, "entry_points", points)
    things = Registry[object]("data set")
    mine = things("own")(object())
    assert things["ordered"].__name__ == "OrderedDict"
    assert things["own"] is mine
    assert list(things) == ["ordered", "own"]
    assert asked == ["parley.data_sets"]


def test_nearest():
    assert nearest("algoritm", ["algorithm", "data"]) == "did you mean 'algorithm'?"
    assert nearest("xyz", ["b", "a"]) == "choose one of a, b."
    assert nearest("x", []) == "there are no choices."


@pytest.mark.parametrize("kind", [InputError, WireError, UnsupportedError, QuorumError])
def test_all_errors_are_parley_errors(kind: type[Exception]):
    assert issubclass(kind, ParleyError)
