"""Every figure, table and report: they draw stored runs or finished numbers, and never train."""

from parley.core.lazy import lazy
from parley.report import style as style
from parley.report.partition_figure import partition_figure as partition_figure

_HOME, __getattr__, __dir__ = lazy(__name__)

__all__ = sorted(_HOME)
