"""Tables, figures and reports; they read the run store or finished runs and never train."""

from parley.report.compare import Comparison, Line, Reached, to_csv, to_json
from parley.report.comparison_figure import figure
from parley.report.comparison_table import table
from parley.report.contender import Contender

__all__ = ["Comparison", "Contender", "Line", "Reached", "figure", "table", "to_csv", "to_json"]
