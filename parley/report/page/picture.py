"""Figures inside a page."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

from parley.report.page.markup import text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def picture(figure: Figure, words: str, dpi: int = 80) -> str:
    """A figure inside the page; `words` say what it shows to those who cannot see it."""
    drawing = io.BytesIO()
    figure.savefig(drawing, format="png", dpi=dpi)
    image = base64.b64encode(drawing.getvalue()).decode()
    return f'<figure><img alt="{text(words)}" src="data:image/png;base64,{image}"></figure>'
