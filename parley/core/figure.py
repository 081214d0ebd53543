"""Figures that show themselves in a notebook, made without Matplotlib's global state."""

from io import BytesIO

from matplotlib.figure import Figure


class Picture(Figure):
    """A figure that a notebook shows when it is the value of a cell; no window and no pyplot."""

    def _repr_png_(self) -> bytes:
        target = BytesIO()
        self.savefig(target, format="png", dpi=120)
        return target.getvalue()
