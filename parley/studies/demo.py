"""The demonstration: federated methods beside each client alone and all data in one place, on embedded real data.

Each federated method got the same small budget to be tuned: nine settings, seed 0, 100 rounds, chosen by the mean
accuracy on clients' own held-out samples over the last five evaluations, never on the test set it is judged by here.

    fedavg   lr 0.02 0.05 0.1 0.15 [0.2] 0.3 0.4 0.5 0.6
    fedprox  lr 0.1 [0.2] 0.4  x  alpha [0.01] 0.1 0.5
    fedavgm  lr 0.1 [0.2] 0.4  x  server momentum 0.5 [0.7] 0.9
    fedadam  lr 0.1 [0.2] 0.4  x  server lr [0.01] 0.03 0.05

The baselines got FedAvg's nine step sizes: local-only takes 0.3, centralised 0.4 (batches of 32, one epoch a round).
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from parley.core.errors import InputError
from parley.core.files import write_atomically
from parley.core.text import printable
from parley.data import Federation, describe
from parley.data.label_spread import label_counts
from parley.engine.progress import ProgressTable
from parley.report import Comparison, figure, partition_figure, table, to_csv, to_json
from parley.report.contender import role
from parley.report.files import save_figure
from parley.report.page import write_report
from parley.store.runs import RunStore
from parley.studies.demo_summary import conclusions
from parley.study.study import load_study
from parley.study.train import train_study

STUDY = Path(__file__).with_name("demo.toml")
METHODS: dict[str, tuple[str, ...]] = {
    "fedavg": ("algorithm.lr=0.2",),
    "fedprox": ("algorithm.lr=0.2", "algorithm.alpha=0.01"),
    "fedavgm": ("algorithm.lr=0.2", "algorithm.server.momentum=0.7"),
    "fedadam": ("algorithm.lr=0.2", "algorithm.server.lr=0.01"),
    "local-only": ("algorithm.lr=0.3",),
    "centralised": ("algorithm.lr=0.4", "algorithm.batch=32", "algorithm.epochs=1"),
}


def demo(
    store: RunStore, out: Path | str = "parley-demo", console: Console | None = None, *, rounds: int | None = None
) -> Comparison:
    """Train all methods on the same clients, keep the runs in the store, and show and write how they compare.

    `out` receives the comparison as page, figure, CSV and JSON, a figure of the clients, and the study file to go on
    with.
    """
    screen, folder = console or Console(), Path(out)
    limit = () if rounds is None else (f"rounds={rounds}",)
    studies = {
        name: load_study(STUDY, [f"algorithm.name={name}", f"name={name}", *settings, *limit])
        for name, settings in METHODS.items()
    }
    _make(folder)
    federation = studies["fedavg"].federation()
    screen.print(introduction(federation), highlight=False)
    baselines = [name for name, study in studies.items() if role(study.algorithm) != "federated"]
    progress = ProgressTable(tuple(METHODS), screen, silent=baselines)
    with progress.shown():
        runs = [train_study(study, store=store, listeners=[progress.rows[name]]) for name, study in studies.items()]
    comparison = Comparison.of(runs)
    screen.print(table(comparison))
    _write(folder, comparison, federation)
    write_report(store, [str(run.id) for run in runs], folder / "report.html", title="Parley's demonstration")
    tested = len(federation.test) if federation.test is not None else 0
    for sentence in conclusions(comparison, tested):
        screen.print(f"• {sentence}", markup=False, highlight=False)
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


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be made: {error.strerror}; name another one.") from None


def _write(folder: Path, comparison: Comparison, federation: Federation) -> None:
    save_figure(figure(comparison), folder / "comparison.png")
    save_figure(partition_figure(federation), folder / "clients.png")
    to_csv(comparison, folder / "comparison.csv")
    to_json(comparison, folder / "comparison.json")
    write_atomically(folder / "study.toml", STUDY.read_bytes())


def _shown(path: Path) -> str:
    return escape(printable(str(path)))


def _next_steps(folder: Path, comparison: Comparison, store: RunStore) -> str:
    federated = [run.id for run in comparison.contenders if run.role == "federated"]
    return "\n".join(
        [
            "",
            f"Report: [bold]{_shown(folder / 'report.html')}[/bold] (open it in a browser)",
            f"Figure: [bold]{_shown(folder / 'comparison.png')}[/bold] "
            "(and clients.png, comparison.csv, comparison.json)",
            f"Runs:   [bold]{_shown(store.path)}[/bold]",
            "",
            "Next, for example:",
            f"  parley compare {' '.join(federated)} --target 0.9",
            f"  parley run {_shown(folder / 'study.toml')} --set data.partition.alpha=0.5",
            "  parley --help",
        ]
    )
