"""Studies: what a file says is what is trained, and every mistake is one sentence."""

import json
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.algorithms import algorithms
from parley.algorithms.averaging.local_update import FedAdam, FedAvg
from parley.algorithms.averaging.server import Adam, Descent, HeavyBall, server_optimizers
from parley.core.errors import InputError
from parley.core.fields import settings_of
from parley.data import Dirichlet, datasets, partitioners
from parley.engine.settings import Evaluation, Faults, Sampling
from parley.models import Mlp, models
from parley.study.data_section import DataSection, loader_settings
from parley.study.toml import SECTIONS, General, Study, load_study, study_from_dict

STUDY = """
seed = 3
rounds = 5

[data]
name = "digits"
clients = 20
test_fraction = 0.2

[data.partition]
name = "dirichlet"
alpha = 0.1

[model]
name = "mlp"
hidden = [64]

[algorithm]
name = "fedavg"
lr = 0.05
epochs = 2

[cohort]
size = 10
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    return path


def table(**changes: object) -> dict[str, object]:
    base: dict[str, object] = {
        "data": {"name": "digits", "clients": 5},
        "model": {"name": "linear"},
        "algorithm": {"name": "fedavg"},
    }
    return base | changes


def test_a_study_is_what_the_file_says(file: Path):
    study = load_study(file)
    assert (study.seed, study.rounds, study.title) == (3, 5, "fedavg-digits")
    assert study.model == Mlp((64,))
    assert study.algorithm == FedAvg(lr=0.05, epochs=2)
    assert study.sampling == Sampling(size=10)
    assert (study.faults, study.evaluation) == (Faults(), Evaluation())
    assert (study.runtime, study.workers, study.checkpoint) == ("auto", None, 5.0)
    assert (study.resolved()["loss"], study.buffers) == ("cross-entropy", "average")
    federation = study.federation()
    assert federation is study.federation()
    assert len(federation) == 20
    expected = datasets["digits"]().split(Dirichlet(0.1), 20, seed=3, test_fraction=0.2)
    np.testing.assert_array_equal(federation.sizes(), expected.sizes())


def test_the_loss_follows_the_data():
    study = study_from_dict(table(data={"name": "diabetes", "clients": 5}))
    assert study.resolved()["loss"] == "mse"
    assert study_from_dict(table(loss="half-squares")).loss == "half-squares"


def test_overrides_are_toml_values(file: Path):
    study = load_study(
        file,
        [
            "algorithm.lr=1",
            "algorithm.options.momentum=0.9",
            "model.hidden=[8, 4]",
            "data.partition.alpha = 2.5",
            "name=two words",
            'algorithm.optimizer="sgd"',
            "algorithm.server.name=adam",
            "faults.dropout=0.25",
        ],
    )
    assert study.algorithm == FedAvg(lr=1.0, epochs=2, options={"momentum": 0.9}, server=Adam())
    assert study.model == Mlp((8, 4))
    assert study.data.partition == Dirichlet(2.5)
    assert study.name == "two words"
    assert study.faults == Faults(dropout=0.25)


def test_a_nested_section_without_a_name_keeps_the_default_class():
    adam = study_from_dict(table(algorithm={"name": "fedadam", "server": {"lr": 0.5}})).algorithm
    assert adam == FedAdam(server=Adam(lr=0.5))
    average = study_from_dict(table(algorithm={"name": "fedavg", "server": {"lr": 0.5}})).algorithm
    assert average == FedAvg(server=Descent(lr=0.5))
    heavy = study_from_dict(table(algorithm={"name": "fedavg", "server": {"name": "heavy-ball"}})).algorithm
    assert heavy == FedAvg(server=HeavyBall())


def test_the_resolved_configuration_is_complete_and_leads_back(file: Path):
    study = load_study(file, ["algorithm.server.name=adam", "evaluate.clients=all"])
    resolved = json.loads(json.dumps(study.resolved()))
    again = study_from_dict(resolved)
    assert again.resolved() == resolved
    assert again.algorithm == study.algorithm
    assert again.model == study.model
    assert again.data.partition == study.data.partition
    assert again.evaluation == study.evaluation
    assert again.fingerprint() == study.fingerprint()
    assert resolved["algorithm"]["server"] == {
        "name": "adam",
        "lr": 0.01,
        "beta1": 0.9,
        "beta2": 0.99,
        "epsilon": 1e-3,
        "bias_correction": False,
    }
    assert resolved["data"]["seed"] == 3
    assert resolved["data"]["central_fraction"] == 0.2
    general = {setting.name for setting in settings_of(General)}
    only_stored = {"data_fingerprint", "plugin_digests", "precision"}  # the last where it is not usual
    always = {"data", "model", "algorithm", *SECTIONS} - {"privacy", "robust", "preprocessing", "init_from"}
    assert set(resolved) == (general - only_stored) | always


@pytest.mark.parametrize("name", list(algorithms))
def test_every_algorithm_survives_the_round_trip(name: str):
    given = table(algorithm={"name": name}, loss="cross-entropy")
    if not algorithms[name]().needs.network:
        del given["model"]
    study = study_from_dict(given)
    resolved = json.loads(json.dumps(study.resolved()))
    assert study_from_dict(resolved).algorithm == study.algorithm


@pytest.mark.parametrize("name", list(models))
def test_every_model_survives_the_round_trip(name: str):
    study = study_from_dict(table(model={"name": name}, loss="cross-entropy"))
    assert study_from_dict(json.loads(json.dumps(study.resolved()))).model == study.model


@pytest.mark.parametrize("name", list(partitioners))
def test_every_partitioner_survives_the_round_trip(name: str):
    data = {"name": "digits", "clients": 5, "partition": {"name": name}}
    study = study_from_dict(table(data=data, loss="cross-entropy"))
    assert study_from_dict(json.loads(json.dumps(study.resolved()))).data.partition == study.data.partition


@pytest.mark.parametrize("name", list(datasets))
def test_every_data_set_has_checkable_options(name: str):
    options = {setting.name: setting.default for setting in loader_settings(name)}
    study = study_from_dict(table(data={"name": name, "clients": 5} | options, loss="mse"))
    assert study.resolved()["data"] | options == study.resolved()["data"]


def test_the_fingerprint_knows_what_changes_the_numbers(file: Path):
    first = load_study(file).fingerprint()
    for same in ("name=other", "rounds=6", "runtime.name=inline", "runtime.workers=1", "store.checkpoint=1"):
        assert load_study(file, ["loss=cross-entropy", same]).fingerprint() == first, same
    for other in (
        "seed=4",
        "algorithm.lr=0.06",
        "data.partition.alpha=0.2",
        "cohort.size=9",
        "faults.dropout=0.1",
        "data.seed=4",
        "model.hidden=[65]",
        "buffers=local",
        "data.central_fraction=0.3",
    ):
        assert load_study(file, ["loss=cross-entropy", other]).fingerprint() != first, other


def test_a_folder_is_looked_for_beside_the_study(tmp_path: Path):
    clients = tmp_path / "clients"
    clients.mkdir()
    for number in range(3):
        rows = "\n".join(f"{row},{row + number},{row % 2}" for row in range(10))
        (clients / f"site{number}.csv").write_text(f"a,b,label\n{rows}\n")
    file = tmp_path / "study.toml"
    file.write_text(
        '[data]\nfolder = "clients"\ntarget = "label"\ntest_fraction = 0.3\n[model]\nname = "linear"\n'
        '[algorithm]\nname = "fedavg"\n'
    )
    study = load_study(file)
    assert study.title == "fedavg-clients"
    assert study.federation().ids == ("site0", "site1", "site2")
    assert study.federation().size("site1") == 7
    again = study_from_dict(json.loads(json.dumps(study.resolved())), "/")
    assert again.federation().ids == study.federation().ids
    assert again.fingerprint() == study.fingerprint()
    with pytest.raises(InputError, match=r"^\[data\] with a folder has no setting 'clients'"):
        load_study(file, ["data.clients=2"])


MISTAKES = [
    ("algoritm.lr=1", "a study has no section or setting 'algoritm': did you mean 'algorithm'?"),
    ("algorithm.lr=fast", "algorithm.lr must be a number, not 'fast'."),
    ("algorithm.lr=-1", "[algorithm] the local step size lr must be at least 0, not -1.0."),
    ("algorithm.lrr=1", "algorithm 'fedavg' has no setting 'lrr': did you mean 'lr'?"),
    ("algorithm.name=fedavgg", "unknown algorithm 'fedavgg': did you mean 'fedavg'?"),
    ("algorithm=fedavg", "algorithm must be a section, not 'fedavg': write [algorithm] and its settings below it."),
    ("algorithm.lr.x=1", "'algorithm.lr.x=1' cannot be set: algorithm.lr is not a section."),
    ("algorithm.batch=true", "algorithm.batch must be a whole number, not true."),
    ("evaluate=3", "evaluate must be a section, not 3: write [evaluate] and its settings below it."),
    ("algorithm.server.name=adm", "unknown server optimizer 'adm': did you mean 'adam'?"),
    ("algorithm.server.momentum=0.5", "server optimizer 'sgd' has no setting 'momentum': choose one of lr."),
    ("algorithm.server.lr=0", "[algorithm.server] the server's learning rate lr must be positive, not 0.0."),
    ("data.clients=0", "data.clients must be at least 1, not 0."),
    ("data.clients=5000", "[data] 1438 samples cannot give 5000 clients 1 each; use fewer clients."),
    ("data.name=digts", "unknown data set 'digts': did you mean 'digits'?"),
    ("data.test_fraction=1", "data.test_fraction must be below 1.0, not 1."),
    ("data.central_fraction=-1", "data.central_fraction must be at least 0.0, not -1."),
    ("data.folder=x", "[data] needs one of name, a data set that Parley knows, folder, one file per client, and file, "
     "one table with a column of clients."),
    ("data.partition.name=dirichelt", "unknown partitioner 'dirichelt': did you mean 'dirichlet'?"),
    ("data.partition.alpha=0", "[data.partition] Dirichlet needs alpha above 0, not 0.0."),
    ("model.hidden=[1.5]", "model.hidden must be a list of whole numbers, not [1.5]."),
    ("model.hidden=[]", "[model] model 'mlp' needs at least one hidden layer; use 'linear' for none."),
    ("rounds=0", "rounds must be at least 1, not 0."),
    ("rounds=1.5", "rounds must be a whole number, not 1.5."),
    ("rounds={}", "rounds must be a whole number, not a section."),
    ("seed=2020-01-01", "seed must be a whole number, not 2020-01-01."),
    ("buffers=mean", "buffers must be 'average', 'local' or 'refuse', not 'mean'."),
    ("loss=cross-entrop", "unknown loss 'cross-entrop': did you mean 'cross-entropy'?"),
    ("cohort.size=21", "cohort.size is 21, but the federation has only 20 clients; lower it."),
    ("cohort.size=0", "cohort.size must be at least 1, not 0."),
    ("faults.dropout=2", "faults.dropout must lie in [0, 1], not 2.0."),
    ("faults.dropuot=0.1", "[faults] has no setting 'dropuot': did you mean 'dropout'?"),
    ("evaluate.clients=some", "evaluate.clients must be a whole number, 'auto', 'none' or 'all', not 'some'."),
    ("runtime.name=pol", "unknown runtime 'pol': did you mean 'pool'?"),
    ("runtime.workers=0", "runtime.workers must be at least 1, not 0."),
    ("store.checkpoint=-1", "store.checkpoint must be at least 0.0, not -1."),
    ("rounds", "'rounds' is not of the form section.setting=value, such as algorithm.lr=0.05."),
]  # fmt: skip


@pytest.mark.parametrize(("override", "sentence"), MISTAKES)
def test_every_mistake_is_one_sentence(file: Path, override: str, sentence: str):
    with pytest.raises(InputError) as caught:
        load_study(file, [override]).federation()
    assert str(caught.value) == sentence


_PLACES = [
    "rounds", "seed", "loss", "name", "data", "data.name", "data.clients", "data.partition", "data.partition.name",
    "data.partition.alpha", "model", "model.hidden", "algorithm", "algorithm.name", "algorithm.lr", "algorithm.theta",
    "algorithm.server", "algorithm.server.name", "algorithm.options", "cohort.size", "faults.patience", "evaluate",
    "evaluate.clients", "runtime.name", "runtime.workers", "store.checkpoint", "extra", "algorithm.extra",
]  # fmt: skip
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("afd-. 'é", max_size=5) | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "lr", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(_PLACES), _values)
def test_any_value_anywhere_is_taken_or_refused_in_one_line(place: str, value: object):
    study = tomllib.loads(STUDY) | {"loss": "cross-entropy"}
    *sections, key = place.split(".")
    table = study
    for section in sections:
        table = table.setdefault(section, {})
    table[key] = value
    try:
        made = study_from_dict(study)
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 (most values are refused, some are fine)
    else:
        assert study_from_dict(json.loads(json.dumps(made.resolved()))).fingerprint() == made.fingerprint()


def test_what_is_missing_is_named(file: Path, tmp_path: Path):
    for section in ("data", "model", "algorithm"):
        rest = {key: value for key, value in table().items() if key != section}
        with pytest.raises(InputError, match=rf"the study has no section \[{section}\]"):
            study_from_dict(rest)
    with pytest.raises(InputError, match=r"model\.name is missing: choose one of"):
        study_from_dict(table(model={}))
    with pytest.raises(InputError, match="there is no study file"):
        load_study(tmp_path / "none.toml")
    with pytest.raises(InputError, match="cannot be read"):
        load_study(tmp_path)


def test_a_file_that_is_not_toml(tmp_path: Path):
    file = tmp_path / "study.toml"
    file.write_text("seed = 0\nrounds = = 3\n")
    with pytest.raises(InputError, match=r"is not valid TOML: .*line 2, column 10"):
        load_study(file)
    file.write_bytes(b"name = '\xff\xfe'")
    with pytest.raises(InputError, match="not UTF-8"):
        load_study(file)


def test_every_setting_is_documented():
    classes = [General, DataSection, *SECTIONS.values()]
    classes += [
        registry[name] for registry in (algorithms, models, partitioners, server_optimizers) for name in registry
    ]
    for cls in classes:
        for setting in settings_of(cls):
            assert setting.doc or setting.name == "options", f"{cls.__name__}.{setting.name}"


def test_a_users_own_algorithm_is_configured_like_the_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(algorithms, "_items", dict(algorithms._items))

    @algorithms("halved")
    @dataclass(frozen=True)
    class Halved(FedAvg):
        factor: float = 0.5
        """How much."""

    study = study_from_dict(table(algorithm={"name": "halved", "factor": 0.25}))
    assert study.algorithm == Halved(factor=0.25)
    assert study.resolved()["algorithm"]["factor"] == 0.25


def test_a_study_is_frozen():
    assert all(field.init for field in fields(Study))
    with pytest.raises(AttributeError):
        study_from_dict(table()).seed = 3  # type: ignore[misc]
