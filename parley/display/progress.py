"""Progress on the terminal, the only display there is: of one run, of several in a table, or of a list of steps."""

from __future__ import annotations

import atexit
import io
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from parley.core.numbers import duration, megabytes, percent
from parley.core.text import printable
from parley.engine.listeners import Listener
from parley.engine.roll_call import coverages, over_clients
from parley.engine.run import Run
from parley.engine.stopping import Headline
from parley.store.records import RoundRecord

_SHOWN = {"central/accuracy": "accuracy", "central/loss": "loss", "clients/accuracy": "clients"}
"""Metrics that every run's figures have, by their short names."""
UPDATES = 8.0
"""How often a second a terminal is drawn anew."""
QUIET = 5.0
"""Seconds between lines where the output is not a terminal."""
_ECHO = 3
"""Columns left free: a terminal writes ^C behind the last line, and what it wraps would be drawn twice."""
_COLOURS = {"running": "cyan", "finished": "green", "stopped": "yellow", "interrupted": "yellow", "failed": "red"}


@dataclass(slots=True)
class Figures:
    """What the records so far say; taking one in costs about a microsecond."""

    headline: Headline | None = None
    """What the run is judged by; None: accuracy, or loss where none is measured."""
    judged: float | None = None
    """The headline's last value."""
    evaluated: RoundRecord | None = None
    """The record that has it."""
    round: int = 0
    accuracy: float | None = None
    """On the central test set; None until it is measured, as all of these."""
    loss: float | None = None
    clients: float | None = None
    """Mean accuracy of the evaluated clients on their own held-out samples."""
    best: float | None = None
    """The headline's best value; without one the highest accuracy (central, else the clients'), or the lowest loss."""
    cohort: int = 0
    up: float = 0.0
    """Bytes sent by clients in all rounds."""
    failures: int = 0
    epsilon: float | None = None
    """What the rounds so far have cost of the clients' privacy; None without differential privacy."""
    seconds: float = 0.0
    """What all rounds and their evaluations took."""
    busy: dict[str, float] = field(default_factory=dict)
    """Share of the last round's time that the workers of each node of a cluster spent on clients."""

    def add(self, record: RoundRecord) -> None:
        self.round, self.busy = record.number, {}
        for name, metric in record.metrics.items():
            match name:
                case "central/accuracy":
                    self.accuracy = metric.value
                case "central/loss":
                    self.loss = metric.value
                case "clients/accuracy":
                    self.clients = metric.value
                case "clients/loss" if "central/loss" not in record.metrics:
                    self.loss = metric.value
                case "up/bytes":
                    self.up += metric.value
                case "seconds" | "evaluate/seconds":
                    self.seconds += metric.value
                case "privacy/epsilon":
                    self.epsilon = metric.value
                case "cohort":
                    self.cohort = int(metric.value)
                case _ if name.startswith("busy/"):
                    self.busy[name.removeprefix("busy/")] = metric.value
        self.failures += len(record.failures)
        if self.headline is not None:
            value = self.headline.of(record)
            self.judged = self.judged if value is None else value
            self.evaluated = self.evaluated if value is None else record
            counted = self.headline.counted(record)
            self.best = counted if self.headline.better(counted, self.best) else self.best
            return
        accuracy = self.accuracy if self.accuracy is not None else self.clients
        value, sign = (accuracy, 1) if accuracy is not None else (self.loss, -1)
        if value is not None and (self.best is None or math.isnan(self.best) or sign * (value - self.best) > 0):
            self.best = value

    def parts(self) -> list[str]:
        """The figures as short phrases, those that were measured."""
        known = {
            "accuracy": None if self.accuracy is None else percent(self.accuracy, 1),
            "loss": None if self.loss is None else f"{self.loss:.3g}",
            "clients": None if self.clients is None else percent(self.clients, 1),
        }
        headline = next((name for name in ("accuracy", "clients", "loss") if known[name] is not None), None)
        if self.headline is not None:
            headline = _SHOWN.get(self.headline.name, self.headline.name)
            known = {headline: None if self.judged is None else f"{self.judged:.3g}"} | known
        over = ""
        if self.headline is not None and self.evaluated is not None:
            over = over_clients(coverages([self.evaluated]).get(self.headline.name, ""))
        parts = []
        for name, value in known.items():
            if value is not None:
                shown = self.best is not None and name == headline
                best = f" (best {self.best:{'.1%' if value.endswith('%') else '.3g'}})" if shown else ""
                parts.append(f"{name} {value}{over if name == headline else ''}{best}")
        if self.cohort:
            parts += [f"cohort {self.cohort}", f"{megabytes(self.up)} MB up"]
        if self.epsilon is not None:
            parts.append(f"epsilon {self.epsilon:.3g}")
        if self.failures:
            parts.append(f"{self.failures} failed")
        parts += [f"{node} {share:.0%} busy" for node, share in self.busy.items()]
        return parts


class Progress(Listener):
    """Shows one run. Where the output is not a terminal: a plain line every few seconds, no control codes."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.figures = Figures()
        self._live: Live | None = None
        self._page: NotebookDisplay | None = None
        self._status, self._name, self._rounds = "running", "", 1
        self._begun = self._spoken = 0.0
        self._first = 0
        self._ended: float | None = None

    def start(self, run: Run, rounds: int) -> None:
        self.begin(run.name or type(run.algorithm).__name__, rounds, run.records, run.headline)
        if self.console.is_jupyter:
            self._page = NotebookDisplay(self.drawn)
        elif self.console.is_terminal:
            # The display is drawn by a thread of its own, so that it moves during long rounds and costs short ones
            # nothing; `end` restores the cursor, and so does the end of the process should `end` never be called.
            self._live = Live(console=self.console, refresh_per_second=UPDATES, get_renderable=self.drawn)
            self._live.start()
            atexit.register(self._close)

    def begin(self, name: str, rounds: int, records: Iterable[RoundRecord], headline: Headline | None = None) -> None:
        """A run that has these records so far; nothing is shown yet."""
        self.figures = Figures(headline)
        for record in records:
            self.figures.add(record)
        self._status, self._rounds, self._name = "running", rounds, printable(name)
        self._first, self._ended = self.figures.round, None
        self._begun = self._spoken = time.monotonic()

    def note(self, text: str) -> None:
        self.console.print(f"{self._name}: {printable(text)}", style="dim", markup=False, highlight=False)

    def warning(self, text: str) -> None:
        line = f"{self._name}: {text}"
        self.console.print(line, style="bold yellow", markup=False, highlight=False, soft_wrap=True)

    def round(self, record: RoundRecord) -> None:
        self.figures.add(record)
        if self._page is not None:
            self._page.update()
        elif self._live is None:
            self.say_now_and_then()

    def end(self, run: Run) -> None:
        self.ended(run.status)
        if self._page is not None:
            self._page.update(at_once=True)
        elif self._live is None:
            self.say()
        self._close()

    def ended(self, status: str) -> None:
        """The run is over; nothing is shown yet."""
        self._status, self._ended = status, time.monotonic()

    def say_now_and_then(self) -> None:
        """A line, if the last one was a while ago."""
        if (now := time.monotonic()) - self._spoken >= QUIET:
            self._spoken = now
            self.say()

    def drawn(self) -> RenderableType:
        """The bar and the line of figures."""
        colour = _COLOURS.get(self._status, "cyan")
        width = max(self.console.width - _ECHO, 20)
        head = Table.grid(padding=(0, 1), expand=False)
        head.add_column(overflow="ellipsis")  # the one that gives way where it is narrow
        for _ in range(3):
            head.add_column(no_wrap=True)
        head.add_row(
            Text(self._name, style="bold", overflow="ellipsis", no_wrap=True),
            ProgressBar(
                self._rounds,
                self.figures.round,
                width=min(30, width // 5),
                complete_style=colour,
                finished_style=colour,
            ),
            Text(f"{self.figures.round}/{self._rounds}", no_wrap=True),
            Text(self._pace(), style="dim", no_wrap=True),
        )
        figures = Text("  " + " · ".join(self.parts()), overflow="ellipsis", no_wrap=True)
        return Constrain(Group(head, figures), width)

    def parts(self) -> list[str]:
        """The figures as short phrases."""
        return self.figures.parts()

    def spent(self) -> tuple[float, int]:
        """Seconds, and the rounds that were trained in them."""
        return (self._ended or time.monotonic()) - self._begun, self.figures.round - self._first

    def _pace(self) -> str:
        """Rate and time left, or how it ended."""
        seconds, done = self.spent()
        if self._status != "running":
            return f"{self._status} after {duration(seconds)}"
        if done <= 0:
            return f"{duration(seconds)}"
        left = seconds / done * (self._rounds - self.figures.round)
        rate = done / seconds if seconds > 0 else math.inf
        pace = f"{rate:.3g} rounds/s" if rate >= 1 else f"{1 / rate:.3g} s/round"
        return f"{pace}, {duration(left)} left"

    def say(self) -> None:
        """A line about how the run stands."""
        line = " · ".join([f"{self._name}: round {self.figures.round}/{self._rounds}", *self.parts(), self._pace()])
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _close(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()
            atexit.unregister(self._close)


class NotebookDisplay:
    """A place in a notebook's output that is drawn anew, as the terminal's is; needs nothing but IPython itself."""

    def __init__(self, drawn: Callable[[], RenderableType]) -> None:
        from importlib import import_module

        self._display: Any = import_module("IPython.display")
        self._drawn, self._last = drawn, time.monotonic()
        self._handle = self._display.display(self._display.HTML(self._html()), display_id=True)

    def update(self, *, at_once: bool = False) -> None:
        """Draw it anew, at most a few times a second."""
        now = time.monotonic()
        if self._handle is not None and (at_once or now - self._last >= 1 / UPDATES):
            self._last = now
            self._handle.update(self._display.HTML(self._html()))

    def _html(self) -> str:
        """Colours in the page itself; text keeps the notebook's own, which may be dark."""
        screen = Console(file=io.StringIO(), record=True, width=100, force_jupyter=False, color_system="standard")
        screen.print(self._drawn())
        style = "white-space:pre;overflow-x:auto;line-height:normal;font-family:Menlo,Consolas,monospace"
        return screen.export_html(inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>')


class ProgressRow(Listener):
    """One of several runs: waiting, training or done."""

    def __init__(self, name: str, table: ProgressTable) -> None:
        self.name, self.table = name, table
        self.figures, self.rounds = Figures(), 0
        self.begun: float | None = None
        self.ended: float | None = None

    def start(self, run: Run, rounds: int) -> None:
        self.rounds, self.begun = rounds, time.monotonic()

    def round(self, record: RoundRecord) -> None:
        self.figures.add(record)

    def end(self, run: Run) -> None:
        self.ended = time.monotonic()
        self.table.finished(self)

    @property
    def seconds(self) -> float:
        return 0.0 if self.begun is None else (self.ended or time.monotonic()) - self.begun

    def cells(self) -> list[Text | ProgressBar]:
        """Name, bar, accuracies, traffic and time; dots while it waits."""
        if self.begun is None:
            return [Text(self.name, style="dim"), Text("waiting", style="dim"), *[Text("·", style="dim")] * 4]
        figures, done = self.figures, self.ended is not None
        bar = ProgressBar(self.rounds, figures.round, width=18, complete_style="cyan", finished_style="green")
        accuracy = "" if figures.accuracy is None else percent(figures.accuracy, 1)
        clients = "–" if figures.clients is None else percent(figures.clients, 1)
        up = "–" if self.name in self.table.silent else f"{megabytes(figures.up)} MB"
        name = Text(self.name, style="" if done else "bold")
        return [name, bar, Text(accuracy), Text(clients), Text(up), Text(duration(self.seconds))]


class ProgressTable:
    """Several runs, a row each. Where the output is not a terminal, a line is printed as each run ends."""

    def __init__(self, names: Sequence[str], console: Console, silent: Collection[str] = ()) -> None:
        """`silent`: the runs in which no model is sent, so that their traffic means nothing."""
        self.console, self.silent = console, silent
        self.rows = {name: ProgressRow(name, self) for name in names}

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draws the table while the block runs, and takes it away afterwards."""
        if not self.console.is_terminal:
            yield
            return
        with Live(get_renderable=self.drawn, console=self.console, refresh_per_second=UPDATES, transient=True):
            yield

    def finished(self, row: ProgressRow) -> None:
        if not self.console.is_terminal:
            figures = " · ".join(row.figures.parts())
            line = f"{row.name}: {figures} · {duration(row.seconds)}"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def drawn(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("method", min_width=11)
        table.add_column("rounds", width=18)
        for heading in ("accuracy", "at home", "up", "time"):
            table.add_column(heading, justify="right", min_width=8)
        for row in self.rows.values():
            table.add_row(*row.cells())
        return table


@contextmanager
def steps(*, of_bytes: bool = False) -> Iterator[Callable[[str, int, int | None], None]]:
    """A function that draws a bar for each of what it is told, on standard error; they go away at the end.

    Where that is no terminal, a line is printed now and then.
    """
    screen = Console(stderr=True)
    if not screen.is_terminal:
        last = time.monotonic()

        def say(what: str, done: int, total: int | None) -> None:
            nonlocal last
            if time.monotonic() - last >= QUIET:
                last = time.monotonic()
                print(f"{what}: {done}" + (f" of {total}" if total else ""), file=screen.file, flush=True)

        yield say
        return
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    count = DownloadColumn() if of_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn())
    with Bars(*columns, console=screen, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def tell(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield tell
