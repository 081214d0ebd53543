"""Everything that a user may print shows itself in a line; results show themselves as small tables in notebooks."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import parley as pl
from parley.core.show import MOST_ROWS, as_html
from parley.report import Comparison

EVIL = "<img src=x onerror=alert(1)>\x1b[2J"


@pytest.fixture(scope="module")
def federation() -> pl.Federation:
    rng = np.random.default_rng(0)
    clients = {f"c{i}": (rng.normal(size=(60, 30)), rng.integers(0, 2, 60)) for i in range(3)}
    return pl.Federation.from_arrays(clients, test=clients["c0"], test_fraction=0.25)


@pytest.fixture(scope="module")
def run(federation: pl.Federation) -> pl.Run:
    evaluation = pl.Evaluation(clients="all")
    return pl.train(pl.Scaffold(lr=0.1), federation, model=pl.models.mlp(40), rounds=2, evaluation=evaluation)


@pytest.fixture(scope="module")
def advice(federation: pl.Federation) -> pl.Advice:
    study = pl.Study(pl.FedAvg(lr=0.1), federation, model=pl.models.linear(), rounds=5)
    return pl.advise(study, gain=True)


@pytest.fixture(scope="module")
def things(federation: pl.Federation, run: pl.Run, advice: pl.Advice) -> dict[str, object]:
    pool = pl.data.digits()
    statistics = pl.statistics(federation, floor=1)
    other = replace(run, name="other")
    model = run.model()
    return {
        "Dataset": pool,
        "Federation": federation,
        "ClientData": federation.client("c0"),
        "DataInfo": federation.standardised().info,
        "Run": run,
        "State": run.state,
        "Memory": run.memory("c0"),
        "Message": model,
        "Reply": pl.Reply(model),
        "RoundRecord": run.records[-1],
        "Metric": pl.Metric(1.0, {f"client {i}": 0.5 for i in range(1000)}),
        "Task": run.task,
        "Study": replace(advice.study, preprocessing=statistics.preprocessing("standard")),
        "Statistics": statistics,
        "Preprocessing": statistics.preprocessing("standard"),
        "GradientTransform": pl.transforms.pull(model["model"], 0.1),
        "Cohort": pl.Cohort(tuple(map(str, range(1000))), (0.001,) * 1000),
        "FederationHeterogeneity": pl.heterogeneity(federation, clients=3, samples=10),
        "Comparison": Comparison.of([run, other]),
        "Advice": advice,
        "Gains": advice.gains,
        "Partition": pl.IID()(pool.labels(), 5, pl.Key(0)),
    }


NAMES = [
    "Dataset", "Federation", "ClientData", "DataInfo", "Run", "State", "Memory", "Message", "Reply", "RoundRecord",
    "Metric", "Task", "Study", "Statistics", "Preprocessing", "GradientTransform", "Cohort", "FederationHeterogeneity",
    "Comparison", "Advice", "Gains", "Partition",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_repr_is_one_short_line(things, name):
    said = repr(things[name])
    assert type(things[name]).__name__ == name
    assert name in said
    assert "\n" not in said
    assert len(said) < (1500 if name == "Study" else 600), said
    assert "tensor(" not in said
    assert "array(" not in said


def test_what_reprs_say(things):
    assert (
        repr(things["Dataset"]) == "Dataset('digits', 1,438 samples of shape [1, 8, 8], 10 classes, 359 test samples)"
    )
    assert repr(things["ClientData"]) == "ClientData(x=<float64 [45, 30]>, y=<int64 [45]>)"
    assert repr(things["State"]) == "State(model: 4 tensors, 1,322 numbers; c: 4 tensors, 1,322 numbers)"
    assert repr(pl.Message.of(n=3, x=things["ClientData"].x)) == "Message(x: <float64 [45, 30]>; n=3)"
    assert repr(pl.Memory()) == "Memory()"
    assert repr(things["Metric"]).startswith("Metric(value=1.0, clients={'client 0': 0.5, ")
    assert repr(things["Comparison"]).startswith("<Comparison of 2 by central/accuracy: ")
    assert repr(things["Gains"]).startswith("<Gains of 3 clients: ")
    assert repr(things["Advice"]).startswith("<Advice for 5 rounds: ")


class Balanced(HTMLParser):
    """Fails on a tag that is not closed; collects the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.words = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += f"{data} "


@pytest.mark.parametrize("name", ["Dataset", "Run", "Comparison", "Advice", "Gains"])
def test_notebooks_get_small_tables(things, name):
    page = things[name]._repr_html_()
    seen = Balanced(page)
    assert seen.tags <= {"div", "b", "table", "thead", "tbody", "tr", "th", "td", "p"}
    assert len(page) < 12_000
    words = {"Dataset": "1,438", "Run": "central/accuracy", "Comparison": "scaffold-"}
    words |= {"Advice": "method", "Gains": "c0"}
    assert words[name] in seen.words


def test_what_comes_from_outside_is_escaped(federation, run, things, advice):
    named = replace(federation.info, name=EVIL)
    others = [
        pl.data.Dataset(named, federation.client("c0").x, federation.client("c0").y),
        replace(run, name=EVIL, ending=EVIL),
        Comparison.of({EVIL: [run]}),
        replace(advice, unknown=(EVIL,)),
        replace(advice.gains, clients=(replace(advice.gains.clients[0], client=EVIL),)),
    ]
    for thing in others:
        page = thing._repr_html_()
        assert "<img" not in page
        assert "\x1b" not in page
        assert "&lt;img" in page, type(thing)


def test_long_tables_are_cut_and_say_so():
    page = as_html("many", ([n, None, 0.123456] for n in range(1000)), ["n", "b", "c"], ["a note."])
    assert page.count("<tr>") == MOST_ROWS + 1
    assert "and 980 more rows." in page
    assert "0.1235" in page
    assert "–" in page


def test_a_mistake_is_one_line_in_ipython():
    """What IPython itself asks an exception for, and IPython."""
    error = pl.InputError("the file a.csv has no column 'ill'.")
    assert error._render_traceback_() == ["InputError: the file a.csv has no column 'ill'."]
    interactive = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell.instance()
    from IPython.utils.capture import capture_output

    cell = "import parley as pl\npl.data.digits().split('nope', clients=3)"
    with capture_output() as shown:
        result = interactive.run_cell(cell)
    assert isinstance(result.error_in_exec, pl.InputError)
    lines = [line for line in (shown.stdout + shown.stderr).splitlines() if line.strip()]
    assert len(lines) == 1
    assert lines[0].startswith("InputError (line 2): unknown partitioner 'nope'")
    with capture_output() as shown:  # other errors keep their frames
        interactive.run_cell("1 / 0")
    assert "Traceback" in shown.stdout + shown.stderr
    with capture_output() as shown:
        interactive.run_cell("pl.data.iris()")
    assert shown.outputs or "Dataset('iris', 120 samples" in shown.stdout
