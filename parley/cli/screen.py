"""Printing: one console for results, tables that look the same everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parley.core.text import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console


def console() -> Console:
    """Results go to standard output; where that is no terminal, lines are as long as they need to be."""
    from rich.console import Console

    screen = Console(highlight=False, soft_wrap=False)
    if not screen.is_terminal:
        screen = Console(highlight=False, width=max(200, screen.width))
    return screen


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()) -> None:
    """A table; the columns in `right` hold numbers. Without names of columns it is a plain list."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    headed = any(columns)
    table = Table(show_header=headed, box=box.SIMPLE_HEAD if headed else None, pad_edge=False)
    for name in columns:
        table.add_column(Text(name), justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*[Text("-" if cell is None else printable(cell)) for cell in row])
    console().print(table)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format its name says."""
    from parley.report.files import save_figure

    with writing(path):
        if not path.suffix:
            raise ValueError("the ending of its name must say the format, such as .png")
        path.parent.resolve(strict=True)  # a folder that does not exist is a typing mistake, not one to make
        save_figure(figure, path)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say where the file is once it is written, or why it could not be."""
    from parley.core.errors import InputError

    try:
        yield
    except (OSError, ValueError) as error:  # Matplotlib refuses formats it does not know with a ValueError
        reason = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
        raise InputError(f"{path} cannot be written: {reason}.") from None
    print(path)


def write_texts(*wanted: tuple[Path | None, Callable[[], str]]) -> None:
    """Each text into its file, where one was named."""
    from parley.core.files import write_atomically

    for path, text in wanted:
        if path is not None:
            with writing(path):
                write_atomically(path, text().encode())


@contextmanager
def without_collection() -> Iterator[None]:
    """For a command that reads, prints and ends: looking for garbage would take an eighth of its time."""
    import gc

    gc.disable()
    try:
        yield
    finally:
        gc.enable()
