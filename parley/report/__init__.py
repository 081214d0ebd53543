"""Every figure, table and report: they draw stored runs or finished numbers, and never train."""

from parley.report import style
from parley.report.attack_figure import attack_figure
from parley.report.compare import Comparison, Line
from parley.report.comparison_export import to_csv, to_frame, to_json, to_latex, to_parquet
from parley.report.comparison_figure import figure
from parley.report.comparison_table import pairs_table, table
from parley.report.files import save_figure
from parley.report.gain_figure import figure as gain_figure
from parley.report.groups import Contender, Group, Reached
from parley.report.page import write_report
from parley.report.partition_figure import partition_figure
from parley.study.seeds import SeedMean

__all__ = [
    "Comparison",
    "Contender",
    "Group",
    "Line",
    "Reached",
    "SeedMean",
    "attack_figure",
    "figure",
    "gain_figure",
    "pairs_table",
    "partition_figure",
    "save_figure",
    "style",
    "table",
    "to_csv",
    "to_frame",
    "to_json",
    "to_latex",
    "to_parquet",
    "write_report",
]
