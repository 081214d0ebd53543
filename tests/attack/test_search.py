"""The searches: they find what determines the reply, see through what the server knows of channels, and repeat."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import parley as pl
from parley.attack.evidence import Jacobian, gradient_of, jacobian
from parley.attack.findings import BLIND, Findings, Row, Score
from parley.attack.intercept import Prepared, drawn, intercept
from parley.attack.matching import Effort, cosine, dlg, total_variation
from parley.attack.membership import membership
from parley.attack.prior import Prior
from parley.attack.run import attack
from parley.core.errors import InputError
from parley.core.key import Key
from parley.data import ClientData, Federation
from parley.report.attack_table import attack_table, sentences
from parley.report.attacks_figure import attack_figure
from parley.study.channel_names import named_channel
from parley.study.study import Study

QUICK = Effort(restarts=1, dlg_steps=100, cosine_steps=60)


@pytest.fixture(scope="module")
def digits() -> Federation:
    return pl.data.digits().split(pl.Dirichlet(0.5), clients=10, seed=0)


@pytest.fixture(scope="module")
def place(digits: Federation) -> Prepared:
    return Prepared.of(Study(pl.FedSGD(), digits, pl.models.mlp(24, activation="tanh")))


def received(place: Prepared, samples: int = 1, *channels: str):
    victim = drawn(place.federation, samples, Key(5))
    found = gradient_of(place, intercept(place, victim, Key(6), [named_channel(c) for c in channels]), samples)
    assert found is not None
    return victim, found.target(Prior.of(place.federation).span), found


def test_deep_leakage_finds_input_and_label(place: Prepared) -> None:
    victim, target, _ = received(place)
    found = dlg(target, QUICK, Key(0))
    assert found.loss < 1e-6
    assert float((found.x - victim.x.double()).abs().max()) < 0.02
    assert found.targets.tolist() == victim.y.tolist()


def test_deep_leakage_from_a_jacobian(place: Prepared) -> None:
    victim = drawn(place.federation, 1, Key(5))
    weights = {name: value.double() for name, value in place.task.initial().items()}
    rows = jacobian(place.task, weights, {}, victim.x[0].double())
    evidence = Jacobian(place.task, weights, {}, {n: v[None] for n, v in rows.items()}, victim.y)
    found = dlg(evidence.target(0, (-1.0, 2.0)), QUICK, Key(0))
    assert float((found.x - victim.x.double()).abs().max()) < 0.02


def test_a_guess_that_is_right_looks_like_what_was_received(place: Prepared) -> None:
    """Through every channel that the server sees through, so the loss of the truth is zero."""
    for channels in ((), ("top-k(0.3)",), ("projection(0.3)",), ("clip(1000.0)",)):
        victim, target, _ = received(place, 2, *channels)
        truth = torch.nn.functional.one_hot(victim.y, 10).double()
        seen = target.view(victim.x.double(), truth)
        torch.testing.assert_close(seen, target.received, rtol=1e-4, atol=1e-6)


def test_clipping_changes_the_length_but_not_the_direction(place: Prepared) -> None:
    plain, clipped = (received(place, 1, *channels)[1] for channels in ((), ("clip(0.01)",)))
    ratio = clipped.received / plain.received
    assert float(ratio.std() / ratio.mean().abs()) < 1e-4
    assert float(ratio.mean()) < 0.5
    a, b = (cosine(target, replace(QUICK, cosine_steps=20), Key(1)) for target in (plain, clipped))
    torch.testing.assert_close(a.x, b.x, rtol=1e-2, atol=1e-2)


def test_steps_are_divided_out(digits: Federation) -> None:
    """Of one step of any size the gradient is left; of three tiny ones, three times the gradient over three."""
    one, _ = (
        received(Prepared.of(Study(method, digits, pl.models.mlp(24))))[2] for method in (pl.FedSGD(), pl.FedSGD())
    )
    for method, steps in ((pl.FedAvg(lr=0.5, steps=1), 1), (pl.FedAvg(lr=1e-5, steps=3), 3), (pl.FedAvg(lr=0.1), 1)):
        other = received(Prepared.of(Study(method, digits, pl.models.mlp(24))))[2]
        assert other.steps == steps
        for name, value in one.tree.items():
            torch.testing.assert_close(other.tree[name], value, rtol=0.05 if steps > 1 else 1e-3, atol=2e-3)


def test_total_variation() -> None:
    assert float(total_variation(torch.ones(2, 1, 4, 4))) == 0
    assert float(total_variation(torch.arange(4.0).expand(1, 1, 4, 4))) == 1
    assert float(total_variation(torch.rand(3, 5))) == 0


def test_the_whole_is_reproducible_from_a_seed(digits: Federation) -> None:
    study = Study(pl.FedAvg(lr=0.1), digits, pl.models.mlp(16))
    brief = Effort(restarts=1, dlg_steps=20, cosine_steps=20)
    settings = {"victims": 2, "batches": (1, 2), "defences": ["top-k(0.05)", "clip(1.0) noise(0.5)"], "effort": brief}
    first, again = (attack(study, **settings) for _ in range(2))
    assert first.json() == again.json()
    assert first.csv().count("\n") == 1 + 4 * 4 * 2
    other = attack(study, **settings | {"seed": 7, "defences": [], "batches": (1,)})
    assert other.rows[0].values("ssim", BLIND) != first.rows[0].values("ssim", BLIND)
    plain, noisy = first.row(), first.row("clip(1.0) noise(0.5)")
    assert min(plain.values("ssim", "division")) > 0.999
    assert max(noisy.values("ssim", "division")) < 0.3
    assert sum(plain.values("ssim")) > sum(noisy.values("ssim"))
    columns, lines = attack_table(first)
    assert len(lines) == 4
    assert columns[2:5] == ["division", "dlg", "cosine"]
    assert attack_figure(first).get_size_inches()[0] > 5
    assert "2 victims" in sentences(first)[0]


def test_the_best_attack_on_each_victim() -> None:
    scores = {
        name: tuple(Score(v, v, math.nan) for v in values)
        for name, values in {"a": (0.1, 0.9), "b": (0.5, 0.2), BLIND: (1.0, 1.0)}.items()
    }
    row = Row("none", 1, scores)
    assert row.values("ssim") == [0.5, 0.9]
    assert all(map(math.isnan, row.values("labels")))
    findings = Findings("s", "m", (row,), False, 0, 0)
    assert findings.measure == "psnr"
    assert '"labels": null' in findings.json()


def test_tables_are_attacked_too() -> None:
    wine = pl.data.wine().split("iid", clients=3)
    found = attack(Study(pl.FedSGD(), wine, pl.models.mlp(16)), victims=1, batches=(1,), defences=[], effort=QUICK)
    assert not found.pictures
    assert found.row().values("psnr", "division")[0] > 60
    attack_figure(found)


def test_membership_tells_what_was_learned_by_heart(digits: Federation) -> None:
    few = {str(i): (data.x[:8], data.y[:8]) for i, data in enumerate(map(digits.client, digits.ids[:3]))}
    small = Federation.from_arrays({n: (x.numpy(), y.numpy()) for n, (x, y) in few.items()}, test=digits.test)
    run = pl.train(pl.FedAvg(lr=0.1, epochs=20, batch=4), small, model=pl.models.mlp(64), rounds=10, runtime="inline")
    predict = run.predictor()
    found, _ = membership(run.task, predict, small, 3, Key(0))
    assert len(found) == 3
    assert min(found) > 0.7
    fresh = run.task.predictor(run.task.initial())
    assert abs(sum(membership(run.task, fresh, small, 3, Key(0))[0]) / 3 - 0.5) < 0.25


def test_what_cannot_be_attacked_is_a_sentence(digits: Federation) -> None:
    with pytest.raises(InputError, match="has them already"):
        attack(Study(pl.Centralised(), digits, pl.models.linear()))
    with pytest.raises(InputError, match="at least one victim"):
        attack(Study(pl.FedSGD(), digits, pl.models.linear()), victims=0)
    with pytest.raises(InputError, match="no client has 4000 samples"):
        attack(Study(pl.FedSGD(), digits, pl.models.linear()), batches=(4000,), defences=[])
    text = Federation.from_arrays({"a": (torch.zeros(4, 3, dtype=torch.int64).numpy(), torch.arange(4).numpy() % 2)})
    if text.info.kind == "text":
        with pytest.raises(InputError, match="token ids"):
            attack(Study(pl.FedSGD(), text, pl.models.linear()))


def test_a_method_that_takes_no_channels_says_so(digits: Federation) -> None:
    diabetes = pl.data.diabetes().split("iid", clients=4)
    found = attack(Study(pl.KernelFedAvg(), diabetes, pl.models.linear()), victims=2, batches=(2,), effort=QUICK)
    assert found.row().values("psnr", "reading") == [100.0, 100.0]
    assert found.row().values("labels", "reading") == [1.0, 1.0]
    assert "it sends the data" in found.disclosures[0]
    assert found.notes[0].startswith("left out: top-k(0.5)")


def test_samples_are_a_client_s_own(digits: Federation) -> None:
    data = drawn(digits, 3, Key(1))
    assert isinstance(data, ClientData)
    owners = [
        name
        for name in digits.ids
        if all(bool((digits.client(name).x == row).flatten(1).all(1).any()) for row in data.x)
    ]
    assert len(owners) >= 1
