"""Questions with which a server read single rows off approved studies: now a node refuses them or tells nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import parley as pl
from parley.analyse.digits import decoded
from parley.analyse.glm import GLM
from parley.analyse.regression import Rows
from parley.core.message import Message
from parley.core.wire import decode, encode
from parley.deploy.answering import answer, invitation, work
from parley.deploy.consent import verdict
from parley.deploy.disclosed import disclosed
from parley.deploy.node_data import info_to_json, load_data
from parley.deploy.node_folder import NodeFolder
from parley.deploy.proposal import Proposal
from parley.deploy.submissions import submitted_study
from parley.runtimes.frame import unpack
from parley.runtimes.node import Envelope, EvaluationEnvelope, call_frame, evaluation_frame
from parley.statistics.exact_sums import carried, exact_value
from parley.statistics.run import statistics_table
from tests.deploy.conftest import ALL, key_of

Asker = Callable[..., Message | str]
RANGES = [[0.0, 120.0], [0.0, 8.0]]


class Place:
    """A node with two columns, one of which says who is who."""

    def __init__(self, folder: Path, rows: int = 60) -> None:
        random = np.random.default_rng(0)
        self.x = np.round(random.normal(size=(rows, 2)) * [12, 0.5] + [60, 4], 3)
        self.y = (self.x[:, 0] + random.normal(size=rows) * 12 > 60).astype(int)
        np.savez(folder / "a.npz", x=self.x, y=self.y)
        self.node = NodeFolder.create(folder / "a", "a")
        self.node.point(data=str(folder / "a.npz"))
        self.node.set(test_fraction=0.0)
        (self.node.path / "policy.toml").write_text(ALL)

    def study(self, table: dict[str, Any], disclose: bool = False) -> Proposal:
        proposal = Proposal.of(submitted_study({"table": table, "base": "."}))
        if disclose:
            self.node.keep(proposal)
            self.node.decide(proposal.hash, "approved", disclose=True)
        return proposal

    def asker(self, proposal: Proposal, run: str = "r") -> Asker:
        """Asks a question; a reply, or why there is none, from the owner's log."""
        head, _ = unpack(answer(self.node, invitation("a", run, proposal)))
        assert head["kind"] == "enrolled", head
        own = load_data(self.node.settings, self.node.path)
        common = json.dumps(info_to_json(own.info)).encode()

        def ask(
            asked: str, message: Message, number: int = 1, exchange: int = 0, version: str | None = None
        ) -> Message | str:
            key = key_of(proposal.rebuilt(self.node.modules).seed, number)
            letter = Envelope("x", 1, number, exchange, asked, version, number - 1, key, "a", False)
            frame = work("a", run, proposal.hash, 3, common, call_frame(letter, encode(message)))
            head, parts = unpack(answer(self.node, frame))
            if head["kind"] == "reply":
                return decode(parts[0])
            line = list(self.node.logged())[-1]
            return str(line.get("why", line["answered"]))

        return ask


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_statistics_are_asked_in_one_round(place: Place):
    """Edges on both sides of one value, in two rounds, told of that one."""
    table = statistics_table({}, pl.FederatedStatistics(bins=2))
    ask = place.asker(place.study(table | {"rounds": 6}))
    value, told = np.sort(place.x[:, 0])[30], []
    for number, cut in enumerate((value - 1e-4, value + 1e-4), 1):
        edges = torch.tensor([[-1e3, cut, 1e3], [-1e3, 4, 1e3]], dtype=torch.float64)
        told.append(ask("cells", Message.of(edges=edges), number))
    assert isinstance(told[0], Message)
    assert "in rounds from 1 to 1, not in 2" in told[1]


@pytest.mark.parametrize("where", ["seed", "ranges"])
def test_two_grids_over_the_same_rows_tell_one_value_unless_the_owner_agrees(place: Place, where: str):
    """Two approved studies, each of whose counts is above the floor; their edges lie on both sides of one value."""
    value = np.sort(place.x[:, 0])[30]
    low, high = (torch.tensor([[-1e3, cut, 1e3], [-1e3, 4, 1e3]]).double() for cut in (value - 1e-4, value + 1e-4))
    tables = [statistics_table({}, pl.FederatedStatistics(bins=2)) | {"seed": seed} for seed in range(4)]
    first, again, other, agreed = map(place.study, tables)
    counts = place.asker(first, "one")("cells", Message.of(edges=low))["cells"]["counts"]
    assert "do not rise" in place.asker(first, "one")("cells", Message.of(edges=high.flip(1)), exchange=5)
    assert [len(one.grids) for one in disclosed(place.node) if one.run == "one"] == [1]
    assert torch.equal(place.asker(again, "two")("cells", Message.of(edges=low))["cells"]["counts"], counts)
    why = "has counted some of the same samples in other cells, so its owner has to decide."
    if where == "seed":  # the same settings: the edges are the server's word
        assert why in place.asker(other, "three")("cells", Message.of(edges=high))
        assert why in place.asker(agreed, "four")("cells", Message.of(edges=high.flip(0).sort(dim=1).values))
    else:
        agreed = place.study(statistics_table({}, pl.FederatedStatistics(bins=2, ranges=((0.0, 120.0), (0.0, 8.0)))))
        head, _ = unpack(answer(place.node, invitation("a", "four", agreed)))
        assert (head["kind"], head["reason"]) == ("pending", why)
    place.node.decide(agreed.hash, "approved")
    told = place.asker(agreed, "five" if where == "seed" else "four")("cells", Message.of(edges=high))
    assert (told["cells"]["counts"] - counts)[0, 1:3].tolist() == [1, -1]  # the value, to 1e-4
    near = [one.near for one in disclosed(place.node)]
    assert sum("counted in other cells in another run" in text for text in near) == 1


def test_exact_histograms_need_an_owner_who_knows_what_they_show(place: Place):
    """Without a floor one question with cells of .01 reads every value: no policy agrees to that by itself."""
    proposal = place.study({"rounds": 1, "algorithm": {"name": "histogram-boosting"}})
    assert not verdict(place.node, proposal).yes
    place.study({"rounds": 1, "algorithm": {"name": "histogram-boosting"}}, disclose=True)
    assert verdict(place.node, proposal).yes


FLOORED = {"name": "histogram-boosting", "floor": 10, "ranges": RANGES, "bins": 16}


def boosting(place: Place, rounds: int = 1) -> Asker:
    return place.asker(place.study({"rounds": rounds, "algorithm": FLOORED}, disclose=True))


def roots(edges: list[list[float]]) -> Message:
    """The first message of a round, with bins of the server's own."""
    bins = np.full((2, 16), np.finfo(np.float64).max)
    for row, own in zip(bins, edges, strict=True):
        row[: len(own)] = own
    return Message.of(
        columns=torch.tensor([0, 1]),
        nodes=torch.tensor([[0, 0]]),
        width=2,
        bins_each=16,
        seed=0,
        unit=1.0,
        bins={"edges": torch.from_numpy(bins), "first": torch.zeros(1, dtype=torch.float64)},
    )


def test_nodes_of_few_rows_are_told_whatever_the_floor_so_the_owner_decides(place: Place):
    """Two splits of the server's choice leave nodes below the floor, whose gradients are their rows' labels."""
    proposal = place.study({"rounds": 1, "algorithm": FLOORED})
    assert "discloses samples' inputs and labels" in verdict(place.node, proposal).why
    ask, (x, y) = boosting(place), place.x.T
    assert isinstance(ask("client", roots([sorted(x)[9:50:10], sorted(y)[9:50:10]])), Message)
    splits = torch.tensor([[0, 0, 0, 0, 0]])
    shape = {"width": 2, "bins_each": 16}
    ask("descend", Message.of(splits=splits, nodes=torch.tensor([[0, 0]]), **shape), exchange=1, version="1-0")
    deeper = Message.of(splits=torch.tensor([[0, 0, 1, 0, 0]]), nodes=torch.tensor([[0, 0]]), **shape)
    told = ask("descend", deeper, exchange=2, version="1-1")["sums"]["histograms"][0, 0].sum(dim=0)
    few = (x <= sorted(x)[9]) & (y <= sorted(y)[9])
    assert 0 < int(told[-1]) == few.sum() < 10
    assert float(told[0]) / 2**24 == (0.5 - place.y[few]).sum()


def test_bins_are_those_of_the_first_round(place: Place):
    """Edges on both sides of one value, a round each, told of that one, also where no memory was named."""
    ask, (x, y) = boosting(place, rounds=3), place.x.T
    first = [sorted(x)[9:50:10], sorted(y)[9:50:10]]
    assert isinstance(ask("client", roots(first)), Message)
    other = [[own + 1e-3 for own in first[0]], first[1]]
    for exchange, version in enumerate((None, "1-0")):
        assert "what is the same in a whole run" in ask("client", roots(other), 2, exchange, version)
    assert isinstance(ask("client", roots(first), 2, 2), Message)


def test_cells_are_those_of_the_ranges(place: Place):
    ask = boosting(place)
    fine = torch.from_numpy(np.linspace(20, 100, 2047)[None])
    told = ask("counts", Message.of(cells={"x": fine}, open={"x": torch.tensor([0])}))
    assert "other cells than those of the ranges" in told
    agreed = torch.from_numpy(np.stack([np.linspace(low, high, 2049)[1:-1] for low, high in RANGES]))
    told = ask("counts", Message.of(cells={"x": agreed}, open={"x": torch.tensor([0, 1])}), exchange=1)
    counts = told["counts"]["x"]
    assert not bool(((counts > 0) & (counts < 10)).any())


def test_bins_of_a_servers_own_show_no_group_below_the_floor(place: Place):
    ask = boosting(place)
    value = np.sort(place.x[:, 0])[30]
    told = ask("client", roots([[value - 1e-4, value + 1e-4, value + 5], [3.9, 4.1]]))
    rows = told["sums"]["histograms"][..., -1]
    assert int(rows[0, 0].sum()) == 60
    assert not bool(((rows > 0) & (rows < 10)).any())


@pytest.mark.parametrize("wrong", [{"unit": 1e-9}, {"width": 1}, {"bins_each": 255}, {"seed": -1}, {"more": 1}])
def test_scalars_of_histograms_are_those_of_the_study(place: Place, wrong: dict[str, Any]):
    parts = {"width": 2, "bins_each": 16, "seed": 0, "unit": 1.0} | wrong
    message = Message.of(columns=torch.tensor([0, 1]), nodes=torch.tensor([[0, 0]]), **parts)
    told = boosting(place)("client", message)
    assert next(iter(wrong)) in told


def test_coefficients_of_a_servers_own_show_no_single_row(place: Place):
    """A column divided by 1e-6 at one value left that row alone in the information, and its other column in the sum."""
    ask = place.asker(place.study({"rounds": 1, "algorithm": {"name": "glm", "family": "logistic"}}))
    value = np.sort(place.x[:, 0])[30]
    at = {"center": [value, 0.0, 0.0], "scale": [1e-6, 1.0, 1.0], "beta": [0.0, 1.0, 0.0]}
    message = Message.of(at={name: torch.tensor(own, dtype=torch.float64) for name, own in at.items()})
    told = decoded(ask("derivatives", message)["sums"])
    assert told["withheld"] == 1
    assert not told["information"].any()
    assert not told["score"].any()
    assert told["rows"] == 0


def test_the_rows_that_count_are_enough():
    """(sum w)^2 / sum w^2: that of n equal weights is n, of one large one 1."""
    method = GLM(family="logistic", floor=20)
    random = np.random.default_rng(0)
    rows = Rows(random.normal(size=(200, 1)), (random.random(200) < 0.5).astype(float), np.ones(200))
    assert not method.too_few(method.row_weights(rows, np.array([0.0, 2.0])))
    assert method.too_few(method.row_weights(rows, np.array([0.0, 2000.0])))
    assert method.too_few(np.array([1.0] * 30 + [-1e-3]))
    for count, few in ((4, True), (5, False), (6, False)):
        assert method.too_few(np.array([1.0] * count + [0.0] * 50)) == few
    assert not GLM(floor=1).too_few(np.array([1.0, 0.0]))


def rare(
    place: Place, x: np.ndarray, y: np.ndarray, algorithm: dict[str, Any], **settings: object
) -> tuple[str, Asker]:
    """What an invitation is answered with, by policy; and what a server may ask once the owner agrees."""
    np.savez(place.node.path.parent / "a.npz", x=x, y=y)
    place.node.set(**settings)
    proposal = place.study({"rounds": 1, "algorithm": algorithm})
    assert verdict(place.node, proposal).yes
    head, _ = unpack(answer(place.node, invitation("a", "r", proposal)))
    place.node.decide(proposal.hash, "approved", disclose=True)
    return str(head.get("reason", head["kind"])), place.asker(proposal)


STANDS_OUT = "has samples that stand out, and this study tells of them, so its owner has to decide (--disclose)."


@pytest.mark.parametrize("who", [[17], list(range(9)), list(range(51))])
def test_a_column_that_few_rows_differ_in_shows_them_unless_the_owner_agrees(place: Place, who: list[int]):
    """No lie is needed: beside a column of zeros but for one row, the information has all else of that row."""
    flag = np.isin(np.arange(60), who).astype(float)
    x = np.concatenate([flag[:, None], place.x], axis=1)
    said, ask = rare(place, x, place.y, {"name": "glm", "family": "logistic"})
    assert said == STANDS_OUT
    assert "x0" in str([line["warning"] for line in place.node.logged() if "warning" in line])
    at = {"center": [0.0] * 4, "scale": [1.0] * 4, "beta": [0.0] * 4}
    message = Message.of(at={name: torch.tensor(own, dtype=torch.float64) for name, own in at.items()})
    information = decoded(ask("derivatives", message)["sums"])["information"]
    np.testing.assert_allclose(information[1, 2:] / information[1, 1], x[who, 1:].mean(axis=0), rtol=1e-12)


def test_two_columns_that_differ_in_few_rows_show_them(place: Place):
    one, other = (np.arange(60) % 2).astype(float), (np.arange(60) % 2).astype(float)
    other[[3, 8]] = 1 - other[[3, 8]]
    for second in (other, 1 - other):
        x = np.stack([one, second, place.x[:, 0]], axis=1)
        assert rare(place, x, place.y, {"name": "glm", "family": "logistic", "floor": 10})[0] == STANDS_OUT
        place = again(place)


@pytest.mark.parametrize("algorithm", [{"name": "glm", "family": "logistic"}, {"name": "glm", "covariates": ["x0"]}])
def test_a_regression_beside_statistics_tells_of_a_few_incomplete_rows_unless_the_owner_agrees(
    place: Place, algorithm: dict[str, Any]
):
    """The sums of all rows, less those of the complete ones, are the only incomplete row."""
    x = place.x.copy()
    x[17, 0] = np.nan
    np.savez(place.node.path.parent / "a.npz", x=x, y=place.y)
    place.node.set(missing=True)
    sums = place.asker(place.study(statistics_table({}, pl.FederatedStatistics(bins=2))), "one")("client", Message())
    regression = place.study({"rounds": 1, "algorithm": algorithm})
    head, _ = unpack(answer(place.node, invitation("a", "two", regression)))
    why = "would use samples that differ by few from another run's, so its owner has to decide."
    assert (head["kind"], head["reason"]) == ("pending", why)
    place.node.decide(regression.hash, "approved")
    fitted = place.asker(regression, "two")("columns", Message())
    assert (int(sums["sums"]["rows"]), int(fitted["sums"]["rows"])) == (60, 59)
    if "covariates" not in algorithm:
        row = sums["sums"]["first"][1] - fitted["sums"]["first"][1]
        assert float(exact_value(carried(row.numpy()[None])[0], 1)) == x[17, 1]
    assert "differ by 1 from those of another run" in str([one.near for one in disclosed(place.node)])


def again(place: Place) -> Place:
    folder = place.node.path.parent / "more"
    folder.mkdir()
    return Place(folder)


def test_columns_in_which_enough_rows_differ_need_no_owner(place: Place):
    x = np.concatenate([(np.arange(60)[:, None] < 10).astype(float), place.x], axis=1)
    assert rare(place, x, place.y, {"name": "glm", "family": "logistic"})[0] == "enrolled"


@pytest.mark.parametrize(("width", "said"), [(0.01, STANDS_OUT), (1000.0, "enrolled")])
def test_narrow_cells_of_a_curve_show_when_single_rows_had_their_events(place: Place, width: float, said: str):
    time = np.round(np.random.default_rng(1).exponential(20, 60), 2) + 0.01
    event = (np.arange(60) % 2).astype(float)
    grid = [round(width * cell, 2) for cell in range(max(1, int(200 / width)))]
    algorithm = {"name": "kaplan-meier", "event": "x0", "grid": grid}
    x = np.stack([event, place.x[:, 0]], axis=1)
    answered, ask = rare(place, x, time, algorithm, kind="regression")
    assert answered == said
    told = ask("counts", Message.of(grid=torch.tensor(grid, dtype=torch.float64)))["counts"]["events"][0]
    read = np.array(grid)[np.flatnonzero(told)]
    if width < 1:
        np.testing.assert_allclose(read, np.unique(time[event == 1]), atol=width)
    else:
        assert read.tolist() == [0.0]


@pytest.mark.parametrize("digits", [None, 2])
def test_what_the_loss_of_a_crafted_model_still_tells(tmp_path: Path, digits: int | None):
    """One linear model whose third logit, of a class that nobody has, is s (x_c - t): with t just below the largest
    value the mean loss is that value. Rounded, too: s has no bound. An owner who minds answers no evaluation."""
    place = Place(tmp_path)
    place.node.set(test_fraction=0.5)
    own = load_data(place.node.settings, place.node.path)
    assert own.test is not None
    largest, before = own.test.x[:, 0].double().sort().values[[-1, -2]].tolist()
    cut, scale = (largest + before) / 2, 1e6
    table = {"rounds": 1, "model": {"name": "linear"}, "algorithm": {"name": "fedavg", "lr": 0.1, "steps": 1}}
    proposal = place.study(table | ({} if digits is None else {"evaluate": {"digits": digits}}))
    assert unpack(answer(place.node, invitation("a", "r", proposal)))[0]["kind"] == "enrolled"
    common = json.dumps(info_to_json(replace(own.info, outputs=3, classes=()))).encode()
    weight = torch.tensor([[0.0, 0.0], [0.0, 0.0], [scale, 0.0]]).double()
    model = Message.of(model={"1.weight": weight, "1.bias": torch.tensor([0.0, 0.0, -scale * cut]).double()})
    frame = evaluation_frame(EvaluationEnvelope(1, 1, None, 0, "a"), encode(model))
    head, _ = unpack(answer(place.node, work("a", "r", proposal.hash, 3, common, frame)))
    assert head["kind"] == "score", [line.get("why", line) for line in place.node.logged()][-1]
    read = cut + (head["loss"] - (len(own.test) - 1) * np.log(2)) / scale
    assert read == pytest.approx(largest, abs=1e-4)
    (place.node.path / "policy.toml").write_text(ALL + "evaluation = false\n")
    assert "evaluation on held-out samples" in verdict(place.node, place.study(table | {"seed": 1})).why
