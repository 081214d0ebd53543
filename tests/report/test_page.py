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
from parley.report import Comparison
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
                config = {
                    "name": name,
                    "seed": seed,
                    "rounds": 4,
                    "algorithm": {"name": "fedavg", "lr": lr},
                    "data": {"name": "nowhere", "seed": seed},
                }
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


def test_clients_of_all_runs_are_judged_by_one_metric(tmp_path):
    """One study that names the loss does not put losses beside others' accuracies."""
    with RunStore(tmp_path / "runs.db") as made:
        for name, evaluate in (("a", {}), ("b", {"headline": "clients/loss"})):
            run = made.create(name, {"name": name, "evaluate": evaluate, "algorithm": {"name": "fedavg"}}, "x")
            both = {f"clients/{m}": Metric(v, {"0": v}) for m, v in (("accuracy", 0.75), ("loss", 0.5))}
            made.commit(run, [RoundRecord(1, both)], status="finished", summary={})
        assert [group.judged_by for group in stored_groups(made, made.runs())] == ["clients/accuracy"] * 2
        (alone,) = stored_groups(made, [info for info in made.runs() if info.name == "b"])
        assert alone.judged_by == "clients/loss"


def test_seeds_on_the_same_data_are_one_group_too(tmp_path):
    with RunStore(tmp_path / "runs.db") as made:
        for seed in (0, 1):
            run = made.create("a", {"seed": seed, "data": {"seed": 0}, "algorithm": {"name": "fedavg"}}, "x")
            made.commit(run, records(2, 0.0), status="finished", summary={})
        assert [len(group.runs) for group in stored_groups(made, made.runs())] == [2]


def test_nobody_is_named_unless_asked(store, tmp_path):
    assert "hospital-" not in page(store, tmp_path / "r.html")
    assert "hospital-3" in page(store, tmp_path / "r.html", names=True)


def test_reasons_are_told_whole_without_names(tmp_path):
    lost = (
        Failure("9", "gave no answer within 9.92 s."),
        Failure("anna", "raised KeyError: 'anna' is not in anna.csv."),
        Failure("b-2", "sent b-21, not 'b-2'."),
    )
    with RunStore(tmp_path / "runs.db") as made:
        run = made.create("a", {"seed": 0, "rounds": 9, "algorithm": {"name": "fedavg"}}, "x")
        told = [RoundRecord(0, {"central/accuracy": Metric(0.1)}), RoundRecord(1, {"up/bytes": Metric(1.0)}, lost)]
        made.commit(run, told, status="stopped", summary={"ended": "too few: client '9' and anna were missing."})
        text = html.unescape(page(made, tmp_path / "r.html"))
        named = html.unescape(page(made, tmp_path / "r.html", names=True))
    assert "gave no answer within 9.92 s." in text
    assert "raised KeyError: client 2 is not in client 2.csv." in text
    assert "sent b-21, not client 3." in text
    assert "too few: client 1 and client 2 were missing." in text
    assert "raised KeyError: 'anna' is not in anna.csv." in named


def test_nobody_is_said_to_have_answered_where_no_round_was_finished(tmp_path):
    with RunStore(tmp_path / "runs.db") as made:
        for name, done, status in (("none", 0, "stopped"), ("some", 2, "finished")):
            run = made.create(name, {"seed": 0, "rounds": 2, "algorithm": {"name": "fedavg"}}, "x")
            made.commit(run, [RoundRecord(n, {"central/loss": Metric(1.0)}) for n in range(done + 1)], status=status)
        alone = write_report(made, ["none"], tmp_path / "r.html").read_text()
        both = page(made, tmp_path / "r.html")
    assert "Everybody" not in alone
    assert "No round was finished." in alone
    assert "No round of none was finished." in both
    assert "Everybody who was asked answered, in every round that was finished." in both


def test_replies_missing_are_a_mean_and_the_last_is_the_latest(tmp_path):
    with RunStore(tmp_path / "runs.db") as made:
        for seed, rounds in ((0, (3, 7)), (1, (2,))):
            run = made.create("a", {"seed": seed, "data": {"seed": 0}, "algorithm": {"name": "fedavg"}}, "x")
            told = [
                RoundRecord(n, {"central/accuracy": Metric(0.5)}, (Failure("x", f"was away in {n}"),) * (n in rounds))
                for n in range(9)
            ]
            made.commit(run, told, status="finished", summary={})
        text = page(made, tmp_path / "r.html")
    assert 'data-head="replies missing">1.5<' in text
    assert 'data-head="replies missing">3<' in text
    assert "was away in 7" in text


def test_clients_are_those_of_all_seeds_and_have_one_number_each(store, tmp_path):
    first, _ = stored_groups(store, store.runs())
    assert len(first.clients) == 30
    (_, other) = Comparison.stored(store, []).lines[:2]
    low = np.quantile([0.1 * i / 10 + shift for i in range(10) for shift in (0, 0.1, 0.2)], 0.1)
    assert Comparison.stored(store, []).lines[0].quantiles[0] == pytest.approx(low)
    text = page(store, tmp_path / "r.html")
    assert f">{100 * low:.2f}%<" in text
    assert other.quantiles is not None
    assert ">client 4</td>" in text  # hospital-3, who was missing; hospital-0 was the worst
    assert ">client 1</td>" in text


def test_settings_are_shown_as_a_study_file_has_them(tmp_path):
    with RunStore(tmp_path / "runs.db") as made:
        algorithm = {"name": "fedavg", "batch": None, "lr": 1e12, "nesterov": True}
        run = made.create("a", {"seed": 0, "algorithm": algorithm, "channels": {}}, "x")
        made.commit(run, records(2, 0.0), status="finished", summary={})
        text = page(made, tmp_path / "r.html")
    for cell in ("&quot;fedavg&quot;", "1e+12", "true", "–", "{}"):
        assert f"<td>{cell}</td>" in text
    assert "±" not in text


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


def test_a_page_for_others_has_no_paths_of_this_disk(tmp_path):
    """Settings, study files, names of runs, reasons: of folders and files only the names."""
    home = tmp_path / "home of ann"
    for place in ("one", "two"):
        (home / place / "clinics").mkdir(parents=True)
        for i in range(2):
            rows = "\n".join(f"{row},{row % 2}" for row in range(8 + i))
            (home / place / "clinics" / f"site{i}.csv").write_text(f"a,label\n{rows}\n")
        (home / place / "study.toml").write_text(
            'name = "clinics"\nrounds = 1\n[data]\nfolder = "clinics"\n[model]\nname = "linear"\n'
            '[algorithm]\nname = "fedavg"\n'
        )
    with RunStore(home / "runs.db") as made:
        for place in ("one", "two"):
            pl.train(pl.load_study(home / place / "study.toml"), store=made)
        config = {
            "seed": 0,
            "rounds": 9,
            "algorithm": {"name": "fedavg"},
            "plugins": [str(home / "mine.py")],
            "init_from": {"file": str(home / "w.safetensors")},
        }
        run = made.create("bare", config, "x")
        why = f"raised OSError: [Errno 2] No such file: '{home}/a b.csv' (file://{tmp_path}/c.csv, {tmp_path}/d.csv)."
        told = [RoundRecord(1, {"central/accuracy": Metric(0.1)}, (Failure("c", why),))]
        made.commit(run, told, status="stopped", summary={"ended": f"{tmp_path}/e.csv cannot be read."})
        for names in (False, True):
            text = html.unescape(page(made, tmp_path / "r.html", names=names))
            assert str(tmp_path) not in text
            assert "home of ann" not in text
            for kept in (
                'folder = "clinics"',
                "mine.py",
                "w.safetensors",
                "'a b.csv' (c.csv, d.csv)",
                "e.csv cannot be",
            ):
                assert kept in text
        assert "with the folders and files that it names beside it" in text


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


ACTS = """
const legend = () => [...document.querySelectorAll("#curves .legend button")];
const choose = (metric) => {
  const select = document.getElementById("metric");
  select.value = metric;
  select.dispatchEvent(new Event("change"));
};
const numbers = () => {
  const table = document.querySelector("#numbers table");
  return [table.caption.textContent, [...table.tBodies[0].rows].map((row) => [...row.cells].map((c) => c.textContent))];
};
const hover = (share) => {
  const over = document.querySelector("#curves .u-over"), box = over.getBoundingClientRect();
  const where = { clientX: box.left + share * (box.width - 1), clientY: box.top + 5, bubbles: true };
  over.dispatchEvent(new MouseEvent("mousemove", where));
  return legend().map((button) => button.textContent);
};
const log = () => document.getElementById("log").checked;
const found = { end: hover(1), before: numbers(), log: [log()] };
found.names = legend().map((b) => b.firstChild.nextSibling.textContent);
found.dashes = legend().map((b) => b.querySelector("line").outerHTML);
choose("central/loss");
found.log.push(log());
found.loss = numbers();
legend()[0].focus();
found.focused = document.activeElement === legend()[0];
legend()[0].click();
found.pressed = legend().map((b) => b.getAttribute("aria-pressed"));
choose("central/accuracy");
found.after = numbers();
const closed = () => document.querySelectorAll("details:not([open])").length;
found.closed = [closed()];
window.dispatchEvent(new Event("beforeprint"));
found.closed.push(closed());
window.dispatchEvent(new Event("afterprint"));
found.closed.push(closed());
document.title = "FOUND " + JSON.stringify(found);
"""


@pytest.fixture(scope="module")
def acted(tmp_path_factory):
    """What a reader finds who hovers, chooses, presses and prints: a short run, a long one, and some that diverged."""
    folder = tmp_path_factory.mktemp("page")
    with RunStore(folder / "runs.db") as made:
        for k in range(10):
            name, rounds, lr = (("short", 15, 0.1), ("long", 20, 0.2), ("wild", 20, 0.3))[min(k, 2)]
            config = {"name": name, "seed": 0, "rounds": rounds, "algorithm": {"name": "fedavg", "lr": lr + k}}
            told = []
            for n in range(rounds + 1):
                loss = float("nan") if name == "wild" and n > 9 else 10.0**n if name == "wild" else 2.0
                metrics = {"central/accuracy": Metric(0.920149), "central/loss": Metric(loss)}
                told.append(RoundRecord(n, metrics | ({"up/bytes": Metric(1e6)} if n else {})))
            made.commit(made.create(name, config, f"{k}"), told, status="finished", summary={})
        text = page(made, folder / "r.html")
    (folder / "acts.html").write_text(text.replace("</body>", f"<script>{ACTS}</script></body>"))
    dom, said = dumped(folder / "acts.html", "--window-size=1200,900")
    assert "CONSOLE" not in said, said
    return json.loads(html.unescape(re.search(r"<title>FOUND (.*?)</title>", dom)[1]))


def test_a_curve_has_no_value_where_its_run_has_none(acted):
    assert acted["end"][0] == "short–"
    assert acted["end"][1] == "long92.01%"  # 0.920149: rounded once


def test_the_numbers_below_the_curves_are_those_of_the_chosen_metric(acted):
    caption, rows = acted["loss"]
    assert caption == "central/loss along the rounds"
    assert rows[0] == ["short", "0", "2", "0", "0"]
    assert [row for row in rows if row[0].startswith("wild")][-1][1:3] == ["20", "diverged"]
    assert acted["before"] == acted["after"]
    assert acted["before"][1][0] == ["short", "0", "92.01%", "0", "0"]


def test_losses_that_span_decades_are_drawn_logarithmically(acted):
    assert acted["log"] == [False, True]


def test_every_curve_can_be_told_apart_and_reached_by_keyboard(acted):
    assert len(set(acted["dashes"])) == 10
    assert acted["focused"]
    assert acted["pressed"] == ["false"] + ["true"] * 9
    assert "(diverged)" in acted["names"][2]
    assert "diverged" not in acted["names"][1]


def test_paper_has_nothing_folded(acted):
    before, printed, after = acted["closed"]
    assert (printed, after) == (0, before)
    assert before > 2


def complaints(text: str, folder: Path, width: int = 1200) -> str:
    """What axe-core, which checks what can be checked by program, says of a page."""
    axe = Path(".venv/node/node_modules/axe-core/axe.min.js")
    if not axe.is_file():
        (pytest.fail if "axe" in os.environ.get("PARLEY_REQUIRE", "") else pytest.skip)("needs axe-core")
    script = axe.read_text().replace("</script", "<\\/script")
    run = 'axe.run().then(r => document.title = "AXE " + r.violations.map(v => v.impact + " " + v.id).join(", "))'
    (folder / "axe.html").write_text(text.replace("</body>", f"<script>{script}</script><script>{run}</script></body>"))
    found = re.search(r"<title>AXE (.*?)</title>", dumped(folder / "axe.html", f"--window-size={width},900")[0])
    assert found
    return found[1]


@pytest.mark.parametrize("width", [1200, 500])
def test_a_screen_reader_finds_its_way(store, tmp_path, width):
    assert not re.search("serious|critical", complaints(page(store, tmp_path / "r.html"), tmp_path, width))


def test_a_screen_reader_finds_its_way_through_advice(tmp_path):
    federation = pl.data.diabetes().split(pl.IID(), clients=4, seed=0)
    linear = pl.models.linear(zero=True)
    study = pl.Study(pl.FedAvg(batch=0), federation, model=linear, loss="half-squares", rounds=6)
    assert not re.search("serious|critical", complaints(advice_page(pl.advise(study, pilot=True)), tmp_path))
