"""Figures into files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from parley.core.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 150
"""Dots per inch: a figure of 12 inches is 1800 pixels wide and sharp at 1200."""


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the path's suffix; the file is there whole or not at all."""
    stream = io.BytesIO()
    figure.savefig(stream, format=path.suffix.removeprefix(".") or "png", dpi=DPI)
    write_atomically(path, stream.getvalue())
