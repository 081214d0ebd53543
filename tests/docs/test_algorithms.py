"""The pages of the algorithms say what the code does, and their facts are so."""

from __future__ import annotations

import runpy
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import parley as pl
from parley.algorithms import algorithms
from parley.algorithms.exchange import disclosed
from parley.conformance import check_rule
from parley.models.feature_model import RandomFourierFeatures
from parley_papers.catalogue import studies

DOCS = Path(__file__).parents[2] / "docs"
FACTS = tomllib.loads((DOCS / "algorithms.toml").read_text(encoding="utf-8"))
OURS = [name for name in algorithms if algorithms[name].__module__.startswith("parley.")]


def test_the_pages_are_in_step_with_the_code():
    made = runpy.run_path(str(DOCS / "make_algorithms.py"))["pages"]()
    for path, text in made.items():
        assert (DOCS / path).is_file(), f"{path} is missing: run python docs/make_algorithms.py"
        assert (DOCS / path).read_text(encoding="utf-8") == text, f"{path}: run python docs/make_algorithms.py"
    assert {f"algorithms/{page.name}" for page in (DOCS / "algorithms").glob("*.md")} == {*made} - {"algorithms.md"}


@pytest.mark.parametrize("name", OURS)
def test_every_algorithm_has_its_facts(name: str):
    facts = FACTS.get(name)
    assert facts is not None, f"add [{name}] to docs/algorithms.toml"
    assert set(facts) == {"when", "settles", "traffic", "remembers", "studies"}
    assert set(facts["studies"]) <= set(studies)
    method = algorithms[name]()
    if "inputs" in disclosed(method.exchanges()):
        assert "SENDS THE DATA" in facts["when"]


def test_nothing_is_said_of_algorithms_that_do_not_exist():
    assert set(FACTS) <= set(OURS)


@pytest.fixture(scope="module")
def traffic() -> Callable[[str], float]:
    """Bytes that are sent and received in the second round, FedAvg's with the same model and clients being 1."""
    digits = pl.data.digits().split(pl.Dirichlet(0.5), clients=3, seed=0, public_fraction=0.05)
    numbers = pl.data.diabetes().split("iid", clients=3, seed=0)
    features = pl.models.features(RandomFourierFeatures(300, lengthscale=4.0))

    @cache
    def sent(name: str, regression: bool) -> float:
        known = algorithms[name].__dataclass_fields__
        quick = {"lr": 0.05, "student_epochs": 1, "steps": 1}
        method = algorithms[name](**{key: value for key, value in quick.items() if key in known})
        data, model = (numbers, features) if regression else (digits, pl.models.mlp(64))
        last = pl.train(method, data, model=model, rounds=2).records[-1].metrics
        return float(last["up/bytes"].value + last["down/bytes"].value)

    def ratio(name: str) -> float:
        regression = name.startswith("feature-")
        return sent(name, regression) / sent("fedavg", regression)

    return ratio


@pytest.mark.parametrize("name", [name for name in FACTS if FACTS[name]["traffic"] in ("0", "1", "2")])
def test_the_traffic_is_as_stated(name: str, traffic: Callable[[str], float]):
    assert traffic(name) == pytest.approx(float(FACTS[name]["traffic"]), abs=0.04)


def test_the_rule_on_the_conformance_page_passes():
    text = (DOCS / "conformance.md").read_text(encoding="utf-8")
    code = text.partition("## Your own update rule")[2].partition("```python\n")[2].partition("```")[0]
    names: dict[str, object] = {}
    exec(code, names)  # the page's own example
    assert all(check.passed for check in check_rule(names["MyScaffold"]()))  # type: ignore[operator]
