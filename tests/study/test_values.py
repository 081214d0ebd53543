"""No setting takes a value that it cannot mean: every setting of everything that can be chosen is tried."""

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import parley as pl
from parley.algorithms import algorithms
from parley.algorithms.averaging.server import server_optimizers
from parley.core.checks import check_fields, check_value, fits, unsound
from parley.core.errors import InputError
from parley.core.fields import Setting, settings_of
from parley.core.registry import Registry
from parley.data import datasets, partitioners
from parley.engine.settings import Evaluation, Faults, Sampling
from parley.models import feature_maps, models
from parley.study.data_section import loader_settings
from parley.study.study import SECTIONS, General
from parley.study.toml import study_from_dict
from parley.theory.kernel.registry import kernels
from parley.training.schedules import schedules

BASE = {
    "loss": "mse",
    "data": {"name": "digits", "clients": 5},
    "model": {"name": "linear"},
    "algorithm": {"name": "fedavg"},
}
REGISTRIES: dict[str, tuple[Registry[Any], dict[str, Any]]] = {
    "algorithm": (algorithms, {}),
    "model": (models, {}),
    "data.partition": (partitioners, {}),
    "algorithm.server": (server_optimizers, {}),
    "algorithm.schedule": (schedules, {"name": "fedals"}),
    "algorithm.kernel": (kernels, {"name": "kernel-fedavg"}),
    "model.map": (feature_maps, {"name": "features"}),
}


def number(hint: Any) -> bool:
    """Whether a setting may be a number."""
    return hint in (int, float) or any(number(inner) for inner in get_args(hint) if inner is not ...)


def table(place: str, values: dict[str, Any], around: dict[str, Any]) -> dict[str, Any]:
    made = json.loads(json.dumps(BASE))
    *above, last = place.split(".") if place else [""]
    inner = made
    for key in above:
        inner = inner.setdefault(key, {})
        inner |= around
    if place:
        inner[last] = inner.get(last, {}) | values if place in SECTIONS else values
    else:
        made |= values
    return made


def every() -> Iterator[tuple[str, str, Setting, dict[str, Any]]]:
    """(section, name of the choice, setting, what must stand around it) of everything a study can set."""
    for place, (registry, around) in REGISTRIES.items():
        for name in registry:
            yield from ((place, name, setting, around) for setting in settings_of(registry[name]))
    for place, cls in SECTIONS.items():
        yield from ((place, "", setting, {}) for setting in settings_of(cls))
    yield from (("", "", setting, {}) for setting in settings_of(General))
    for name in datasets:
        yield from (("data", name, setting, {}) for setting in loader_settings(name))


EVERY = list(every())
NUMBERS = [one for one in EVERY if number(one[2].hint)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_no_number_is_nan_or_infinite(value: float):
    assert len(NUMBERS) > 150
    for place, name, setting, around in NUMBERS:
        listed = not fits(setting.hint, 1.0) and not fits(setting.hint, 1)
        values = {setting.name: [value] if listed else value} | ({"name": name} if name else {})
        with pytest.raises(InputError, match="must be a finite number"):
            study_from_dict(table(place, values, around))


@pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
def test_constructors_refuse_them_too(value: float):
    tried = 0
    classes = [registry[name] for registry, _ in REGISTRIES.values() for name in registry]
    for cls in [*classes, Sampling, Faults, Evaluation]:
        for setting in settings_of(cls):
            if number(setting.hint) and not setting.required:
                listed = not fits(setting.hint, 1.0) and not fits(setting.hint, 1)
                with pytest.raises(InputError, match=r"must be a finite number, not (nan|inf)"):
                    cls(**{setting.name: (value,) if listed else value})
                tried += 1
    assert tried > 100


@pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
def test_where_a_text_belongs_they_are_no_text(value: float):
    with pytest.raises(InputError, match=f"^name must be a string, not {value}"):
        study_from_dict(table("", {"name": value}, {}))
    with pytest.raises(InputError, match=f"must be a string, not {value}"):
        check_value(str | None, value, "name")


NASTY: list[Any] = [
    10**5000, -(10**30), 2**63, "\0", "x" * 100_000, [], {}, {"name": {}}, [[[[[1]]]]], True, -1, 2.5, "../../x",
    "\x1b[2J", ["\x1b[2J"], {"name": "\ud800"}, 1e308, 5e-324, "nan", "", [None], {"": 1}, {"a": {"b": {"c": []}}},
]  # fmt: skip


def one_sentence(study: dict[str, Any]) -> None:
    """It is taken, or refused in one sentence that is not endless."""
    try:
        study_from_dict(study)
    except InputError as error:
        text = str(error)
        assert "\n" not in text
        assert len(text) < 1500, text[:200]


@pytest.mark.parametrize("value", NASTY, ids=range(len(NASTY)))
def test_nasty_values_of_some_settings(value: Any):
    for place, name, setting, around in EVERY[::7]:
        one_sentence(table(place, {setting.name: value} | ({"name": name} if name else {}), around))


@pytest.mark.slow
@pytest.mark.parametrize("value", NASTY, ids=range(len(NASTY)))
def test_nasty_values_of_all_settings(value: Any):
    for place, name, setting, around in EVERY:
        one_sentence(table(place, {setting.name: value} | ({"name": name} if name else {}), around))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: pl.FedAvg(epochs=2.5), "FedAvg: epochs must be a whole number, not 2.5"),
        (lambda: pl.FedAvg(lr="fast"), "FedAvg: lr must be a number, not 'fast'"),
        (lambda: pl.FedAvg(lr=True), "FedAvg: lr must be a number, not true"),
        (lambda: pl.LocalUpdate(form="both"), "LocalUpdate: form must be 'gradients' or 'delta', not 'both'"),
        (lambda: pl.FedAvg(server="adam"), "FedAvg: server must be a section, not 'adam'"),
        (lambda: pl.Adam(lr=math.nan), "Adam: lr must be a finite number, not nan"),
        (lambda: pl.models.mlp(2.5), "Mlp: hidden must be a list of whole numbers"),
        (lambda: pl.Dirichlet(math.inf), "Dirichlet: alpha must be a finite number, not inf"),
        (lambda: pl.Sampling(size=2.5), "cohort.size must be a whole number, not 2.5"),
        (lambda: pl.Faults(straggling=math.inf), "faults.straggling must be a finite number, not inf"),
        (lambda: pl.Faults(deadline=math.nan), "faults.deadline must be a finite number, not nan"),
        (lambda: pl.Evaluation(target=math.nan), "evaluate.target must be a finite number, not nan"),
        (lambda: pl.Evaluation(patience=0), "evaluate.patience must be at least 1, not 0"),
        (lambda: pl.FedAvg(options={"momentum": math.nan}), "FedAvg: options must be a finite number, not nan"),
    ],
)  # fmt: skip
def test_types_are_checked_in_python(make: Any, sentence: str):
    with pytest.raises(InputError) as caught:
        make()
    assert str(caught.value).startswith(sentence)


def test_what_means_the_same_is_taken():
    assert pl.FedAvg(epochs=np.int64(2), lr=np.float32(0.5)).epochs == 2
    assert pl.FedAvg(lr=1).lr == 1
    assert pl.models.Mlp([3, 4]).hidden == (3, 4)
    with pytest.raises(TypeError, match="unexpected keyword argument 'lrr'"):
        pl.FedAvg(lrr=1)


def test_a_subclass_of_ones_own_is_checked_when_it_trains():
    @dataclasses.dataclass(frozen=True)
    class Mine(pl.FedAvg):
        factor: float = 0.5

    with pytest.raises(InputError, match=r"algorithm\.factor must be a finite number"):
        check_fields(Mine(factor=math.nan), "algorithm")


def test_what_is_unsound():
    assert unsound(2**63 - 1) is None
    assert unsound(2**63) is not None
    assert unsound({"a": [1, {"b": math.nan}]}) == "must be a finite number, not nan"
    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    assert unsound(deep) == "is nested too deeply"
    assert unsound(math.inf, infinite=True) is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("seed = " + "9" * 5000, "a number has too many digits"),
        ("name = " + "[" * 3000 + "]" * 3000, "nested too deeply"),
        ("name = " + "[" * 500 + "]" * 500, "nested too deeply"),
        ("seed = " + "9" * 4000, "seed must be a whole number below 2^63, not a number of about 4000 digits"),
    ],
)
def test_files_that_would_break_a_parser(tmp_path: Path, text: str, sentence: str):
    file = tmp_path / "study.toml"
    file.write_text(
        text + '\n[data]\nname = "iris"\nclients = 2\n[model]\nname = "linear"\n[algorithm]\nname = "fedavg"\n'
    )
    with pytest.raises(InputError) as caught:
        pl.load_study(file)
    assert sentence in str(caught.value)
    with pytest.raises(InputError):
        pl.load_study(file, [text.replace(" ", "")])


FILE = """
seed = 3
rounds = 5
[data]
name = "digits"
clients = 20
[data.partition]
name = "dirichlet"
alpha = 0.1
[model]
name = "mlp"
hidden = [64]
[algorithm]
name = "fedavg"
lr = 0.05
[channels]
up = ["top-k(0.01)"]
"""


def mutilated(text: str, seed: int) -> str:
    """The text with pieces cut out, doubled, exchanged and replaced by rubbish."""
    random = np.random.default_rng(seed)
    rubbish = [
        "[",
        "]",
        "=",
        '"',
        "\n",
        "nan",
        "-",
        "1e999",
        "\x00",
        "é",
        "{",
        "'''",
        "[[",
        ".",
        "true",
        "9" * 30,
        "\\u0000",
    ]
    for _ in range(int(random.integers(1, 5))):
        a, b = sorted(random.integers(0, len(text) + 1, 2))
        b = min(b, a + 12)
        put = [rubbish[random.integers(len(rubbish))], "", text[a:b] * 2][random.integers(3)]
        text = text[:a] + put + text[b:]
    return text


def one_sentence_for_a_file(path: Path, seed: int) -> None:
    path.write_text(mutilated(FILE, seed), encoding="utf-8")
    try:
        pl.load_study(path)
    except InputError as error:
        text = str(error)
        assert "\n" not in text, seed
        assert len(text) < 1500, seed


def test_mutilated_files_are_taken_or_refused_in_one_sentence(tmp_path: Path):
    for seed in range(100):
        one_sentence_for_a_file(tmp_path / "study.toml", seed)


@pytest.mark.slow
def test_many_mutilated_files(tmp_path: Path):
    for seed in range(100, 3000):
        one_sentence_for_a_file(tmp_path / "study.toml", seed)


@pytest.mark.parametrize(
    ("up", "sentence"),
    [
        ("top-k", "channels.up.share is missing"),
        ("top-k(2)", "top-k sends a share of the entries between 0 and 1"),
        ("top-k(nan)", "must be a finite number"),
        ("top-k(0.1, true, 3)", "channel 'top-k' has 2 settings, not 3"),
        ("top-j(0.1)", "unknown channel 'top-j': did you mean 'top-k'"),
        ("top-k(", "is not of the form"),
        ("top-k([)", "cannot be read"),
    ],
)
def test_channels_that_are_none(up: str, sentence: str):
    with pytest.raises(InputError) as caught:
        study_from_dict(BASE | {"channels": {"up": [up]}})
    assert sentence in str(caught.value)


def test_channels_survive_the_round_trip():
    study = study_from_dict(BASE | {"channels": {"up": ["top-k(0.01)", "clip(1.0)"]}})
    written = study.resolved()["channels"]["up"]
    assert written[0] == "top-k(0.01, true)"
    again = study_from_dict(study.resolved())
    assert again.channels == study.channels
    assert again.fingerprint() == study.fingerprint()
    assert study_from_dict(BASE).fingerprint() != study.fingerprint()
