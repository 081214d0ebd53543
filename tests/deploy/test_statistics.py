"""Federated statistics on a deployment: with consent, the numbers of pooled data, frozen and trained with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import parley as pl
from parley.cli import deploy
from parley.cli.main import main
from parley.deploy.consent import policy_obstacle, verdict
from parley.deploy.node_folder import NodeFolder
from parley.deploy.proposal import Proposal
from parley.deploy.serverapp import carry_out
from parley.deploy.submissions import submitted_study
from parley.runtimes import remote
from parley.runtimes.frame import unpack
from parley.statistics.run import Statistics, frozen_table, statistics_table
from parley.study.stored import load_run
from parley.study.toml import study_from_dict, study_table

from .conftest import ALL
from .test_runs import Place, identity, place  # noqa: F401 (fixtures)

STUDY = """
rounds = 2
[model]
name = "linear"
[algorithm]
name = "fedavg"
lr = 0.1
steps = 2
[evaluate]
clients = "all"
[faults]
at_least = 2
"""
SIZES = {"a": 60, "b": 45, "c": 14}


def tables(place: Place, folder: Path, **headers: str) -> np.ndarray:  # noqa: F811
    """A table with named columns and classes at every node, in another order each; all of their training rows."""
    rng, pooled = np.random.default_rng(0), []
    for name, node in place.nodes.items():
        order = {"a": (0, 1), "b": (1, 0), "c": (0, 1)}[name]
        x = np.round(rng.normal(size=(SIZES[name], 2)) * [12, 0.5] + [60, 4], 3)
        label = np.where(x[:, 0] > 55, "ill", "well")
        header = headers.get(name, ",".join(("age", "dose")[k] for k in order) + ",label")
        rows = [",".join(map(str, row[list(order)])) + f",{c}" for row, c in zip(x, label, strict=True)]
        rows[1] = f",{rows[1].partition(',')[2]}"  # a value is missing
        (folder / f"{name}.csv").write_text("\n".join([header, *rows]) + "\n")
        node.set(data=str(folder / f"{name}.csv"), target="label", missing=True, test_fraction=0.0)
        x[1, order[0]] = np.nan
        pooled.append(x)
    return np.concatenate(pooled).astype(np.float32)


def asked(**settings: object) -> dict[str, object]:
    return statistics_table({}, pl.FederatedStatistics(**settings))  # type: ignore[arg-type]


def test_the_numbers_are_those_of_pooled_data(place: Place, tmp_path: Path):  # noqa: F811
    x = tables(place, tmp_path)
    one = place.run(asked())
    assert one.status == "finished", place.said(one)
    assert "b has its columns in another order." in place.said(one)
    found = Statistics.of(load_run(place.folder.store, str(one.run)))
    assert (found.clients, found.contributed, found.samples) == (3, 3, 119)
    for name, column in zip(("age", "dose"), x.T.astype(np.float64), strict=True):
        there = column[~np.isnan(column)]
        assert (found[name].count, found[name].missing) == (len(there), len(column) - len(there))
        assert found[name].mean == pytest.approx(there.mean(), rel=1e-14)
        assert found[name].std == pytest.approx(there.std(), rel=1e-12)
    assert found.classes == ("ill", "well")
    # Asked again, nobody is bothered a second time.
    assert place.submit(asked()).id == one.id


def test_frozen_they_are_applied_at_the_nodes(place: Place, tmp_path: Path):  # noqa: F811
    """The bits of a simulation with the same preprocessing, which the hash that owners approve covers."""
    tables(place, tmp_path)
    one = place.run(asked(floor=12))
    agreed = Statistics.of(load_run(place.folder.store, str(one.run))).preprocessing("standard", "mean")
    (tmp_path / "study.toml").write_text(STUDY)
    table = study_table(tmp_path / "study.toml")
    study = frozen_table(table, agreed)
    for node in place.nodes.values():
        node.set(test_fraction=0.2)
        node.keep(place.proposal(study))
        node.decide(place.proposal(study).hash, "approved")  # some have few rows less than before, now held out
    trained = place.run(study)
    assert trained.status == "finished", place.said(trained)
    place.check_same(place.inline(study), trained)
    run = load_run(place.folder.store, str(trained.run))
    assert run.task.info.scaling is not None
    assert run.task.info.scaling.mean == agreed.center
    others = frozen_table(table, replace(agreed, classes=("ill", "well", "other")))
    hashes = {Proposal.of(submitted_study({"table": t, "base": "."})).hash for t in (table, study, others)}
    assert len(hashes) == 3


def test_a_node_that_lacks_a_column_is_named(place: Place, tmp_path: Path):  # noqa: F811
    tables(place, tmp_path, c="age,weight,label")
    one = place.run(asked())
    assert one.status == "failed"
    said = place.said(one)
    assert "c lacks the column dose." in said
    assert "c alone has the column weight." in said
    assert "do not have the same columns: dose, weight" in one.reason


def test_below_the_floor_nothing_leaves_a_node(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # noqa: F811
    sent: dict[str, list[bytes]] = {}
    read = remote._answer

    def answered(recipient, data):
        sent.setdefault(recipient, []).append(unpack(data)[1][0])
        return read(recipient, data)

    monkeypatch.setattr(remote, "_answer", answered)
    tables(place, tmp_path)
    one = place.run(asked(floor=15))
    found = Statistics.of(load_run(place.folder.store, str(one.run)))
    assert (found.clients, found.contributed, found.samples) == (3, 2, 105)
    assert len(sent["c"]) == 3
    for data in sent["c"]:
        assert not any(value.any() for value in pl.core.wire.decode(data).tensors.values())
    assert all(any(value.any() for value in pl.core.wire.decode(data).tensors.values()) for data in sent["a"])
    # The log of the owner has every question.
    log = [line for line in place.nodes["c"].logged() if line.get("asked")]
    assert [line["asked"] for line in log] == ["client", "cells", "neighbours"]


def test_the_owner_decides(make_node):
    node: NodeFolder = make_node("a", ALL)
    usual, low, one = (Proposal.of(submitted_study({"table": asked(floor=floor), "base": "."})) for floor in (10, 5, 1))
    assert verdict(node, usual).yes
    assert policy_obstacle(node.policy, node, low) == "statistics with a floor of 5 where it asks for 10"
    assert policy_obstacle(node.policy, node, one) == "'statistics' discloses samples' inputs and labels"
    (node.path / "policy.toml").write_text(ALL + "minimum_floor = 5\n")
    assert verdict(node, low).yes
    (node.path / "policy.toml").write_text(ALL.replace('["*"]', '["fedavg"]', 1))
    assert not verdict(node, usual).yes
    node.keep(low)
    node.decide(low.hash, "approved")
    assert verdict(node, low).yes


def sums_of_a(place: Place, study: dict[str, object]) -> dict[str, np.ndarray] | None:  # noqa: F811
    """What node a tells the server of its sums in a run; None if it does not take part. The others' owners agree."""
    seen: list[bytes] = []
    for name in "bc":
        place.nodes[name].keep(place.proposal(study))
        place.nodes[name].decide(place.proposal(study).hash, "approved")
    place.grid.tamper = lambda number, data: seen.append(data) or data if number == 1 else data
    one = place.run(study)
    assert one.status == "finished", place.said(one)
    replies = [pl.core.wire.decode(parts[0]) for head, parts in map(unpack, seen) if head["kind"] == "reply"]
    found = [reply["sums"] for reply in replies if "sums" in reply]
    return {name: value.numpy() for name, value in found[0].items()} if found else None


def test_two_statistics_subtracted_tell_a_sample_unless_the_owner_says_so(place: Place, tmp_path: Path, capfd):  # noqa: F811
    """A patient comes in between two approved studies; each has a floor of ten, and their difference has one."""
    tables(place, tmp_path)
    first = sums_of_a(place, asked())
    with (tmp_path / "a.csv").open("a") as file:
        file.write("77.125,4.5,ill\n")
    second = asked(bins=7)
    assert sums_of_a(place, second) is None
    assert "a would use samples that differ by few from another run's, so its owner has to decide." in place.said(
        place.submissions["last"]
    )
    third = asked(bins=9)
    hash = place.submit(third).hash
    node = place.nodes["a"]
    node.keep(place.proposal(third))
    node.decide(hash, "approved")
    after = sums_of_a(place, third)
    assert first is not None
    assert after is not None
    assert (after["count"] - first["count"]).tolist() == [1, 1]  # what the owner was warned of: the patient alone
    with pytest.raises(SystemExit) as ended:
        main(["node", "log", "--disclosed", "--node", str(node.path)])
    out = capfd.readouterr().out
    assert ended.value.code == 0
    assert "the samples it uses differ by 1 from those of another run" in " ".join(out.split())
    assert out.count("neighbours") == 2
    assert "6 answers of" in out


def test_the_same_cells_again_are_no_matter_and_others_ask_the_owner(place: Place, tmp_path: Path, capfd):  # noqa: F811
    tables(place, tmp_path)
    for seed in (1, 2):
        assert sums_of_a(place, asked() | {"seed": seed}) is not None
    assert sums_of_a(place, asked(bins=6)) is None
    said = place.said(place.submissions["last"])
    assert "a has counted some of the same samples in other cells, so its owner has to decide." in said
    with pytest.raises(SystemExit):
        main(["node", "log", "--disclosed", "--node", str(place.nodes["a"].path)])
    out = " ".join(capfd.readouterr().out.split())
    assert out.count("counted samples ('cells') in cells edges 2 x 9 from") == 2


def test_other_rows_are_counted_in_other_cells(place: Place, tmp_path: Path):  # noqa: F811
    tables(place, tmp_path)
    assert sums_of_a(place, asked(bins=5)) is not None
    lines = [f"{50 + k}.5,{k % 7}.25,{'ill' if k % 2 else 'well'}\n" for k in range(40)]
    (tmp_path / "a.csv").write_text((tmp_path / "a.csv").read_text().splitlines()[0] + "\n" + "".join(lines))
    assert sums_of_a(place, asked(bins=7)) is not None


def test_the_command(place: Place, tmp_path: Path, monkeypatch, capfd):  # noqa: F811
    """`parley stats -f` submits, follows, shows and freezes; what the server does is done here in between."""
    tables(place, tmp_path)
    (tmp_path / "study.toml").write_text(STUDY)
    follow = deploy.finished

    def served(path, id, *, whole):
        if place.submissions[id].active:
            place.submissions.update(id, attempts=1)
            carry_out(place.folder, id, place.grid)
        return follow(path, id, whole=whole)

    monkeypatch.setattr(deploy, "finished", served)
    monkeypatch.chdir(tmp_path)
    for freeze in ("one.toml", "two.toml"):
        with pytest.raises(SystemExit) as ended:
            main(["stats", "study.toml", "-f", str(place.folder.path), "--freeze", freeze, "--fill", "mean"])
        out = " ".join(capfd.readouterr().out.split())
        assert ended.value.code == 0, out
        assert "119 samples of 3 out of 3 clients." in out
    assert (tmp_path / "one.toml").read_text() == (tmp_path / "two.toml").read_text()
    assert len(place.submissions.all()) == 1
    written = study_table(tmp_path / "one.toml")
    frozen = study_from_dict(written | {"data": {"name": "iris", "clients": 1}}).preprocessing
    assert frozen is not None
    assert frozen.samples == 119
    assert torch.tensor(frozen.scale).min() > 0
    place.grid.offline = set(place.grid.nodes)
    with pytest.raises(SystemExit) as ended:
        main(["stats", "study.toml", "-f", str(place.folder.path), "--floor", "20"])
    assert ended.value.code == 1
    assert "is not connected" in capfd.readouterr().out


def test_levels_are_those_of_their_own_columns(place: Place, tmp_path: Path):  # noqa: F811
    """Whatever the order in which columns of texts are named: a proposal keeps none."""
    for name, node in place.nodes.items():
        rows = [f"{'ab'[n % 2]},{n % 3},{'xyz'[n % 3]},{'no' if n % 2 else 'yes'}" for n in range(60)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["ward,age,kind,ill", *rows]))
        node.set(data=str(tmp_path / f"{name}.csv"), target="ill", categories=("ward", "kind"), test_fraction=0.0)
    one = place.run(asked(categories={"ward": (), "kind": ()}))
    assert one.status == "finished", place.said(one)
    found = Statistics.of(load_run(place.folder.store, str(one.run)))
    assert found.levels == {"ward": {"a": 90, "b": 90}, "kind": {"x": 60, "y": 60, "z": 60}}
