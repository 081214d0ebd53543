"""The demo's live table: one row per method, filling in while it trains."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from parley.engine.listeners import Listener
from parley.engine.progress import UPDATES, Figures, duration, megabytes
from parley.engine.run import Run
from parley.store.records import RoundRecord


class Row(Listener):
    """One method: waiting, training or done."""

    def __init__(self, name: str, board: Board) -> None:
        self.name, self.board = name, board
        self.figures, self.rounds = Figures(), 0
        self.begun: float | None = None
        self.ended: float | None = None

    def start(self, run: Run, rounds: int) -> None:
        self.rounds, self.begun = rounds, time.monotonic()

    def round(self, record: RoundRecord) -> None:
        self.figures.add(record)

    def end(self, run: Run) -> None:
        self.ended = time.monotonic()
        self.board.finished(self)

    @property
    def seconds(self) -> float:
        return 0.0 if self.begun is None else (self.ended or time.monotonic()) - self.begun

    def cells(self) -> list[Text | ProgressBar]:
        """Name, bar, accuracies, traffic and time; dots while it waits."""
        if self.begun is None:
            return [Text(self.name, style="dim"), Text("waiting", style="dim"), *[Text("·", style="dim")] * 4]
        figures, done = self.figures, self.ended is not None
        bar = ProgressBar(self.rounds, figures.round, width=18, complete_style="cyan", finished_style="green")
        accuracy = "" if figures.accuracy is None else f"{figures.accuracy:.1%}"
        home = "–" if figures.clients is None else f"{figures.clients:.1%}"
        sends = self.name not in ("local-only", "centralised")
        return [
            Text(self.name, style="bold" if not done else ""), bar, Text(accuracy), Text(home),
            Text(megabytes(figures.up) if sends else "–"), Text(duration(self.seconds)),
        ]  # fmt: skip


class Board:
    """All rows. Where the output is not a terminal, a line is printed as each method ends."""

    def __init__(self, names: Sequence[str], console: Console) -> None:
        self.console = console
        self.rows = {name: Row(name, self) for name in names}

    def row(self, name: str) -> Row:
        return self.rows[name]

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draws the table while the block runs, and leaves it out afterwards: the comparison says more."""
        if not self.console.is_terminal:
            yield
            return
        with Live(get_renderable=self.picture, console=self.console, refresh_per_second=UPDATES, transient=True):
            yield

    def finished(self, row: Row) -> None:
        if not self.console.is_terminal:
            figures = " · ".join(row.figures.parts())
            self.console.print(f"{row.name}: {figures} · {duration(row.seconds)}", highlight=False, soft_wrap=True)

    def picture(self) -> Table:
        drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        drawn.add_column("method", min_width=11)
        drawn.add_column("rounds", width=18)
        for heading in ("accuracy", "at home", "up", "time"):
            drawn.add_column(heading, justify="right", min_width=8)
        for row in self.rows.values():
            drawn.add_row(*row.cells())
        return drawn
