"""Other libraries' trainers: the problem they get, the protocol, the verdicts, and the causes that are stated."""

from __future__ import annotations

import itertools
import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from parley.cli.main import main
from parley.core.errors import InputError
from parley.theory.surrogate import All
from parley.theory.theta import Array
from parley_benchmarks.environments import PEERS, installed
from parley_benchmarks.peers import LIBRARIES, METHODS, SETTINGS, TOLERANCE, Library, fill, judge, planned_peers, record
from parley_benchmarks.peers.causes import CAUSES, Cause
from parley_benchmarks.peers.roster import Offer
from parley_benchmarks.peers.run import ADAPTERS, Entry, ask
from parley_benchmarks.peers.setting import EQUAL, LR, UNEQUAL, averaging_point, problem, question, weighted
from parley_benchmarks.peers.verdict import ROUNDS

DOCS = Path(__file__).parents[2] / "docs"
FAKE = Library("fake", "Fake", "numpy", {"fedavg": Offer()})


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_goals_are_the_surrogates_minimisers(alpha: float):
    clients = weighted(EQUAL, "samples")
    assert averaging_point(clients, EQUAL.steps, alpha) == pytest.approx(
        clients.minimiser(LR, All(3), alpha), abs=1e-12
    )


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_methods_with_different_goals_are_told_apart(setting):
    names = ("fedavg", "fedprox", "scaffold") if setting is EQUAL else ("fedavg", "fedprox", "fednova", "scaffold")
    points = [METHODS[name].point(setting, "samples") for name in names]
    points += [METHODS[name].point(setting, "clients") for name in names] if setting is UNEQUAL else []
    for one, other in itertools.combinations(points, 2):
        assert np.linalg.norm(one - other) > 30 * TOLERANCE * np.linalg.norm(problem().start - one)


def test_the_clients_loss_is_the_quadratic_on_every_batch():
    asked = question(METHODS["fedavg"], UNEQUAL, "samples", "", [1])
    x = torch.tensor(np.random.default_rng(0).standard_normal(5), requires_grad=True)
    clients = problem().clients
    for i, n in enumerate(asked["sizes"]):
        rows, y = (torch.tensor(asked[key][i], dtype=torch.float64) for key in ("rows", "targets"))
        for batch in (1, n):
            loss = torch.nn.functional.mse_loss(rows.expand(batch, -1, -1) @ x, y.expand(batch, -1))
            (slope,) = torch.autograd.grad(loss, x)
            assert slope.numpy() == pytest.approx(clients.A[i] @ (x.detach().numpy() - clients.c[i]), abs=1e-12)


def fake(folder: Path, code: str) -> Path:
    """An adapter called fake, in a folder of its own."""
    adapters = folder / "adapters"
    adapters.mkdir()
    (adapters / "__init__.py").touch()
    (adapters / "protocol.py").write_text((ADAPTERS / "adapters" / "protocol.py").read_text())
    (adapters / "fake.py").write_text(code)
    return folder


TRAINER = """
import torch
from .protocol import answer, private_output, weights_of

def train(given, rounds):
    print("chatter that must not reach the answer")
    common = given.model()
    for _ in range(rounds):
        total = 0
        for i, n in enumerate(given.sizes):
            model = given.model()
            model.load_state_dict(common.state_dict())
            optimizer = torch.optim.SGD(model.parameters(), lr=given.lr)
            x, y = given.client(i)
            for _ in range(given.epochs):
                for first in range(0, n, given.batch):
                    optimizer.zero_grad()
                    torch.nn.MSELoss()(model(x[first:first + given.batch]), y[first:first + given.batch]).backward()
                    optimizer.step()
            total = total + n / sum(given.sizes) * model.weight.detach()
        common.weight.data = total
    return weights_of(common)

answer(private_output(), ("numpy",), train)
"""


def test_a_library_that_does_as_the_paper_reaches_the_point(tmp_path: Path):
    plan = Entry(FAKE, METHODS["fedavg"], UNEQUAL, "", FAKE.offers["fedavg"])
    row = fill(plan, lambda library: Path(sys.executable), fake(tmp_path, TRAINER))
    assert (row.verdict, row.version) == ("reaches it", np.__version__)
    assert row.distance is not None
    assert row.distance < 1e-10
    assert row.command == "parley conformance fedavg --peer fake"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise ImportError('no module named nothing')", "ImportError: no module named nothing"),
        ("import sys; sys.exit(3)", "it ended with code 3 and no answer"),
        ('print(\'{"ok": false, "error": "ValueError: too much"}\')', "ValueError: too much"),
    ],
)
def test_a_library_that_fails_is_told_in_one_line(tmp_path: Path, code: str, said: str):
    plan = Entry(FAKE, METHODS["fedavg"], EQUAL, "", FAKE.offers["fedavg"])
    row = fill(plan, lambda library: Path(sys.executable), fake(tmp_path, code))
    assert (row.verdict, row.error, row.distance) == ("did not run", said, None)


def test_a_library_that_cannot_be_installed_did_not_run():
    def refuse(library: Library) -> Path:
        raise InputError("fake could not be installed; read its log.")

    row = fill(Entry(FAKE, METHODS["fedavg"], EQUAL, "", FAKE.offers["fedavg"]), refuse)
    assert (row.verdict, row.error) == ("did not run", "fake could not be installed; read its log.")
    assert fill(Entry(FAKE, METHODS["feddyn"], EQUAL), refuse).verdict == "not offered"


def test_the_page_shows_rows_and_causes(tmp_path: Path):
    made = runpy.run_path(str(DOCS / "make_peers.py"))
    file = tmp_path / "peers.json"
    assert "No run has been recorded" in made["section"](file)
    cause = CAUSES[0]
    method = METHODS[cause.method]
    points = [cause.predicts(method, EQUAL, "clients", rounds).tolist() for rounds in ROUNDS]
    reached = [method.point(EQUAL, "clients").tolist()] * 3
    rows = [
        judge(cause.library, cause.version, method, cause.variant, EQUAL, "clients", points),
        judge("fluke", "0.8.1", method, "", EQUAL, "clients", reached),
    ]
    file.write_text(json.dumps(record(rows)))
    shown = made["section"](file)
    assert "| pfl-research (`pfl`) |  |  | option I: 3e-02 **settles elsewhere**, 0.02" in shown
    assert "| fluke (`fluke`) |  |  | 0e+00 |" in shown
    assert "- **pfl-research 0.6.0, SCAFFOLD, option I**: the control variates" in shown


def verdict_on(last: Array, before: Array | None = None, method: str = "scaffold") -> tuple[str, str]:
    points = [problem().start.tolist(), (last if before is None else before).tolist(), last.tolist()]
    row = judge("fake", "1", METHODS[method], "", EQUAL, "clients", points)
    return row.verdict, row.where


def test_verdicts():
    goal, fedavg = (METHODS[name].point(EQUAL, "clients") for name in ("scaffold", "fedavg"))
    aside = np.ones(5) / np.sqrt(5) * np.linalg.norm(problem().start - goal)
    assert verdict_on(goal + 0.9 * TOLERANCE * aside) == ("reaches it", "")
    assert verdict_on(goal + 1.1 * TOLERANCE * aside)[0] == "settles elsewhere"
    assert verdict_on(fedavg) == ("settles elsewhere", "FedAvg's point, clients weighted by samples")
    assert verdict_on(goal + 0.1 * aside, goal + 0.2 * aside) == (
        "does not settle",
        "moved by 1.0e-01 in the last 75 rounds",
    )
    assert "0.100 from the optimum (FedAvg's point: 0.01" in verdict_on(goal + 0.1 * aside)[1]
    for bad in (np.nan, np.inf, 1e200):
        assert verdict_on(np.full(5, bad))[0] == "diverges"


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: f"{cause.library} {cause.method} {cause.variant}".strip())
def test_a_stated_cause_is_a_deviation_and_is_recognised(cause: Cause):
    setting, method = UNEQUAL, METHODS[cause.method]
    offer = LIBRARIES[cause.library].offers[cause.method]
    assert cause.variant in offer.variants
    weights = offer.weights or method.weights
    points = [cause.predicts(method, setting, weights, rounds).tolist() for rounds in ROUNDS]
    row = judge(cause.library, cause.version, method, cause.variant, setting, weights, points)
    assert row.verdict in ("settles elsewhere", "diverges")
    assert row.explained == 0.0
    assert cause.file in row.cause
    other = judge(cause.library, "another version", method, cause.variant, setting, weights, points)
    assert (other.cause, other.explained) == ("", None)


def test_the_plan_names_every_library_and_method():
    plans = planned_peers()
    assert {plan.library.name for plan in plans} == {*PEERS, "parley"} - {"jax"}
    assert {(plan.library.name, plan.method.name) for plan in plans} == set(itertools.product(LIBRARIES, METHODS))
    assert {plan.variant for plan in planned_peers("scaffold", ["pfl"])} == {"option I", "option II"}
    with pytest.raises(InputError, match="unknown library 'pf1'"):
        planned_peers(None, ["pf1"])
    with pytest.raises(InputError, match="asked for fedavg, fedprox"):
        planned_peers("fedals")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("scaffold --peer pf1", "unknown library"),
        ("--peers --runtime inline", "leave out --runtime"),
        ("--write rows.json", "--write goes with --peers"),
        ("--peers --write nowhere/rows.json", "there is no folder"),
    ],
)
def test_bad_input_is_refused(words: str, said: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["conformance", *words.split()])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


needs_record = pytest.mark.skipif(not (DOCS / "peers.json").is_file(), reason="no run has been recorded")


@needs_record
def test_what_was_recorded_follows_from_the_plan():
    read = json.loads((DOCS / "peers.json").read_text(encoding="utf-8"))
    key = ("library", "method", "variant")
    planned = [(p.library.name, p.method.name, p.variant, p.setting.name if p.offer else "") for p in planned_peers()]
    assert [(*(row[k] for k in key), row["setting"]) for row in read["rows"]] == planned
    assert read["rounds"] == list(ROUNDS)
    assert all(row["verdict"] == "reaches it" for row in read["rows"] if row["library"] == "parley")
    # Nothing is said of why without arithmetic that leads to the same numbers.
    assert all(row["explained"] <= TOLERANCE for row in read["rows"] if row["cause"])


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_parley_by_the_same_protocol(method: str):
    for plan in planned_peers(method, ["parley"]):
        assert fill(plan, lambda library: Path(sys.executable)).verdict == "reaches it"


@pytest.mark.slow
@needs_record
@pytest.mark.parametrize("name", sorted({*PEERS} - {"jax"}))
def test_libraries_do_what_the_page_says(name: str):
    python = installed(name)
    if python is None:
        pytest.skip(f"{name} is not installed; parley conformance --peer {name} installs it")
    read = json.loads((DOCS / "peers.json").read_text(encoding="utf-8"))
    before = [row for row in read["rows"] if row["library"] == name]
    now = [fill(plan, lambda library: python).as_json() for plan in planned_peers(None, [name])]
    assert [(row["method"], row["variant"], row["setting"], row["verdict"]) for row in now] == [
        (row["method"], row["variant"], row["setting"], row["verdict"]) for row in before
    ]


def test_an_adapter_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("parley_benchmarks.peers.run.PATIENCE", 0.5)
    answer = ask(Path(sys.executable), "fake", {}, fake(tmp_path, "import time; time.sleep(60)"))
    assert answer == {"ok": False, "error": "no answer within 0.5 s"}
    assert replace(FAKE, module="other").adapter == "other"
