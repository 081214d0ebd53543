"""The demonstration: who gains by joining, which settings, and every family of methods on the same fifty clients.

Settings were tuned with a small budget: at most nine a method, seed 0, chosen by the mean accuracy on clients' own
held-out samples over the last five evaluations, never on the test set that methods are judged by here.

    fedavg    lr 0.02 0.05 0.1 0.15 0.2 [0.3] 0.4 0.5 0.6
    fedprox   lr 0.1 [0.2] 0.4  x  alpha 0.01 [0.1] 0.5
    fedadam   lr [0.1] 0.2 0.4  x  server lr [0.01] 0.03 0.05
    scaffold  lr 0.02 0.05 0.1 0.15 [0.2] 0.3 0.4 0.5 0.6
    fedals    lr 0.1 [0.2] 0.4  x  alpha [2] 4 10
    ffgb      lr 0.1 0.3 [1.0]  x  depth 2 4 [6]
    histogram-boosting  lr 0.1 [0.3] 0.5  x  depth 2 [3]
    ntk-fl    lr 0.003 0.01 [0.03]  x  kernel averaged [full]
    local-only  lr as fedavg's, [0.3]

Three are cut short to stay within a minute. FFGB has 30 rounds of one learner a client: with five learners and 60
rounds it reached 93% of the test set, in several times the time. Histogram boosting has 8 rounds, so its last five
evaluations include the untrained start. NTK-FL has 15. Centralised training keeps step size 0.4, tuned for an earlier
partition of the same samples and not again. `default` is FedAvg as it comes, `advised` FedAvg with the step size and
local steps that the forecast of `parley advise` prefers; neither was tuned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from parley.advise.gain import from_study
from parley.advise.gain.result import Gains
from parley.advise.plan.make import advise
from parley.core.errors import InputError
from parley.core.files import write_atomically
from parley.core.text import printable
from parley.data import Federation, describe
from parley.data.label_spread import label_counts
from parley.demo.figure import demo_figure, demo_panels
from parley.demo.summary import NTK, conclusions
from parley.display.progress import ProgressTable
from parley.report import Comparison, table, to_csv, to_json
from parley.report.files import save_figure
from parley.report.groups import role
from parley.report.page import write_report
from parley.report.page.markup import folded, section, text
from parley.report.page.markup import table as html_table
from parley.report.page.picture import picture
from parley.store.runs import RunStore
from parley.study.study import Study
from parley.study.toml import study_from_dict, study_table
from parley.study.train import train

STUDY = Path(__file__).with_name("demo.toml")
LOCAL = {"epochs": 5, "batch": 10}
METHODS: dict[str, dict[str, Any]] = {
    "default": {"name": "fedavg"},
    "advised": {"name": "fedavg"},
    "fedavg": {"name": "fedavg", "lr": 0.3, **LOCAL},
    "fedprox": {"name": "fedprox", "lr": 0.2, "alpha": 0.1, **LOCAL},
    "fedadam": {"name": "fedadam", "lr": 0.1, "server": {"lr": 0.01}, **LOCAL},
    "scaffold": {"name": "scaffold", "lr": 0.2, **LOCAL},
    "fedals": {"name": "fedals", "lr": 0.2, "alpha": 2, **LOCAL},
    "ffgb": {"name": "ffgb", "lr": 1.0, "learner": {"name": "tree", "depth": 6}},
    "histogram-boosting": {"name": "histogram-boosting", "bins": 8, "min_leaf": 5, "depth": 3, "lr": 0.3},
    NTK: {"name": "ntk-fl", "kernel": "full", "lr": 0.03},
    "local-only": {"name": "local-only", "lr": 0.3, **LOCAL},
    "centralised": {"name": "centralised", "lr": 0.4, "batch": 32, "epochs": 1},
}
ROUNDS = {"ffgb": 30, "histogram-boosting": 8, NTK: 15}
"""Where a method has fewer rounds, because one of them takes much longer."""
EVERYBODY = frozenset({"histogram-boosting"})
"""Asked of all clients in every round: with five of them a round it stayed at chance (docs/sharp-edges.md)."""
NETWORKLESS = frozenset({"ffgb", "histogram-boosting"})
FOLDS, GAIN_ROUNDS = 4, 30
PANELS = (
    "The last accuracy of all methods.",
    "Megabytes that each method sends in all.",
    "Accuracy over rounds of FedAvg with default, advised and tuned settings.",
    "The gain by joining of every client, with its interval.",
)
"""What the page's pictures show, for those who cannot see them."""


def study_of(name: str, method: Mapping[str, Any], rounds: int | None = None) -> Study:
    """The demo's study with another method."""
    body = study_table(STUDY)
    body |= {"name": name, "algorithm": dict(method), "rounds": ROUNDS.get(name, body["rounds"])}
    if rounds is not None:
        body["rounds"] = min(rounds, body["rounds"])
    if name in EVERYBODY:
        body["cohort"] = {}
    if name in NETWORKLESS:
        del body["model"]
    return study_from_dict(body)


def demo(
    store: RunStore, out: Path | str = "parley-demo", console: Console | None = None, *, rounds: int | None = None
) -> Comparison:
    """Train all methods on the same clients, ask who gains and which settings to take, and show what follows.

    `out` receives one page, one figure, the table as CSV and JSON, the gains as CSV, and the study file to go on with.
    """
    screen, folder = console or Console(), Path(out)
    studies = {name: study_of(name, method, rounds) for name, method in METHODS.items()}
    _make(folder)
    federation = studies["fedavg"].federation()
    screen.print(introduction(federation), highlight=False)
    silent = [name for name, study in studies.items() if role(study.algorithm) != "federated"]
    progress = ProgressTable(tuple(METHODS), screen, silent=silent)
    runs = {}
    with progress.shown():
        for name, study in studies.items():
            if name == "advised":
                advice = advise(study, gain=False, whole=False, plain=True)
                study = replace(advice.best, name=name, evaluation=study.evaluation)  # judged as all others are
            runs[name] = train(study, store=store, listeners=[progress.rows[name]])
    screen.print("Who gains by joining: every client's own model against the federated one ...", highlight=False)
    gains = _gains(rounds)
    comparison = Comparison.of(list(runs.values()))
    screen.print(table(comparison))
    tested = len(federation.test) if federation.test is not None else 0
    sentences = conclusions(comparison, tested, gains, advice)
    for number, sentence in enumerate(sentences, 1):
        screen.print(f"{number}. {sentence}", markup=False, highlight=False)
    _write(folder, comparison, gains, sentences, store, [str(run.id) for run in runs.values()])
    screen.print(_next_steps(folder, comparison, store), highlight=False, soft_wrap=True)
    return comparison


def introduction(federation: Federation) -> str:
    """Who the clients are, in two sentences."""
    facts = describe(federation)
    _, counts = label_counts(federation)
    kinds = (counts >= 0.05 * counts.sum(axis=1, keepdims=True)).sum(axis=1)
    return (
        f"[bold]{facts['clients']} clients with about {facts['median']:.0f} handwritten digits each.[/bold] "
        f"They disagree: half of them know at most {sorted(kinds)[len(kinds) // 2]} of the {facts['outputs']} digits. "
        f"Every model is tested on {facts['test_samples']} digits of all kinds, and at home on the client's own.\n"
    )


def _gains(rounds: int | None) -> Gains:
    """With all of the clients' samples: nothing that is trained here is judged by them afterwards."""
    study = study_of("fedavg", METHODS["fedavg"], min(rounds or GAIN_ROUNDS, GAIN_ROUNDS))
    body = study.resolved()
    body["data"]["test_fraction"] = 0.0
    rate = METHODS["local-only"]["lr"]
    return from_study(
        study_from_dict(body), folds=FOLDS, measure="brier", local_rates=[rate], local_rounds=study.rounds
    )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be made: {error.strerror}; name another one.") from None


def _write(
    folder: Path, comparison: Comparison, gains: Gains, sentences: list[str], store: RunStore, ids: list[str]
) -> None:
    save_figure(demo_figure(comparison, gains), folder / "demo.png")
    to_csv(comparison, folder / "demo.csv")
    to_json(comparison, folder / "demo.json")
    write_atomically(folder / "gains.csv", gains.csv().encode())
    write_atomically(folder / "study.toml", STUDY.read_bytes())
    points = "".join(f"<li>{text(sentence)}</li>" for sentence in sentences)
    pictures = "".join(
        picture(panel, words, dpi=130) for panel, words in zip(demo_panels(comparison, gains), PANELS, strict=True)
    )
    every = html_table(gains.heads(), gains.rows(), caption="Gain of every client", numeric=(1, 2, 3, 4))
    lead = section("lead", "What follows", f"<ol>{points}</ol>", f'<div class="panels">{pictures}</div>') + section(
        "gains", "Who gains by joining", f"<p>{text(gains.summary())}</p>", folded("Every client", every)
    )
    write_report(store, ids, folder / "report.html", title="Fifty clients, five papers", lead=lead)


def _shown(path: Path) -> str:
    return escape(printable(str(path)))


def _next_steps(folder: Path, comparison: Comparison, store: RunStore) -> str:
    ids = {run.label: run.id for run in comparison.contenders}
    return "\n".join(
        [
            "",
            f"Page:   [bold]{_shown(folder / 'report.html')}[/bold] (open it in a browser)",
            f"Figure: [bold]{_shown(folder / 'demo.png')}[/bold] (and demo.csv, demo.json, gains.csv)",
            f"Runs:   [bold]{_shown(store.path)}[/bold]",
            "",
            "Next, for example:",
            f"  parley compare {ids['default']} {ids['advised']} {ids['fedavg']} --target 0.9",
            f"  parley gain {_shown(folder / 'study.toml')} --measure brier --folds 4",
            "  parley --help",
        ]
    )
