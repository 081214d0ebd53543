"""Every figure, table and report: they draw stored runs or finished numbers, and never train."""

from parley.report.compare import Comparison, Line, Reached, to_csv, to_json
from parley.report.comparison_figure import figure
from parley.report.comparison_table import table
from parley.report.contender import Contender
from parley.report.page import write_report
from parley.report.partition_figure import partition_figure

__all__ = [
    "Comparison", "Contender", "Line", "Reached", "figure", "partition_figure", "table", "to_csv", "to_json",
    "write_report",
]  # fmt: skip
