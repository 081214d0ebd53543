"""Figures, tables and reports; `__init__.py` reads this file for where each name comes from."""

from parley.report import style as style
from parley.report.attacks_figure import attack_figure as attack_figure
from parley.report.compare import Comparison as Comparison
from parley.report.compare import Line as Line
from parley.report.comparison_export import to_csv as to_csv
from parley.report.comparison_export import to_frame as to_frame
from parley.report.comparison_export import to_json as to_json
from parley.report.comparison_export import to_latex as to_latex
from parley.report.comparison_export import to_parquet as to_parquet
from parley.report.comparison_figure import figure as figure
from parley.report.comparison_table import pairs_table as pairs_table
from parley.report.comparison_table import table as table
from parley.report.files import save_figure as save_figure
from parley.report.gains_figure import gain_figure as gain_figure
from parley.report.groups import Contender as Contender
from parley.report.groups import Group as Group
from parley.report.groups import Reached as Reached
from parley.report.page import write_report as write_report
from parley.report.partition_figure import partition_figure as partition_figure
from parley.study.seeds import SeedMean as SeedMean
