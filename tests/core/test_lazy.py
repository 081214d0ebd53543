"""Packages whose names load on first use."""

import pkgutil
import subprocess
import sys
from importlib import import_module

import pytest

from parley.core.lazy import homes

LAZY = ["parley.data", "parley.data.partition", "parley.models", "parley.privacy"]


@pytest.mark.parametrize("package", LAZY)
def test_every_listed_name_is_what_its_module_has(package: str):
    """Also after all modules of the package were imported, which become its attributes."""
    room = import_module(package)
    for module in pkgutil.iter_modules(room.__path__, f"{package}."):
        import_module(module.name)
    listed = homes(package)
    assert listed
    assert set(listed) <= set(room.__all__) == set(dir(room))
    for name, home in listed.items():
        module, _, original = home.partition(":")
        assert getattr(room, name) is getattr(import_module(module), original or name)


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match=r"module 'parley\.models' has no attribute 'nothing'"):
        _ = import_module("parley.models").nothing


@pytest.mark.parametrize(
    "registry",
    ["algorithms:algorithms", "data:datasets", "data:partitioners", "models:models", "runtimes:runtimes"],
)
def test_every_name_has_the_module_that_registers_it(registry: str):
    room, _, name = registry.partition(":")
    things = getattr(import_module(f"parley.{room}"), name)
    assert things.homes
    for name, home in things.homes.items():
        import_module(home)
        assert name in things._items, (name, home)


def test_naming_a_model_loads_no_other():
    code = "import sys, parley.models as m; m.models['mlp']; print(*(n for n in sys.modules if 'parley.models.' in n))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "parley.models.dense" in loaded
    assert loaded.isdisjoint({"parley.models.resnet", "parley.models.hugging_face", "parley.models.feature_model"})
