"""The report: right numbers, nobody named, nothing loaded from elsewhere, and drawn by a real browser."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import parley as pl
from parley.core.errors import InputError
from parley.core.failure import Failure
from parley.report.advice_page import advice_page
from parley.report.groups import stored_groups
from parley.report.page import write_report
from parley.store.records import Metric, RoundRecord
from parley.store.runs import RunStore

NASTY = '</script><script>alert("x")</script>'


def records(rounds: int, shift: float, clients: int = 10) -> list[RoundRecord]:
    made = []
    for n in range(rounds + 1):
        each = {f"hospital-{i}": 0.1 * i / clients + shift for i in range(clients)}
        metrics = {"central/accuracy": Metric(shift + n / (2 * rounds)), "clients/accuracy": Metric(0.5, each)}
        metrics |= {"up/bytes": Metric(1e6), "down/bytes": Metric(2e6), "seconds": Metric(0.5)} if n else {}
        lost = (Failure("hospital-3", "gave no answer within 3 s."),) if n == 2 else ()
        made.append(RoundRecord(n, metrics, lost))
    return made


@pytest.fixture
def store(tmp_path: Path):
    with RunStore(tmp_path / "runs.db") as made:
        for name, lr, seeds in (("fedavg", 0.1, (0, 1, 2)), (NASTY, 0.2, (0,))):
            for seed in seeds:
                config = {"name": name, "seed": seed, "rounds": 4, "algorithm": {"name": "fedavg", "lr": lr},
                          "data": {"name": "nowhere", "seed": seed}}  # fmt: skip
                run = made.create(name, config, f"{name}{lr}")
                made.commit(run, records(4, 0.1 * seed), status="finished", summary={})
        yield made


def page(store: RunStore, path: Path, **options) -> str:
    return write_report(store, [], path, **options).read_text()


def test_seeds_are_one_group_and_the_numbers_are_right(store, tmp_path):
    first, second = stored_groups(store, store.runs())
    assert (len(first.runs), len(second.runs)) == (3, 1)
    curve = first.curve("central/accuracy", 100)
    np.testing.assert_allclose(curve.mean, 0.1 + np.arange(5) / 8)
    np.testing.assert_allclose(curve.low, np.arange(5) / 8)
    np.testing.assert_allclose(curve.high, 0.2 + np.arange(5) / 8)
    np.testing.assert_allclose(curve.megabytes, 3.0 * np.arange(5))
    np.testing.assert_allclose(curve.seconds, 0.5 * np.arange(5))
    assert first.curve("central/accuracy", 2).rounds.tolist() == [0, 4]
    text = page(store, tmp_path / "r.html")
    assert "60.00% ± 24.84%" in text  # mean of .5 .6 .7; t(0.975, 2) .1 / sqrt(3)
    assert "gave no answer within 3 s." in text


def test_seeds_on_the_same_data_are_one_group_too(tmp_path):
    with RunStore(tmp_path / "runs.db") as made:
        for seed in (0, 1):
            run = made.create("a", {"seed": seed, "data": {"seed": 0}, "algorithm": {"name": "fedavg"}}, "x")
            made.commit(run, records(2, 0.0), status="finished", summary={})
        assert [len(group.runs) for group in stored_groups(made, made.runs())] == [2]


def test_nobody_is_named_unless_asked(store, tmp_path):
    assert "hospital-" not in page(store, tmp_path / "r.html")
    assert "hospital-3" in page(store, tmp_path / "r.html", names=True)


def test_what_runs_say_cannot_become_markup(store, tmp_path):
    text = page(store, tmp_path / "r.html")
    assert NASTY not in text
    assert html.escape(NASTY) in text
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert data["groups"][1]["label"] == NASTY


def test_nothing_to_report_is_said(tmp_path):
    with RunStore(tmp_path / "runs.db") as made:
        made.create("empty", {}, "x")
        with pytest.raises(InputError, match="these runs have recorded nothing yet"):
            write_report(made, [], tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_a_trained_study_tells_who_has_what_and_how_to_rerun(tmp_path):
    study = pl.load_study(Path("examples/digits.toml"), ["rounds=1"])
    with RunStore(tmp_path / "runs.db") as made:
        pl.train(study, store=made)
        text = page(made, tmp_path / "r.html")
    assert "data:image/png;base64," in text
    assert "parley run study.toml" in text


CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--virtual-time-budget=20000", "--enable-logging=stderr",
)  # fmt: skip


def dumped(path: Path, *more: str) -> tuple[str, str]:
    """The page after its scripts ran, and what the browser had to say."""
    if CHROMIUM is None:
        reason = "needs Chromium"
        (pytest.fail if "chromium" in os.environ.get("PARLEY_REQUIRE", "") else pytest.skip)(reason)
    profile = f"--user-data-dir={path.parent / 'profile'}"
    done = subprocess.run(
        [CHROMIUM, *FLAGS, *more, profile, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120
    )
    return done.stdout, done.stderr


def test_a_browser_draws_it_without_complaint(store, tmp_path):
    page(store, tmp_path / "r.html")
    dom, said = dumped(tmp_path / "r.html")
    assert 'data-drawn="2"' in dom
    assert dom.count("<canvas") == 2
    assert "CONSOLE" not in said
    assert not re.search(r'(src|href)="(?!data:)', dom)


def complaints(text: str, folder: Path) -> str:
    """What axe-core, which checks what can be checked by program, says of a page."""
    axe = Path(".venv/node/node_modules/axe-core/axe.min.js")
    if not axe.is_file():
        (pytest.fail if "axe" in os.environ.get("PARLEY_REQUIRE", "") else pytest.skip)("needs axe-core")
    script = axe.read_text().replace("</script", "<\\/script")
    run = 'axe.run().then(r => document.title = "AXE " + r.violations.map(v => v.impact + " " + v.id).join(", "))'
    (folder / "axe.html").write_text(text.replace("</body>", f"<script>{script}</script><script>{run}</script></body>"))
    found = re.search(r"<title>AXE (.*?)</title>", dumped(folder / "axe.html")[0])
    assert found
    return found[1]


def test_a_screen_reader_finds_its_way(store, tmp_path):
    assert not re.search("serious|critical", complaints(page(store, tmp_path / "r.html"), tmp_path))


def test_a_screen_reader_finds_its_way_through_advice(tmp_path):
    federation = pl.data.diabetes().split(pl.IID(), clients=4, seed=0)
    linear = pl.models.linear(zero=True)
    study = pl.Study(pl.FedAvg(batch=0), federation, model=linear, loss="half-squares", rounds=6)
    assert not re.search("serious|critical", complaints(advice_page(pl.advise(study, pilot=True)), tmp_path))
