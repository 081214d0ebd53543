"""Every figure, table and report: they draw stored runs or finished numbers, and never train."""

from parley.report.compare import Comparison, Line
from parley.report.comparison_export import to_csv, to_frame, to_json, to_latex, to_parquet
from parley.report.comparison_figure import figure
from parley.report.comparison_table import pairs_table, table
from parley.report.contender import Contender, Reached
from parley.report.groups import Group
from parley.report.page import write_report
from parley.report.partition_figure import partition_figure

__all__ = [
    "Comparison", "Contender", "Group", "Line", "Reached", "figure", "pairs_table", "partition_figure", "table",
    "to_csv", "to_frame", "to_json", "to_latex", "to_parquet", "write_report",
]  # fmt: skip
